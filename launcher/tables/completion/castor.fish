# Completion of castor in fish. castor itself answers, from its tables (launcher/tables/complete.h).
function __castor
    set -l candidates (castor complete (commandline -cp | string collect) 2>/dev/null)
    if set -q candidates[1]
        string join \n -- $candidates
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c castor -f -a '(__castor)'

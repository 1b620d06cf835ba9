#compdef castor
# Completion of castor in zsh. castor itself answers, from its tables (launcher/tables/complete.h).
local line
local -a candidates
for line in "${(@f)$($words[1] complete "${(j: :)words[1,CURRENT-1]} $PREFIX" 2>/dev/null)}"; do
    [[ -z $line ]] || candidates+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
done
if (( $#candidates == 0 )); then
    _files
elif [[ $candidates[1] == *=:* ]]; then
    _describe castor candidates -S ''
else
    _describe castor candidates
fi

# Completion of castor in bash. castor itself answers, from its tables (launcher/tables/complete.h).
_castor() {
    local line=${COMP_LINE:0:COMP_POINT} typed_before='' word
    COMPREPLY=()
    # bash completes what follows the last equals sign.
    word=${line##*[[:space:]]}
    [[ $word != *=* || $COMP_WORDBREAKS != *=* ]] || typed_before=${word%=*}=
    while IFS=$'\t' read -r word _; do
        COMPREPLY+=("${word#"$typed_before"}")
    done < <("$1" complete "$line" 2>/dev/null)
    [[ ${COMPREPLY[0]-} != *= ]] || compopt -o nospace
}
complete -o bashdefault -o default -F _castor castor

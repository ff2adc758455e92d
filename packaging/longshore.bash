# Completion of longshore's commands and flags in bash: the program is asked what there is, so it is never behind.
_longshore() {
    local word=${COMP_WORDS[COMP_CWORD]} help words=()
    local -a command=()
    for ((i = 1; i < COMP_CWORD && ${#command[@]} < 2; i++)); do
        [[ ${COMP_WORDS[i]} == -* ]] && break
        command+=("${COMP_WORDS[i]}")
    done
    help=$("${COMP_WORDS[0]}" "${command[@]}" --help 2>/dev/null || "${COMP_WORDS[0]}" "${command[@]:0:1}" --help 2>/dev/null)
    case $word in
    -*) mapfile -t words < <(grep -oE '^  --[a-z0-9-]+' <<<"$help") ;;
    *) [ ${#command[@]} = $((COMP_CWORD - 1)) ] && mapfile -t words < <(grep -oE '^  [a-z]+ ' <<<"$help" | grep -v longshore) ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "${words[*]}" -- "$word")
}
complete -o default -F _longshore longshore

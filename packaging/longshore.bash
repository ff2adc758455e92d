# Completion of longshore's commands and flags in bash: the program is asked what there is, so it is never behind.
_longshore() {
    local word=${COMP_WORDS[COMP_CWORD]} help choices words=()
    local -a command=()
    for ((i = 1; i < COMP_CWORD && ${#command[@]} < 2; i++)); do
        [[ ${COMP_WORDS[i]} == -* ]] && break
        command+=("${COMP_WORDS[i]}")
    done
    help=$("${COMP_WORDS[0]}" "${command[@]}" --help 2>/dev/null || "${COMP_WORDS[0]}" "${command[@]:0:1}" --help 2>/dev/null)
    # after a flag with a choice, its words: "  --schedule constant|linear|cosine"
    local before=${COMP_WORDS[COMP_CWORD - 1]}
    if [[ $before == --* ]] && choices=$(grep -oE -- "^  $before [a-z0-9|-]*\|[a-z0-9|-]*" <<<"$help"); then
        mapfile -t COMPREPLY < <(compgen -W "$(tr '|' ' ' <<<"${choices##* }")" -- "$word")
        return
    fi
    if [ "$before" = --init ]; then
        mapfile -t words < <(grep -oE '\b(gpt2|llama3?)-[a-z0-9.]+' <<<"$help" | sort -u)
        mapfile -t COMPREPLY < <(compgen -W "${words[*]}" -- "$word")
        return
    fi
    if [ "$before" = --machine ] || [ "$before" = --emulate ]; then # files otherwise
        mapfile -t COMPREPLY < <(compgen -W "$("${COMP_WORDS[0]}" machine --list 2>/dev/null | cut -d" " -f1)" -- "$word")
        return
    fi
    case $word in
    -*) mapfile -t words < <(grep -oE '^  --[a-z0-9-]+' <<<"$help") ;;
    *) [ ${#command[@]} = $((COMP_CWORD - 1)) ] && mapfile -t words < <(grep -oE '^  [a-z]+ ' <<<"$help" | grep -v longshore) ;;
    esac
    mapfile -t COMPREPLY < <(compgen -W "${words[*]}" -- "$word")
}
complete -o default -F _longshore longshore

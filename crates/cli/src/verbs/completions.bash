
# The names of the file's clusters, members, nodes and balancers, beside what is known beforehand.
_raftsman_with_names() {
    _raftsman "$@"
    local current="${COMP_WORDS[COMP_CWORD]}"
    if [[ "${COMP_CWORD}" -gt 2 && "${COMP_WORDS[COMP_CWORD-1]}" == --via ]]; then
        COMPREPLY=( $(compgen -W "$("${COMP_WORDS[0]}" names -- --via 2>/dev/null)" -- "${current}") )
        return 0
    fi
    if [[ "${COMP_CWORD}" -gt 2 && "${COMP_WORDS[1]}" == switchover && "${COMP_WORDS[COMP_CWORD-1]}" == --to ]]; then
        COMPREPLY=( $(compgen -W "$("${COMP_WORDS[0]}" names -- --to 2>/dev/null)" -- "${current}") )
        return 0
    fi
    if [[ "${COMP_CWORD}" -lt 2 || "${current}" == -* ]]; then
        return 0
    fi
    COMPREPLY+=( $(compgen -W "$("${COMP_WORDS[0]}" names "${COMP_WORDS[1]}" 2>/dev/null)" -- "${current}") )
}
complete -F _raftsman_with_names -o nosort -o bashdefault -o default raftsman

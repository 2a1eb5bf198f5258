
# The names of the file's clusters and members, beside what is known beforehand.
_raftsman_with_names() {
    _raftsman "$@"
    local current="${COMP_WORDS[COMP_CWORD]}"
    if [[ "${COMP_CWORD}" -lt 2 || "${current}" == -* ]]; then
        return 0
    fi
    COMPREPLY+=( $(compgen -W "$("${COMP_WORDS[0]}" names "${COMP_WORDS[1]}" 2>/dev/null)" -- "${current}") )
}
complete -F _raftsman_with_names -o nosort -o bashdefault -o default raftsman

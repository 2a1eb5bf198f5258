# The names of the file's clusters and members.
_raftsman_names() {
    local -a names
    names=(${(f)"$(raftsman names "${words[1]}" 2>/dev/null)"})
    compadd -a names
}
# The names of the file's balancers.
_raftsman_balancers() {
    local -a names
    names=(${(f)"$(raftsman names -- --via 2>/dev/null)"})
    compadd -a names
}
# The nodes of the file's PostgreSQL clusters.
_raftsman_nodes() {
    local -a names
    names=(${(f)"$(raftsman names -- --to 2>/dev/null)"})
    compadd -a names
}


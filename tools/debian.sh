# What the scripts of this directory need of the Debian that they run on. Sourced; $work is a directory of the caller's.

# The repository of this label (Debian, Debian-Security) that this computer itself uses: no other is known to be reachable.
mirror() {
  local uri
  uri=$(known_mirror "$1")
  [ -n "$uri" ] || { apt-get -qq update && uri=$(known_mirror "$1"); }
  [ -n "$uri" ] || { echo "apt knows no repository of the label $1: look at /etc/apt/sources.list" >&2 && return 1; }
  echo "$uri"
}
known_mirror() { apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' "Label: $1" | head -1; }

# apt-get, silent unless it fails.
export DEBIAN_FRONTEND=noninteractive
apt() { apt-get -qq -y -o DPkg::Lock::Timeout=600 -o Dpkg::Use-Pty=0 "$@" >"$work/apt.log" || { cat "$work/apt.log" >&2 && exit 1; }; }
have() { [ "$(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }

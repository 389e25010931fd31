#!/bin/sh
# Usage: install-chromium.sh [--check]
#
# Prints the path of a Chromium, for the tests of the web page (go test ./internal/pool/web). If the machine
# has none, Debian's package chromium is installed by apt, which needs root.
# With --check it installs nothing. DXPU_CHROMIUM names a browser to use instead.
#
# Exit status: 0 it printed the path; 1 error; 2 usage; 3 no Chromium available on this machine.
set -eu
me=$(basename "$0")
say() { printf '%s: %s\n' "$me" "$*" >&2; }
cannot() {
	say "$@"
	exit 3
}

check=no
case "$#:${1-}" in
0:) ;;
1:--check) check=yes ;;
*)
	sed -n 's/^# \{0,1\}//; 2,8p' "$0" >&2
	exit 2
	;;
esac

found() {
	for name in "${DXPU_CHROMIUM-}" chromium chromium-browser google-chrome; do
		[ -z "$name" ] || ! command -v "$name" || return 0
	done
	return 1
}

if found; then
	exit
fi
[ $check = no ] || cannot "no Chromium; remedy: run $0 as root"
command -v apt-get >/dev/null || cannot "only for Debian and its relatives; elsewhere install Chromium and set DXPU_CHROMIUM: the tests with a browser are left out"
[ "$(id -u)" = 0 ] || cannot "no Chromium, and only root can install one: the tests with a browser are left out; remedy: sudo $0"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
say "installing Debian's package chromium, about 100 MB"
if ! { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install chromium fonts-dejavu-core; } >"$log" 2>&1; then
	sed -n 's/^[EW]: /  apt: &/p' "$log" | tail -n 5 >&2
	cannot "apt could not install it: the tests with a browser are left out"
fi
found || { say "the package has come, but there is no chromium in the path"; exit 1; }

#!/bin/sh
# Usage: install-go.sh [--check]
#
# Prints the directory of a Go that builds this module. If the machine's own Go is missing or older than
# 1.21, which cannot fetch the version of go.mod, the script puts Go 1.26 from Debian's backports into
# ${DXPU_CACHE:-${XDG_CACHE_HOME:-~/.cache}/dxpu}/go. It needs no root and changes nothing outside
# that directory. With --check it installs nothing, and prints nothing if the machine's own Go will do.
#
# Exit status: 0 it printed the directory, or the machine's own Go will do; 2 usage; 3 no Go on this machine.
set -eu
# shellcheck source=scripts/debian.sh
. "$(dirname "$0")/debian.sh"

check=no
case "$#:${1-}" in
0:) ;;
1:--check) check=yes ;;
*)
	sed -n 's/^# \{0,1\}//; 2,9p' "$0" >&2
	exit 2
	;;
esac

# usable GO: 1.21 or newer, which fetches the version that go.mod asks for.
usable() {
	minor=$(cd / && "$1" version 2>/dev/null | sed -n 's/^go version \(devel \)\{0,1\}go1\.\([0-9]*\).*/\2/p')
	[ "${minor:-0}" -ge 21 ]
}

system=$(command -v go || true)
if [ -n "$system" ] && usable "$system"; then
	[ $check = yes ] || dirname "$system"
	exit
fi
installed=$cache/go/usr/lib/go-1.26/bin
if [ -x "$installed/go" ]; then
	echo "$installed"
	exit
fi
[ $check = no ] || fail 3 "no Go 1.21 or newer; remedy: run $0"
[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || fail 3 "only for Debian on amd64: install Go 1.26 from https://go.dev/dl"

begin go
if [ ! -x "$installed/go" ]; then # by the run that we waited for
	plan() {
		say "downloading Go 1.26, about 45 MB"
		download -t $suite-backports golang-1.26-go
	}
	mkdir "$tmp/debs"
	fetch "$tmp/debs" plan
	unpack "$tmp/debs" "$tmp/tree"
	usable "$tmp/tree/usr/lib/go-1.26/bin/go" || fail 3 "Debian's Go does not run here: install Go 1.26 from https://go.dev/dl"
	mv "$tmp/tree" "$cache/go"
	say "Go is in $installed"
fi
echo "$installed"

#!/bin/sh
# Usage: install-qemu.sh [--check]
#
# Prints the path of a qemu-system-x86_64 that has -device vfio-user-pci (10.1 or newer). If
# the machine has none, the script puts one from Debian's backports into
# ${DXPU_CACHE:-${XDG_CACHE_HOME:-~/.cache}/dxpu}/qemu, where it runs by its own loader and
# libraries. It needs no root and changes nothing outside that directory.
# With --check it installs nothing. DXPU_QEMU names a QEMU to use instead.
#
# Exit status: 0 it printed the path; 1 error; 2 usage; 3 no QEMU available on this machine.
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

usable() { "$1" -device vfio-user-pci,help </dev/null 2>/dev/null | grep -q x-msg-timeout; }

if [ -n "${DXPU_QEMU-}" ]; then
	usable "$DXPU_QEMU" || fail 3 "DXPU_QEMU=$DXPU_QEMU has no -device vfio-user-pci (QEMU 10.1 or newer)"
	echo "$DXPU_QEMU"
	exit
fi

installed=$cache/qemu/bin/qemu-system-x86_64
system=$(command -v qemu-system-x86_64 || true)
if [ -x "$installed" ]; then
	echo "$installed"
	exit
fi
if [ -n "$system" ] && usable "$system"; then
	echo "$system"
	exit
fi
[ $check = no ] || fail 3 "no QEMU with vfio-user-pci; remedy: run $0"
[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] ||
	fail 3 "only for Debian on amd64; elsewhere install QEMU 10.1 or newer and set DXPU_QEMU"

begin qemu
if [ -x "$installed" ]; then # by the run that we waited for
	echo "$installed"
	exit
fi
start=$(date +%s)

plan() {
	say "downloading QEMU and its libraries, about 40 MB"
	download -t $suite-backports qemu-system-x86
}
mkdir "$tmp/debs"
fetch "$tmp/debs" plan
version=$(dpkg-deb -f "$tmp"/debs/qemu-system-x86_*.deb Version | sed 's/^[0-9]*://')
tree=$tmp/tree
unpack "$tmp/debs" "$tree"

mkdir "$tree/bin"
cat >"$tree/bin/qemu-system-x86_64" <<'EOF'
#!/bin/sh
# Runs the QEMU of this tree by the loader and the libraries of this tree. The last exec
# keeps the process, so its id and its parent-death signal hold.
tree=$(dirname "$(dirname "$(readlink -f "$0")")")
lib=$tree/usr/lib/x86_64-linux-gnu
export QEMU_MODULE_DIR="$lib/qemu"
exec "$lib/ld-linux-x86-64.so.2" --argv0 qemu-system-x86_64 --inhibit-cache \
	--library-path "$lib" "$tree/usr/bin/qemu-system-x86_64" \
	-L "$tree/usr/share/qemu" -L "$tree/usr/share/seabios" "$@"
EOF
chmod +x "$tree/bin/qemu-system-x86_64"
usable "$tree/bin/qemu-system-x86_64" ||
	fail 1 "QEMU $version has come, but does not run with -device vfio-user-pci: $("$tree/bin/qemu-system-x86_64" --version 2>&1 | head -n 1)"

rm -rf "$cache/qemu-$version"
mv "$tree" "$cache/qemu-$version"
ln -s "qemu-$version" "$tmp/link"
mv -T "$tmp/link" "$cache/qemu"
say "QEMU $version is in $cache/qemu-$version after $(($(date +%s) - start)) s"
echo "$installed"

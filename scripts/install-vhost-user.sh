#!/bin/sh
# Usage: install-vhost-user.sh [--check]
#
# Prints the directory with qemu-storage-daemon, virtiofsd and passt, servers of vhost-user with
# which the tests of virtio devices work, and fio, which the tests put into the guest. They come
# from Debian into ${DXPU_CACHE:-${XDG_CACHE_HOME:-~/.cache}/dxpu}/vhost-user, where they run by
# their own loader and libraries. It needs no root and changes nothing outside that directory.
# With --check it installs nothing.
#
# Exit status: 0 it printed the directory; 1 error; 2 usage; 3 not available on this machine.
set -eu
# shellcheck source=scripts/debian.sh
. "$(dirname "$0")/debian.sh"

check=no
case "$#:${1-}" in
0:) ;;
1:--check) check=yes ;;
*)
	sed -n 's/^# \{0,1\}//; 2,10p' "$0" >&2
	exit 2
	;;
esac

installed=$cache/vhost-user/bin
if [ -d "$installed" ]; then
	echo "$installed"
	exit
fi
[ $check = no ] || fail 3 "no servers of vhost-user; remedy: run $0"
[ "$(dpkg --print-architecture 2>/dev/null)" = amd64 ] || fail 3 "only for Debian on amd64"

begin vhost-user
if [ -d "$installed" ]; then # by the run that we waited for
	echo "$installed"
	exit
fi

plan() {
	say "downloading qemu-storage-daemon, virtiofsd, passt, fio and their libraries, about 60 MB"
	download qemu-utils virtiofsd passt fio
}
mkdir "$tmp/debs"
fetch "$tmp/debs" plan
tree=$tmp/tree
unpack "$tmp/debs" "$tree"
mkdir "$tree/bin"
for path in usr/bin/qemu-storage-daemon usr/libexec/virtiofsd usr/bin/passt usr/bin/fio; do
	[ -x "$tree/$path" ] || fail 1 "$path is missing in the packages"
	name=$(basename "$path")
	cat >"$tree/bin/$name" <<-END
		#!/bin/sh
		# Runs $name of this tree by the loader and the libraries of this tree.
		tree=\$(dirname "\$(dirname "\$(readlink -f "\$0")")")
		lib=\$tree/usr/lib/x86_64-linux-gnu
		exec "\$lib/ld-linux-x86-64.so.2" --argv0 $name --inhibit-cache --library-path "\$lib:\$lib/ceph" "\$tree/$path" "\$@"
	END
	chmod +x "$tree/bin/$name"
done
mv "$tree" "$cache/vhost-user"
say "the servers are in $installed"
echo "$installed"

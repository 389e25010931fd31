#!/bin/sh
# Usage: build-guest.sh [--check] [trixie-cloud|trixie-generic|bookworm-cloud|bookworm-generic]
#
# Prints the directory of a Linux guest: an unmodified kernel of Debian (vmlinuz) and a small
# initramfs (initramfs.cpio) of busybox, lspci, the kernel's own modules of VFIO and virtio, and scripts/guest/init.
# The kernel is that of Debian 13 (trixie, the default) or 12 (bookworm), for clouds or for all machines.
# It lies in ${DXPU_CACHE:-${XDG_CACHE_HOME:-~/.cache}/dxpu} and is rebuilt when scripts/guest/ has
# changed; it fetches the packages once. A second archive behind this one adds programs when a
# VM starts. With --check it builds nothing.
#
# Exit status: 0 it printed the directory; 1 error; 2 usage; 3 not available on this machine.
set -eu
# shellcheck source=scripts/debian.sh
. "$(dirname "$0")/debian.sh"

check=no
[ "${1-}" != --check ] || { check=yes && shift; }
kind=${1-trixie-cloud}
case "$#:$kind" in
[01]:trixie-cloud) name=guest package=linux-image-cloud-amd64 packages=$cache/guest-packages-2 ;;
1:trixie-generic | 1:bookworm-generic) package=linux-image-amd64 ;;
1:bookworm-cloud) package=linux-image-cloud-amd64 ;;
*)
	sed -n 's/^# \{0,1\}//; 2,11p' "$0" >&2
	exit 2
	;;
esac
suite=${kind%-*}
: "${name=guest-of-$kind}" "${packages=$cache/guest-packages-2-of-$kind}" # the number grows with the list of packages

files=$(dirname "$0")/guest
key=$(cat "$files/init" "$0" | sha256sum | cut -c1-12)
current() { [ "$(readlink "$cache/$name" 2>/dev/null)" = "$name-$key" ] && [ -f "$cache/$name/initramfs.cpio" ]; }
if current; then
	echo "$cache/$name"
	exit
fi
[ $check = no ] || fail 3 "no guest image of this version; remedy: run $0 $kind"

begin guest
if current; then
	echo "$cache/$name"
	exit
fi
start=$(date +%s)

# The kernel alone, without what an installed kernel depends on; the programs with libraries.
plan() {
	kernel=$(apt-cache depends "$package" | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n 1)
	[ -n "$kernel" ] || return 1
	say "downloading $kernel, busybox and lspci, 40 to 120 MB"
	apt_run apt-get -q download "$kernel" && download busybox-static pciutils kmod
}

# merge TREE: Debian 12 has the directories of /usr beside it, too.
merge() {
	for dir in bin sbin lib lib64; do
		[ -d "$1/$dir" ] || continue
		mkdir -p "$1/usr/$dir"
		cp -a "$1/$dir/." "$1/usr/$dir/"
		rm -r "${1:?}/$dir"
	done
}
if [ ! -d "$packages" ]; then
	mkdir "$tmp/debs"
	fetch "$tmp/debs" plan
	unpack "$tmp/debs" "$tmp/packages"
	merge "$tmp/packages"
	mv "$tmp/packages" "$packages"
fi

busybox=$packages/usr/bin/busybox
lib=$packages/usr/lib/x86_64-linux-gnu
image=$tmp/image
root=$tmp/root
# Directories are real ones, not links into /usr: an archive that is added behind this one
# may have members in them, and its directory would replace the link.
mkdir -p "$image"
for dir in bin sbin lib/x86_64-linux-gnu lib64 usr/lib usr/share/misc dev proc sys tmp root etc; do
	mkdir -p "$root/$dir"
done
ln -s ../bin/busybox "$root/sbin/modprobe" # for the kernel's own requests
ln -s ../usr/lib/modules "$root/lib/modules"

cp "$packages"/boot/vmlinuz-* "$image/vmlinuz"
release=$(basename "$packages"/usr/lib/modules/*)
from=$packages/usr/lib/modules/$release
to=$root/usr/lib/modules/$release
mkdir -p "$to"
cp "$from"/modules.order "$from"/modules.builtin "$from"/modules.builtin.modinfo "$to/"
depmod() { # ROOT
	"$lib/ld-linux-x86-64.so.2" --argv0 depmod --inhibit-cache --library-path "$lib" "$packages/usr/bin/kmod" -b "$1" "$release"
}
[ -e "$packages/lib" ] || ln -s usr/lib "$packages/lib"
[ -s "$from/modules.dep" ] || depmod "$packages"
# Each line of modules.dep is a module and, behind a colon, all that it depends on.
for module in vfio_iommu_type1 vfio-pci uio_pci_generic virtio_pci virtio_console virtio_blk virtio_net vmw_vsock_virtio_transport; do
	if line=$(grep "/$module\\.ko[.xz]*:" "$from/modules.dep"); then
		for file in $(echo "$line" | tr -d :); do
			mkdir -p "$to/$(dirname "$file")"
			case $file in
			*.xz) "$busybox" xz -dc "$from/$file" >"$to/${file%.xz}" ;;
			*) cp "$from/$file" "$to/$file" ;;
			esac
		done
	else
		grep -q "/$module\\.ko" "$from/modules.builtin" || fail 1 "the kernel package has no module $module"
	fi
done
depmod "$root"

cp "$busybox" "$root/bin/busybox"
for applet in $("$busybox" --list); do
	case $applet in busybox | lspci | setpci) ;; *) ln -s busybox "$root/bin/$applet" ;; esac
done
cp "$packages/usr/bin/lspci" "$packages/usr/bin/setpci" "$root/bin/"
cp "$packages/usr/share/misc/pci.ids" "$root/usr/share/misc/"
cp "$lib/ld-linux-x86-64.so.2" "$root/lib64/"
"$lib/ld-linux-x86-64.so.2" --inhibit-cache --library-path "$lib" --list "$packages/usr/bin/lspci" |
	sed -n 's/.*=> \(\/[^ ]*\) .*/\1/p' >"$tmp/libraries"
while read -r library; do cp "$library" "$root/lib/x86_64-linux-gnu/"; done <"$tmp/libraries"
cp "$files/init" "$root/init"
chmod 755 "$root/init"
echo "root:x:0:0:root:/root:/bin/sh" >"$root/etc/passwd"
echo "nobody:x:65534:65534:nobody:/:/bin/false" >>"$root/etc/passwd"

(cd "$root" && find . | LC_ALL=C sort | "$busybox" cpio -o -H newc 2>/dev/null) >"$image/initramfs.cpio"
# A second archive follows where the first has ended: on a multiple of 4 bytes, which cpio's
# blocks of 512 are.

rm -rf "${cache:?}/$name-$key"
mv "$image" "$cache/$name-$key"
old=$(readlink "$cache/$name" || true)
ln -s "$name-$key" "$tmp/link"
mv -T "$tmp/link" "$cache/$name"
case $old in "$name"-*) [ "$old" = "$name-$key" ] || rm -rf "${cache:?}/$old" ;; esac
say "the guest image is in $cache/$name-$key after $(($(date +%s) - start)) s"
echo "$cache/$name"

#!/bin/sh
# Usage: build-guest.sh [--check]
#
# Prints the directory of a Linux guest: an unmodified kernel of Debian (vmlinuz) and a small
# initramfs (initramfs.cpio) of busybox, lspci, the kernel's own VFIO modules and guest/init.
# It lies in ${DXPU_CACHE:-${XDG_CACHE_HOME:-~/.cache}/dxpu} and is rebuilt when guest/ has
# changed; the packages are fetched once. Programs are added when a VM starts, by a second
# archive behind this one. With --check nothing is built.
#
# Exit status: 0 the directory is printed; 1 something broke; 2 usage; 3 it cannot be had here.
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

files=$(dirname "$0")/../guest
key=$(cat "$files/init" "$0" | sha256sum | cut -c1-12)
current() { [ "$(readlink "$cache/guest" 2>/dev/null)" = "guest-$key" ] && [ -f "$cache/guest/initramfs.cpio" ]; }
if current; then
	echo "$cache/guest"
	exit
fi
[ $check = no ] || fail 3 "no guest image of this version; remedy: run $0"

begin guest
if current; then
	echo "$cache/guest"
	exit
fi
start=$(date +%s)

# The kernel alone, without what an installed kernel depends on; the programs with libraries.
plan() {
	kernel=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/^ *Depends: \(linux-image-.*\)/\1/p' | head -n 1)
	[ -n "$kernel" ] || return 1
	say "downloading $kernel, busybox and lspci, about 50 MB"
	apt_run apt-get -q download "$kernel" && download busybox-static pciutils
}
packages=$cache/guest-packages
if [ ! -d "$packages" ]; then
	mkdir "$tmp/debs"
	fetch "$tmp/debs" plan
	unpack "$tmp/debs" "$tmp/packages"
	mv "$tmp/packages" "$packages"
fi

busybox=$packages/usr/bin/busybox
lib=$packages/usr/lib/x86_64-linux-gnu
image=$tmp/image
root=$tmp/root
mkdir -p "$image" "$root/bin" "$root/dev" "$root/proc" "$root/sys" "$root/tmp" "$root/root" "$root/etc" \
	"$root/lib/modules" "$root/lib64" "$root/lib/x86_64-linux-gnu" "$root/usr/share/misc"

cp "$packages"/boot/vmlinuz-* "$image/vmlinuz"
for module in virt/lib/irqbypass vfio/vfio vfio/vfio_iommu_type1 vfio/pci/vfio-pci-core vfio/pci/vfio-pci \
	uio/uio uio/uio_pci_generic; do
	name=$(basename "$module")
	find "$packages/usr/lib/modules" -path "*/$module.ko.xz" -exec "$busybox" xz -dc '{}' \; >"$root/lib/modules/$name.ko"
	[ -s "$root/lib/modules/$name.ko" ] || fail 1 "the kernel package has no module $module"
done

cp "$busybox" "$root/bin/busybox"
for applet in $("$busybox" --list); do
	case $applet in busybox | lspci) ;; *) ln -s busybox "$root/bin/$applet" ;; esac
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

rm -rf "$cache/guest-$key"
mv "$image" "$cache/guest-$key"
old=$(readlink "$cache/guest" || true)
ln -s "guest-$key" "$tmp/link"
mv -T "$tmp/link" "$cache/guest"
case $old in guest-*) [ "$old" = "guest-$key" ] || rm -rf "${cache:?}/$old" ;; esac
say "the guest image is in $cache/guest-$key after $(($(date +%s) - start)) s"
echo "$cache/guest"

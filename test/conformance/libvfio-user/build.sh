#!/bin/sh
# Usage: build.sh SOURCE DIRECTORY
#
# Builds the samples of libvfio-user (https://github.com/nutanix/libvfio-user) for the tests
# with other people's device servers, and device.c with its library. SOURCE is a clone. It
# needs a C compiler and json-c (Debian: gcc libjson-c-dev).
#
# gpio-pci-idio-16 and server declare their BARs as I/O, which no link of this project
# carries, or in sizes that a PCI device cannot have, and most samples have no class code,
# so Linux assigns them no addresses. So these are built a second time, as gpio-memory,
# server-memory and shadow-memory, with a class and BARs in memory of the next possible size.
set -eu
[ $# = 2 ] || {
	sed -n 's/^# \{0,1\}//; 2,11p' "$0" >&2
	exit 2
}
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$2"
out=$(cd "$2" && pwd)
cd "$1"
objects=$(mktemp -d)
trap 'rm -rf "$objects"' EXIT
tran="migration tran tran_sock"
library="btree dma fd_cache irq libvfio-user pci pci_caps $tran"

compile() { "${CC:-cc}" -O2 -w -std=gnu99 -D_GNU_SOURCE -DSHADOW_IOEVENTFD -Iinclude -Ilib -Isamples -I/usr/include/json-c "$@"; }

# Each file of the library once: all programs share it.
for file in $library; do
	compile -c "lib/$file.c" -o "$objects/$file.o"
done

# build NAME FILE OBJECTS...
build() {
	name=$1 file=$2
	shift 2
	parts=
	for object in "$@"; do
		parts="$parts $objects/$object.o"
	done
	# shellcheck disable=SC2086 # a list
	compile "$file" $parts -ljson-c -lpthread -o "$out/$name"
}

# shellcheck disable=SC2086 # lists
for sample in gpio-pci-idio-16 server shadow_ioeventfd_server lspci; do
	build $sample samples/$sample.c $library
done
# shellcheck disable=SC2086
build client samples/client.c $tran
# shellcheck disable=SC2086
build device "$here/device.c" $library

memory='s/VFU_REGION_FLAG_RW,/VFU_REGION_FLAG_RW | VFU_REGION_FLAG_MEM,/'
class='s/vfu_pci_set_id(.*);/&\n    vfu_pci_set_class(vfu_ctx, 0xff, 0, 0);/'
# BAR 0 of the server is a time_t and BAR 1 three pages.
sizes='s/_IDX, sizeof(time_t),/_IDX, 16,/; s/bar1_size = 0x3000/bar1_size = 0x4000/'
sed "$memory; $class" samples/gpio-pci-idio-16.c >"$out/gpio-memory.c"
sed "$memory; $class; $sizes" samples/server.c >"$out/server-memory.c"
sed "$class" samples/shadow_ioeventfd_server.c >"$out/shadow-memory.c"
for sample in gpio server shadow; do
	# shellcheck disable=SC2086
	build $sample-memory "$out/$sample-memory.c" $library
done
git describe --always --dirty >"$out/version" 2>/dev/null || echo "of unknown version" >"$out/version"

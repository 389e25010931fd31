#!/bin/sh
# Usage: package.sh BINARY ARCH VERSION OUT
#
# Makes the Debian packages of one architecture from a dxpu binary: dxpu-client,
# dxpu-manager, dxpu-box and dxpu-host, and dxpu-opencl-icd if libdxpu-opencl.so is
# beside the binary. dxpu-opencl must be beside it. Needs dpkg-deb, and a dxpu of this machine's own
# architecture in bin/dxpu for the man pages and completions. SOURCE_DATE_EPOCH is the
# time of all files.
set -eu
binary=$1 arch=$2 version=$3 out=$4
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
umask 022

# finish NAME: adds control data to the tree $work/NAME and builds the package.
finish() {
	tree=$work/$1
	install -D -m 0644 LICENSE "$tree/usr/share/doc/$1/copyright"
	gzip -9nc CHANGELOG.md >"$tree/usr/share/doc/$1/changelog.gz"
	mkdir -p "$tree/DEBIAN"
	{
		printf 'Package: %s\nVersion: %s\nArchitecture: %s\n' "$1" "$version" "$arch"
		printf 'Maintainer: DxPU project <https://github.com/dxpu-project/dxpu>\n'
		printf 'Homepage: https://github.com/dxpu-project/dxpu\nPriority: optional\n'
		printf 'Installed-Size: %s\n' "$(du -sk --exclude=DEBIAN "$tree" | cut -f1)"
		sed -e "s/\${Version}/$version/" -e '/^Depends:$/d' "deploy/debian/$1/control"
	} >"$tree/DEBIAN/control"
	for script in postinst prerm postrm; do
		[ ! -e "deploy/debian/$1/$script" ] || install -m 0755 "deploy/debian/$1/$script" "$tree/DEBIAN/$script"
	done
	if [ -d "$tree/etc" ]; then
		(cd "$tree" && find etc -type f -printf '/%p\n' | sort) >"$tree/DEBIAN/conffiles"
	fi
	(cd "$tree" && find . -path ./DEBIAN -prune -o -type f -printf '%P\0' | sort -z | xargs -0 md5sum) >"$tree/DEBIAN/md5sums"
	find "$tree" -newermt "@${SOURCE_DATE_EPOCH:=0}" -print0 | xargs -0r touch --no-dereference --date="@$SOURCE_DATE_EPOCH"
	dpkg-deb --root-owner-group -Zxz --build "$tree" "$out/$1_${version}_$arch.deb" >/dev/null
}

client=$work/dxpu-client
install -D -m 0755 "$binary" "$client/usr/bin/dxpu"
mkdir -p "$client/usr/share/bash-completion/completions" "$client/usr/share/zsh/vendor-completions" "$client/usr/share/fish/vendor_completions.d"
bin/dxpu completion bash >"$client/usr/share/bash-completion/completions/dxpu"
bin/dxpu completion zsh >"$client/usr/share/zsh/vendor-completions/_dxpu"
bin/dxpu completion fish >"$client/usr/share/fish/vendor_completions.d/dxpu.fish"
bin/dxpu docs man "$client/usr/share/man/man1"
gzip -9n "$client"/usr/share/man/man1/*.1
finish dxpu-client

for role in manager box host; do
	tree=$work/dxpu-$role
	case $role in
	host) unit=dxpu-host@.service ;;
	*) unit=dxpu-$role.service ;;
	esac
	install -D -m 0644 "deploy/systemd/$unit" "$tree/usr/lib/systemd/system/$unit"
	install -D -m 0600 "deploy/config/$role.env" "$tree/etc/dxpu/$role.env"
	[ $role != box ] || install -D -m 0755 "$(dirname "$binary")/dxpu-opencl" "$tree/usr/bin/dxpu-opencl"
	[ $role = manager ] || install -D -m 0644 deploy/sysctl.d/60-dxpu.conf "$tree/usr/lib/sysctl.d/60-dxpu-$role.conf"
	finish dxpu-$role
done

driver=$(dirname "$binary")/libdxpu-opencl.so
if [ -e "$driver" ]; then
	tree=$work/dxpu-opencl-icd
	install -D -m 0644 "$driver" "$tree/usr/lib/dxpu/libdxpu-opencl.so"
	install -D -m 0644 deploy/config/dxpu.icd "$tree/etc/OpenCL/vendors/dxpu.icd"
	finish dxpu-opencl-icd
fi

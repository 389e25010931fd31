#!/bin/sh
# Usage: release.sh [OUT]
#
# Makes the files of a release in OUT (default: dist): static binaries for Linux, the
# client for macOS and Windows, Debian packages, OCI images of dxpu and of the driver for
# Kubernetes, bills of materials and checksums. The programs for OpenCL devices are in packages only: the engine of a box
# and the driver, which needs a C compiler for each architecture and the OpenCL headers.
# Where one is missing, the script says so and leaves out that package. The version is that of the tag (git describe), the time of all files that of
# the commit: two runs on one commit give the same files.
set -eu
cd "$(dirname "$0")/.."
out=$(realpath -m "${1:-dist}")
GO=${GO:-go}

describe=$(git describe --tags --match 'v[0-9]*' --dirty 2>/dev/null || echo "v0.0.0-$(git rev-list --count HEAD)-g$(git rev-parse --short=12 HEAD)$(git diff --quiet HEAD || echo -dirty)")
version=${describe#v}
# In Debian's order 1.0~rc1 < 1.0 < 1.0+3.gabc.
deb=$(printf '%s\n' "$version" | sed -E 's/-rc/~rc/; s/-([0-9]+)-g/+\1.g/; s/-dirty$/+dirty/')
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
printf 'release %s in %s\n' "$version" "$out"
rm -rf "$out"
mkdir -p "$out"

# build OS ARCH: prints the path of the binary.
build() {
	file=$out/build/$1-$2/dxpu
	[ "$1" != windows ] || file=$file.exe
	CGO_ENABLED=0 GOOS=$1 GOARCH=$2 $GO build -trimpath \
		-ldflags "-s -w -X github.com/dxpu-project/dxpu/internal/cli.releaseVersion=$version" -o "$file" ./cmd/dxpu
	printf '%s\n' "$file"
}

# kubernetes ARCH: builds the driver for Kubernetes.
kubernetes() {
	(cd deploy/kubernetes && CGO_ENABLED=0 GOOS=linux GOARCH=$1 $GO build -trimpath -ldflags "-s -w" -o "$out/build/linux-$1/dxpu-dra" ./cmd/dxpu-dra)
}

# opencl ARCH: builds the OpenCL engine and driver beside the binary.
opencl() {
	dir=$out/build/linux-$1
	CGO_ENABLED=0 GOOS=linux GOARCH=$1 $GO build -trimpath -ldflags "-s -w" -o "$dir/dxpu-opencl" ./cmd/dxpu-opencl
	case $1 in
	"$(dpkg --print-architecture)") compiler=cc packages=gcc ;;
	arm64) compiler=aarch64-linux-gnu-gcc packages=gcc-aarch64-linux-gnu ;;
	amd64) compiler=x86_64-linux-gnu-gcc packages=gcc-x86-64-linux-gnu ;;
	esac
	if ! command -v "$compiler" >/dev/null || [ ! -e /usr/include/CL/cl.h ]; then
		printf 'release: no package dxpu-opencl-icd for %s: it needs %s and the OpenCL headers; remedy: apt-get install %s opencl-headers\n' "$1" "$compiler" "$packages" >&2
		return
	fi
	# Only the headers of OpenCL, which are the same on all architectures.
	mkdir -p "$out/build/include"
	cp -r /usr/include/CL "$out/build/include/"
	make -s icd CC="$compiler" CFLAGS="-I$out/build/include -g0" LDFLAGS=-Wl,--build-id=none ICDOUT="$dir"
}

# archive OS ARCH BINARY
archive() {
	name=dxpu-$version-$1-$2
	mkdir -p "$out/build/$name"
	cp "$3" LICENSE README.md CHANGELOG.md "$out/build/$name/"
	tar -C "$out/build" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" | gzip -9n >"$out/$name.tar.gz"
}

for platform in ${PLATFORMS:-linux-amd64 linux-arm64 darwin-amd64 darwin-arm64 windows-amd64}; do
	archive "${platform%-*}" "${platform#*-}" "$(build "${platform%-*}" "${platform#*-}")"
done

# Man pages and completions come from a binary that runs here.
CGO_ENABLED=0 $GO build -trimpath -ldflags "-X github.com/dxpu-project/dxpu/internal/cli.releaseVersion=$version" -o bin/dxpu ./cmd/dxpu
images='' drivers=''
for arch in amd64 arm64; do
	binary=$out/build/linux-$arch/dxpu
	[ -e "$binary" ] || continue
	opencl "$arch"
	scripts/package.sh "$binary" "$arch" "$deb" "$out"
	kubernetes "$arch"
	images="$images $arch=$binary"
	drivers="$drivers $arch=$out/build/linux-$arch/dxpu-dra"
	$GO run ./internal/tools/release sbom "$version" "$binary" >"$out/dxpu-$version-linux-$arch.cdx.json"
	$GO run ./internal/tools/release sbom "$version" "$out/build/linux-$arch/dxpu-dra" >"$out/dxpu-dra-$version-linux-$arch.cdx.json"
done
[ -z "$images" ] || {
	# shellcheck disable=SC2086 # a list
	$GO run ./internal/tools/release image "$version" "$out/dxpu-$version-oci.tar" $images
	# shellcheck disable=SC2086 # a list
	$GO run ./internal/tools/release image "$version" "$out/dxpu-dra-$version-oci.tar" $drivers
}

rm -rf "$out/build"
(cd "$out" && sha256sum -- * >SHA256SUMS)
(cd "$out" && ls -l)

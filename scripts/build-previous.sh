#!/bin/sh
# Builds the previous minor version from this repository's history into the user's cache, once:
# tests run it beside the present one. Prints the program's path. Exit status 3: no history
# (an archive, a shallow clone).
set -eu
cd "$(dirname "$0")/.."

# The last commit of version 0.1. It moves with each minor version.
commit=3e1776fdb559d364b2ef4c493041fe2afd74a937

out=${XDG_CACHE_HOME:-$HOME/.cache}/dxpu/previous/$commit
if [ ! -x "$out/dxpu" ]; then
	if ! git cat-file -e "$commit^{commit}" 2>/dev/null; then
		echo "dxpu: the previous version is not in this clone's history (git fetch --unshallow): tests beside it are left out" >&2
		exit 3
	fi
	src=$(mktemp -d)
	trap 'rm -rf "$src"' EXIT
	git archive "$commit" | tar -x -C "$src"
	mkdir -p "$out"
	(cd "$src" && CGO_ENABLED=0 ${GO:-go} build -trimpath -o "$out/dxpu.new" ./cmd/dxpu)
	mv "$out/dxpu.new" "$out/dxpu"
fi
echo "$out/dxpu"

#!/bin/sh
# Usage: build-cluster.sh [-n] [VERSION]
#
# Builds the programs of a Kubernetes cluster from their Go modules into the user's cache, once:
# kube-apiserver, kube-scheduler, kube-controller-manager, kubelet and kubectl of VERSION (1.36.3), the etcd of this
# repository's go.mod, containerd with its shim and ctr, and the CNI plugins. Prints two directories: that of Kubernetes,
# and that of the others. Nothing is installed on the machine. An interrupted run leaves what is finished, and the
# compiler's cache: run it again. With -n it builds nothing.
#
# Exit status: 3 where the modules cannot be fetched, or with -n where something that the tests run is not built.
set -eu
build=yes
[ "${1:-}" != -n ] || {
	build=no
	shift
}
version=${1:-1.36.3}
containerd=v2.4.2
cni=v1.9.1

GO=${GO:-go}
me=$(basename "$0")
root=$(cd "$(dirname "$0")/../../.." && pwd)
cache=${DXPU_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/dxpu}/kubernetes
out=$cache/v$version
etcd=$(sed -n 's#^\tgo.etcd.io/etcd/server/v3 \(v[^ ]*\).*#\1#p' "$root/go.mod")
node=$cache/node-containerd-$containerd-cni-$cni-etcd-$etcd
say() { printf '%s: %s\n' "$me" "$*" >&2; }

if [ $build = no ]; then
	for program in kube-apiserver kube-scheduler kube-controller-manager kubelet; do
		[ -x "$out/$program" ] || exit 3
	done
	for program in etcd containerd containerd-shim-runc-v2 ctr bridge loopback host-local; do
		[ -x "$node/$program" ] || exit 3
	done
	printf '%s\n' "$out" "$node"
	exit 0
fi
mkdir -p "$out" "$node"
command -v flock >/dev/null || {
	say "flock is missing (package util-linux)"
	exit 3
}
exec 9>"$cache/.lock-build"
if ! flock -n 9; then
	say "waiting for another run to finish"
	flock 9
fi
rm -rf "$cache"/.tmp-build.* # of a run that was killed
tmp=$(mktemp -d "$cache/.tmp-build.XXXXXX")
trap 'rm -rf "$tmp"' EXIT
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM

export CGO_ENABLED=0 GOWORK=off

# build DIRECTORY OUTPUT FLAGS... PACKAGE: builds into $tmp and renames, so what has its name is whole.
build() {
	dir=$1
	output=$2
	shift 2
	[ ! -x "$output" ] || return 0
	say "building $(basename "$output")"
	(cd "$dir" && $GO build ${mod--mod=mod} -trimpath -o "$tmp/new" "$@")
	mv "$tmp/new" "$output"
}

# kubernetes_module makes a module in $tmp/k8s that requires what k8s.io/kubernetes requires. Its go.mod replaces the
# modules of the staging directory by directories that the published module lacks; here they are the published versions.
kubernetes_module() {
	src=$($GO mod download -json "k8s.io/kubernetes@v$version" | sed -n 's/^\t"Dir": "\(.*\)",*$/\1/p')
	[ -n "$src" ] || {
		say "cannot fetch the module k8s.io/kubernetes v$version: is there a way to the network, or a GOPROXY?"
		exit 3
	}
	mkdir "$tmp/k8s"
	sed -e 's#^module .*#module cluster#' \
		-e "s#=> ./staging/src/\(.*\)#=> \1 v0.${version#*.}#" "$src/go.mod" >"$tmp/k8s/go.mod"
	cp "$src/go.sum" "$tmp/k8s/go.sum"
	(cd "$tmp/k8s" && $GO mod edit -require "k8s.io/kubernetes@v$version")
}

missing=
for program in kube-apiserver kube-scheduler kube-controller-manager kubelet kubectl; do
	[ -x "$out/$program" ] || missing="$missing $program"
done
if [ -n "$missing" ]; then
	kubernetes_module
	for program in $missing; do
		build "$tmp/k8s" "$out/$program" -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$version" \
			"k8s.io/kubernetes/cmd/$program"
	done
fi

[ -x "$node/etcd" ] || (mod= && build "$root" "$node/etcd" -ldflags "-s -w" go.etcd.io/etcd/server/v3)

# module NAME PATH VERSION: an empty module in $tmp/NAME that requires PATH at VERSION.
module() {
	[ ! -d "$tmp/$1" ] || return 0
	mkdir "$tmp/$1"
	(cd "$tmp/$1" && $GO mod init cluster >"$tmp/log" 2>&1 && $GO get "$2@$3" >>"$tmp/log" 2>&1) || {
		sed 's/^/  go: /' "$tmp/log" >&2
		say "cannot fetch the module $2 $3"
		exit 3
	}
}

for program in containerd containerd-shim-runc-v2 ctr; do
	[ -x "$node/$program" ] || {
		module containerd github.com/containerd/containerd/v2 $containerd
		build "$tmp/containerd" "$node/$program" -ldflags "-s -w" "github.com/containerd/containerd/v2/cmd/$program"
	}
done
for program in main/bridge main/loopback ipam/host-local; do
	[ -x "$node/$(basename $program)" ] || {
		module cni github.com/containernetworking/plugins $cni
		build "$tmp/cni" "$node/$(basename $program)" -ldflags "-s -w" "github.com/containernetworking/plugins/plugins/$program"
	}
done
printf '%s\n' "$out" "$node"

#!/bin/sh
# Usage: arm64-test.sh [BINARY]
#
# Runs the arm64 build of dxpu under qemu-user: the proxies must run on the Arm cores of a
# DPU. A manager, a box and a host of that build make a pool, a GPU is leased, and a client
# uses it and checks every result. Without BINARY the script builds one.
#
# Exit status: 3 if qemu-user is not installed.
set -eu
cd "$(dirname "$0")/.."
me=$(basename "$0")
qemu=$(command -v qemu-aarch64-static || command -v qemu-aarch64) || {
	printf '%s: qemu-user is not installed: the arm64 build is not run; remedy: apt-get install qemu-user-static\n' "$me" >&2
	exit 3
}
work=$(mktemp -d)
pids=
clean() {
	# shellcheck disable=SC2086 # a list
	[ -z "$pids" ] || kill -KILL $pids 2>/dev/null || true
	rm -rf "$work"
}
trap clean EXIT
if [ $# -gt 0 ]; then
	cp "$1" "$work/dxpu"
else
	CGO_ENABLED=0 GOARCH=arm64 ${GO:-go} build -trimpath -o "$work/dxpu" ./cmd/dxpu
fi
dxpu() { "$qemu" "$work/dxpu" "$@"; }
daemon() {
	name=$1
	shift
	"$qemu" "$work/dxpu" "$@" >"$work/$name.log" 2>&1 &
	pids="$pids $!"
}
dxpu version
case $(dxpu version) in *linux/arm64*) ;; *) echo "$me: not an arm64 build" >&2 && exit 1 ;; esac
export DXPU_CONFIG=/dev/null/none DXPU_JOIN_TOKEN=token-for-tests
# Emulated, a node is silent for longer than a second.
daemon manager manager --listen 127.0.0.1:0 --url-file "$work/url" --heartbeat 1s --lost-after 20s
i=0
until [ -s "$work/url" ]; do
	i=$((i + 1))
	[ $i -lt 600 ] || { cat "$work/manager.log" && exit 1; }
	sleep 0.1
done
DXPU_MANAGER=$(cat "$work/url")
export DXPU_MANAGER
daemon box box --name box-a --gpus 2
# Emulated, an answer takes longer than a second while data is checked on the same processors.
daemon host host --name h1 --slots 1 --socket-dir "$work/vm" --completion-timeout 30s --access-timeout 60s
failed() {
	tail -n 20 "$work"/*.log >&2
	exit 1
}
dxpu node wait box-a h1 || failed
dxpu lease create --host h1 --wait || failed
dxpu gpu test --socket "$work/vm/slot0.sock" --quick || failed
dxpu lease delete l-1 --wait || failed
printf '%s: ok\n' "$me"

#!/bin/sh
# Usage: run.sh [--rounds N] [--limit DURATION] [PATTERN]
#
# Runs the tests with other people's programs (test/vm) and prints the table of
# docs/conformance.md: guests of Debian 12 and 13, machines, memory, faults, and, where
# DXPU_LIBVFIO_USER_SOURCE is a clone of https://github.com/nutanix/libvfio-user, its samples.
# It fetches QEMU and the guests where they are missing. PATTERN is for "go test -run".
# Each fault happens N times (default 100), but not again after DURATION, such as 10m.
#
# Messages go to standard error, events to out/conformance.json. All of it takes an hour on a
# quiet machine. Exit status: 0 all passed; 1 a check failed; 2 usage.
set -eu
rounds=100 limit=0
while [ $# -ge 2 ]; do
	case $1 in
	--rounds) rounds=$2 ;;
	--limit) limit=$2 ;;
	*) break ;;
	esac
	shift 2
done
case "$#:${1-}" in
0:) pattern=. ;;
1:-*) rounds= ;;
1:*) pattern=$1 ;;
*) rounds= ;;
esac
case $limit in
0 | [0-9]*[smh]) ;;
*) rounds= ;;
esac
case $rounds in
'' | *[!0-9]*)
	sed -n 's/^# \{0,1\}//; 2,11p' "$0" >&2
	exit 2
	;;
esac

cd "$(dirname "$0")/../.."
scripts/install-vm.sh
for guest in trixie-generic bookworm-cloud bookworm-generic; do
	scripts/build-guest.sh $guest >/dev/null || [ $? = 3 ] # the tests say that it is missing
done
mkdir -p out
if [ -n "${DXPU_LIBVFIO_USER_SOURCE-}" ]; then
	test/conformance/libvfio-user/build.sh "$DXPU_LIBVFIO_USER_SOURCE" out/libvfio-user
	DXPU_LIBVFIO_USER=$PWD/out/libvfio-user
	export DXPU_LIBVFIO_USER
fi
# The report knows whether a check failed.
DXPU_VMTEST=thorough go test -json -count=1 -timeout 24h -run "$pattern" ./test/vm -args -rounds "$rounds" -limit "$limit" >out/conformance.json || true
go run ./test/conformance <out/conformance.json

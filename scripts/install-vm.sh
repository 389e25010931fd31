#!/bin/sh
# Installs QEMU and the guest image side by side, for "make demo" and "make test". Where
# one is not available (exit status 3: no network, not a Debian) it says so and succeeds:
# the demonstration uses the embedded host, and the tests that need a VM are skipped.
set -u
here=$(dirname "$0")

"$here/build-guest.sh" >/dev/null &
guest=$!
"$here/install-qemu.sh" >/dev/null
qemu_status=$?
wait "$guest"
guest_status=$?

for status in "$qemu_status" "$guest_status"; do
	case $status in
	0) ;;
	3) echo "dxpu: no VM on this machine (the reason is above): what needs one is left out" >&2 ;;
	*) exit "$status" ;;
	esac
done

#!/bin/sh
# Usage: install-tools.sh
#
# Installs what the tests need beside Go, where it is missing: a C compiler, for the race detector and the driver libraries,
# and the programs of other projects that they compare with: tshark and
# capinfos (captures), lspci (configuration spaces), systemd-analyze (units), ip (namespaces), prometheus (rules), skopeo (images), and
# OpenCL: PoCL, its ICD loader, headers, clinfo, clpeak, PyOpenCL, the tests of CLBlast, hashcat. Uses apt, which needs root. A test without its
# program is skipped with a message.
#
# Exit status: 0 all are installed; 3 some are not available on this machine.
set -eu
me=$(basename "$0")
cannot() {
	printf '%s: %s\n' "$me" "$*" >&2
	exit 3
}

# command:package of Debian
missing() {
	for pair in gcc:gcc tshark:tshark capinfos:wireshark-common lspci:pciutils systemd-analyze:systemd ip:iproute2 clinfo:clinfo clpeak:clpeak hashcat:hashcat clblast_test_xaxpy:clblast-tests promtool:prometheus runc:runc podman:podman skopeo:skopeo sqlite3:sqlite3 groff:groff-base python3:python3; do
		command -v "${pair%%:*}" >/dev/null || printf '%s ' "${pair#*:}"
	done
	for pair in /usr/include/stdio.h:libc6-dev /etc/OpenCL/vendors/pocl.icd:pocl-opencl-icd /usr/include/CL/cl_icd.h:opencl-headers /usr/lib/python3/dist-packages/pyopencl:python3-pyopencl; do
		[ -e "${pair%%:*}" ] || printf '%s ' "${pair#*:}"
	done
}

packages=$(missing)
[ -n "$packages" ] || exit 0
command -v apt-get >/dev/null || cannot "only for Debian and its relatives; tests that need $packages are left out"
[ "$(id -u)" = 0 ] || cannot "only root can install $packages: the tests that need them are left out; remedy: sudo $0"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
printf '%s: installing %s\n' "$me" "$packages" >&2
# shellcheck disable=SC2086 # a list
if ! { apt-get -q update && DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends install $packages; } >"$log" 2>&1; then
	sed -n 's/^[EW]: /  apt: &/p' "$log" | tail -n 5 >&2
	cannot "apt could not install them: the tests that need them are left out"
fi
[ -z "$(missing)" ] || cannot "still missing after the installation: $(missing)"

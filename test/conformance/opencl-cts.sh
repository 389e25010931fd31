#!/bin/sh
# Usage: opencl-cts.sh [SUITE...]
#
# Builds suites of the OpenCL Conformance Test Suite, runs each of their tests on the OpenCL
# platform of this machine and on the same device through a pool, and prints a table of the
# verdicts and one of the differences (scripts/opencl.sh suites says more).
#
# DXPU_OPENCL_CTS_SOURCE is a clone of https://github.com/KhronosGroup/OpenCL-CTS. Its newer
# versions need newer headers than those of a distribution: DXPU_OPENCL_HEADERS and DXPU_SPIRV_HEADERS
# are clones of OpenCL-Headers and SPIRV-Headers of the same project, by default /usr/include
# and /usr. It also needs cmake, ninja, a C++ compiler and spirv-tools
# (Debian: cmake ninja-build g++ spirv-tools opencl-headers spirv-headers).
# TIMEOUT bounds each test, in seconds (60). The suites are built in out/opencl-cts.
set -eu
[ -n "${DXPU_OPENCL_CTS_SOURCE-}" ] || {
	sed -n 's/^# \{0,1\}//; 2,16p' "$0" >&2
	exit 2
}
cd "$(dirname "$0")/../.."
[ $# -gt 0 ] || set -- test_api test_events test_basic test_buffers test_profiling test_mem_host_flags \
	test_computeinfo test_compiler test_multiples test_device_partition test_printf test_svm test_subgroups
out=$PWD/out/opencl-cts
mkdir -p "$out/lib"
# The loader that programs use, under the name that a linker wants.
loader=$(/sbin/ldconfig -p | sed -n 's/.*libOpenCL\.so\.1 .*x86-64.* => //p; s/.*libOpenCL\.so\.1 .*AArch64.* => //p' | head -n 1)
[ -n "$loader" ] || {
	echo "opencl-cts.sh: this machine has no OpenCL loader; remedy: scripts/install-tools.sh" >&2
	exit 3
}
ln -sf "$loader" "$out/lib/libOpenCL.so"
{
	cmake -S "$DXPU_OPENCL_CTS_SOURCE" -B "$out/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DOPENCL_LIBRARIES=OpenCL \
		-DCL_INCLUDE_DIR="${DXPU_OPENCL_HEADERS:-/usr/include}" -DCL_LIB_DIR="$out/lib" -DSPIRV_INCLUDE_DIR="${DXPU_SPIRV_HEADERS:-/usr}"
	nice ninja -C "$out/build" "$@"
} >&2
exec scripts/opencl.sh suites "$out/build" "$@"

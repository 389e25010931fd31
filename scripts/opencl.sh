#!/bin/bash
# Usage: opencl.sh bench [ROUNDS]
#        opencl.sh first [ROUNDS]
#        opencl.sh peak [OPTION...]
#        opencl.sh programs [NAME...]
#        opencl.sh suites DIRECTORY NAME...
#
# Compares an OpenCL platform of this machine with the same device behind a pool on this
# machine: a manager, a box, a host and "dxpu run".
#
# bench prints the times of both, in turn in each round (3), beside the round trip of a
# register read and the bandwidth of DMA in the same run, and their ratios. first prints how
# long a program takes from its lease to the end of its first kernel, step by step, and the
# same with a cache of compiled programs; natively, from its start. peak prints the figures of clpeak with these
# options (all), natively and through the pool. programs runs programs of other
# projects, natively and through the pool, compares their results and prints a
# table in Markdown. A program that is not installed is left out with a message
# that says how to install it. TIMEOUT bounds each of these runs, in seconds (600).
#
# suites runs test programs of OpenCL-CTS that were built in a directory: each of their tests
# in a process of its own, natively and through the pool, TIMEOUT seconds at most (60). It
# prints a table of the verdicts, and one of the tests whose verdicts differ, or which take more than five
# times as long and five seconds more through the pool. "no end" is a test without a
# verdict in that time, "ended" one whose process ended without a verdict.
#
# Exit status: 0 all results are equal, 1 some differ, 3 there is no platform.
set -euo pipefail
cd "$(dirname "$0")/.."
me=$(basename "$0")
mode=${1:?bench, first, peak, programs or suites}
shift
[ -n "$(find /etc/OpenCL/vendors -name '*.icd' 2>/dev/null)" ] || {
	printf '%s: this machine has no OpenCL platform; remedy: scripts/install-tools.sh\n' "$me" >&2
	exit 3
}
work=$(mktemp -d)
pids=
clean() {
	# shellcheck disable=SC2086 # a list
	[ -z "$pids" ] || kill $pids 2>/dev/null || true
	wait
	rm -rf "$work"
}
trap clean EXIT
bin=${DXPU_BIN:-$work/bin}
if [ -z "${DXPU_BIN:-}" ]; then
	CGO_ENABLED=0 "${GO:-go}" build -trimpath -o "$bin/" ./cmd/dxpu ./cmd/dxpu-opencl
	make -s icd ICDOUT="$bin"
fi
export DXPU_CONFIG=$work/none DXPU_JOIN_TOKEN=token-of-a-test DXPU_SOCKET_DIR=$work/sockets HOME=$work
daemon() {
	"$bin/dxpu" "$@" --log-level error >>"$work/log" 2>&1 &
	pids="$pids $!"
}
daemon manager --listen 127.0.0.1:0 --url-file "$work/url"
for _ in $(seq 100); do
	[ -s "$work/url" ] && break
	sleep 0.1
done
DXPU_MANAGER=$(cat "$work/url")
export DXPU_MANAGER
daemon box --name b1 --opencl
daemon host --name h1 --slots 1 --socket-dir "$work/sockets"
"$bin/dxpu" node wait b1 h1 >/dev/null 2>&1
pooled() { "$bin/dxpu" run --host h1 -- "$@"; }

bench() {
	local rounds=${1:-3} i
	cc -O2 -o "$work/bench" icd/testdata/bench.c -l:libOpenCL.so.1
	for i in $(seq "$rounds"); do
		"$work/bench" | sed 's/^/native /'
		pooled "$work/bench" 2>>"$work/log" | sed 's/^/pool /'
		"$bin/dxpu" bench rtt --rounds 1 --json 2>>"$work/log" | tr -d ' \n' |
			sed -n 's/.*"vfio-userclient,remoteGPU"[^}]*"value":\([0-9.]*\).*/rtt read \1\n/p'
		"$bin/dxpu" bench dma --rounds 1 --duration 100ms --json 2>>"$work/log" | tr -d ' \n' | sed 's/}/}\n/g' |
			sed -n -e 's/.*"hosttodevice,vfio-user,sharedmemory,MPS128,MRRS512"[^}]*"value":\([0-9.]*\).*/dma write \1/p' \
				-e 's/.*"devicetohost,vfio-user,sharedmemory,MPS128,MRRS512"[^}]*"value":\([0-9.]*\).*/dma read \1/p'
	done >"$work/samples"
	awk '
		function middle(key,   n, v, i, j, t) {
			n = split(all[key], v, " ")
			for (i = 1; i <= n; i++) for (j = i + 1; j <= n; j++) if (v[j] + 0 < v[i] + 0) { t = v[i]; v[i] = v[j]; v[j] = t }
			return v[int((n + 1) / 2)]
		}
		{ all[$1 " " $2] = all[$1 " " $2] " " $3 }
		END {
			n = middle("native empty"); p = middle("pool empty"); r = middle("rtt read")
			print "| | native | pool | pool over native |\n|---|---|---|---|"
			printf "| empty kernel, enqueued and waited for | %.1f µs | %.1f µs | %.2f |\n", n, p, p / n
			a = middle("native chain"); b = middle("pool chain")
			printf "| kernel in a chain of 10,000 | %.2f µs | %.2f µs | %.2f |\n", a, b, b / a
			a = middle("native made"); b = middle("pool made")
			printf "| kernel with a buffer made for it, ten to a wait | %.1f µs | %.1f µs | %.1f |\n", a, b, b / a
			a = middle("native write"); b = middle("pool write")
			printf "| write of 64 MiB | %.2f GB/s | %.2f GB/s | %.2f |\n", a, b, b / a
			a = middle("native read"); b = middle("pool read")
			printf "| read of 64 MiB | %.2f GB/s | %.2f GB/s | %.2f |\n", a, b, b / a
			w = middle("dma write"); d = middle("dma read")
			if (w && d) printf "\nDMA of the same machine %.2f GB/s to the device, %.2f GB/s to the host: copies / DMA %.2f and %.2f (goal 1)\n", w, d, middle("pool write") / w, b / d
			if (r) printf "\nRegister read %.1f µs; native + 1.3 register reads %.1f µs; (pool - native) / register read %.2f (goal 1.3)\n", r, n + 1.3 * r, (p - n) / r
		}' "$work/samples"
}

first() {
	local rounds=${1:-5} i
	cc -O2 -o "$work/first" icd/testdata/first.c -l:libOpenCL.so.1
	DXPU_CL_CACHE=$work/cache pooled "$work/first" >/dev/null 2>>"$work/log"
	for i in $(seq "$rounds"); do
		"$work/first" "$(date +%s%N)" | sed 's/^/native /'
		sleep 3 # until the box has the next process ready
		pooled "$work/first" 2>>"$work/log" | sed 's/^/pool /'
		sleep 3
		DXPU_CL_CACHE=$work/cache pooled "$work/first" 2>>"$work/log" | sed 's/^/cache /'
	done >"$work/samples"
	echo "| ms | native | pool | pool with a cache |"
	echo "|---|---|---|---|"
	for i in program platform context build kernel first; do
		printf '| %s |' "$i"
		for column in native pool cache; do
			awk -v c="$column" -v r="$i" '$1 == c && $2 == r { print $3 }' "$work/samples" | sort -n |
				awk '{ v[NR] = $1 } END { printf " %.1f |", v[int((NR + 1) / 2)] }'
		done
		echo
	done
}

# figures prints what clpeak measures, a line for each: section, name, figure.
figures() { awk '/^ *[A-Z][^:]*$|^ *Kernel launch latency/ { section = $0; gsub(/^ +| +$/, "", section); sub(/ *:.*/, "", section) }
	/: *[0-9.]+/ { name = $0; sub(/ *:.*/, "", name); gsub(/^ +/, "", name); value = $0; sub(/.*: */, "", value); sub(/ .*/, "", value); if (section) print section "|" name "|" value }'; }

peak() {
	local program=${CLPEAK:-clpeak}
	timeout "${TIMEOUT:-600}" "$program" "$@" 2>>"$work/log" | figures >"$work/native"
	pooled timeout "${TIMEOUT:-600}" "$program" "$@" 2>>"$work/log" | figures >"$work/pool"
	echo "| clpeak | | native | pool | pool over native |"
	echo "|---|---|---|---|---|"
	awk -F'|' 'NR == FNR { pool[$1 "|" $2] = $3; next }
		{ key = $1 "|" $2; r = "-"; if ((key in pool) && $3 > 0) r = sprintf("%.3f", pool[key] / $3); printf "| %s | %s | %s | %s | %s |\n", $1, $2, $3, (key in pool) ? pool[key] : "-", r }' "$work/pool" "$work/native"
}

# Each program prints what must be equal: without names of platforms, times and rates.
program_clinfo() { clinfo --raw | grep -E 'CL_DEVICE_(TYPE|MAX_COMPUTE_UNITS|MAX_WORK_GROUP_SIZE|NAME|LOCAL_MEM_SIZE) '| sed 's/^\S* *//'; }
program_clpeak() { clpeak --compute-sp --compute-integer | sed -n 's/^ *\([a-z0-9]*\) *: [0-9.]*$/\1/p'; }
program_pyopencl() {
	"${PYTHON:-/usr/bin/python3}" - <<-'PY'
		import numpy as np, pyopencl as cl, pyopencl.array as ca, pyopencl.clmath as cm
		from pyopencl.reduction import ReductionKernel
		from pyopencl.scan import InclusiveScanKernel
		from pyopencl.algorithm import RadixSort
		ctx = cl.Context(cl.get_platforms()[0].get_devices())
		q = cl.CommandQueue(ctx, properties=cl.command_queue_properties.PROFILING_ENABLE)
		a = ca.arange(q, 100000, dtype=np.float32)
		print(float(ca.sum(a).get()), float(ca.dot(a, a).get()), float(ca.max(a).get()))
		print(np.allclose(cm.sin(a).get(), np.sin(a.get()), atol=1e-4), np.array_equal((2 * a + 1).get(), 2 * a.get() + 1))
		r = ReductionKernel(ctx, np.float32, neutral="0", reduce_expr="a+b", map_expr="x[i]*x[i]", arguments="__global float *x")
		print(float(r(a).get()))
		s = ca.to_device(q, np.ones(50000, np.int32))
		InclusiveScanKernel(ctx, np.int32, "a+b", neutral="0")(s)
		print(np.array_equal(s.get(), np.arange(1, 50001)))
		v = np.random.RandomState(1).randint(0, 1 << 30, 20000).astype(np.int32)
		(o,), _ = RadixSort(ctx, "int *ary", key_expr="ary[i]", sort_arg_names=["ary"])(ca.to_device(q, v), key_bits=30)
		print(np.array_equal(o.get(), np.sort(v)))
		e = cl.UserEvent(ctx)
		m = cl.Buffer(ctx, cl.mem_flags.READ_WRITE, 4096)
		f = cl.enqueue_fill_buffer(q, m, np.int32(7), 0, 4096, wait_for=[e])
		e.set_status(cl.command_execution_status.COMPLETE)
		h, _ = cl.enqueue_map_buffer(q, m, cl.map_flags.READ, 0, (1024,), np.int32, wait_for=[f])
		print(int(h.sum()), f.command_execution_status == cl.command_execution_status.COMPLETE)
	PY
}
program_clblast() {
	local t
	for t in xaxpy xdot xgemv xgemm xtrsm; do
		"clblast_test_$t" -verbose 0 2>&1 | sed 's/\x1b\[[0-9;]*m//g' | grep -E 'test\(s\) (passed|failed|skipped)|Completed' | sed "s/^/$t /"
	done
}
program_hashcat() {
	printf '5d41402abc4b2a76b9719d911017c592\n' >"$work/hash"
	printf 'a\nhello\nworld\n' >"$work/words"
	rm -f "$work/found"
	hashcat -m 0 -a 0 --force --backend-ignore-cuda --potfile-disable -o "$work/found" --outfile-format 2 "$work/hash" "$work/words" >>"$work/log" 2>&1
	cat "$work/found"
}
program_opencv() { OPENCV_OPENCL_DEVICE=${OPENCV_OPENCL_DEVICE:-:CPU:} "${PYTHON:-/usr/bin/python3}" icd/testdata/opencv.py; }
# The digests of ten frames.
program_ffmpeg() {
	local f format
	for f in avgblur_opencl=sizeX=5 boxblur_opencl=2:1 dilation_opencl erosion_opencl nlmeans_opencl=s=4:p=3:r=5 prewitt_opencl \
		sobel_opencl transpose_opencl=1 unsharp_opencl=7:7:1.5 deshake_opencl colorkey_opencl=red:0.3:0.1 pad_opencl=400:300:20:20; do
		format=yuv420p
		case $f in colorkey* | pad*) format=rgba ;; esac
		echo "$f"
		ffmpeg -hide_banner -loglevel error -nostdin -init_hw_device opencl=cl -filter_hw_device cl -f lavfi -i testsrc2=size=320x240:rate=10:duration=1 \
			-vf "format=$format,hwupload,$f,hwdownload,format=$format" -f framemd5 - | grep -v '^#'
	done
}
# The forces of the same molecules, by OpenCL and by two other ways.
program_openmm() {
	"${PYTHON:-/usr/bin/python3}" -m openmm.testInstallation 2>/dev/null | sed -n -e 's/.*OpenCL.*Success.*/OpenCL/p' -e '/Successfully/s/.*- //p' -e '/tolerance/p'
}
program_clfft() {
	local a
	for a in "-x 1024" "-x 4096 -o" "-x 64 -y 64" "-x 32 -y 16 -z 8" "-x 1000 -y 3" "-x 8192 --double" "-x 2187" "-x 1024 -b 16 -o --inv"; do
		# shellcheck disable=SC2086 # a list
		echo "$a: $(clFFT-client -a $a 2>/dev/null | grep -oE 'PASS|FAIL')"
	done
}
needs() {
	case $1 in
	opencv) "${PYTHON:-/usr/bin/python3}" -c 'import cv2' 2>/dev/null ;;
	openmm) "${PYTHON:-/usr/bin/python3}" -c 'import openmm' 2>/dev/null ;;
	clfft) command -v clFFT-client >/dev/null ;;
	pyopencl) "${PYTHON:-/usr/bin/python3}" -c 'import pyopencl' 2>/dev/null ;;
	clblast) command -v clblast_test_xaxpy >/dev/null ;;
	*) command -v "$1" >/dev/null ;;
	esac
}

# remedy NAME says how to install a program. install-tools.sh leaves out the large ones, which no test needs.
remedy() {
	case $1 in
	opencv) echo "apt install python3-opencv" ;;
	ffmpeg) echo "apt install ffmpeg" ;;
	openmm) echo "apt install python3-simtk libopenmm-plugins" ;;
	clfft) echo "apt install clfft-client" ;;
	*) echo scripts/install-tools.sh ;;
	esac
}

# ended SIDE notes after a run that failed whether it ran out of time or ended with an error.
ended() {
	if [ $? -eq 124 ]; then
		late="${late:+$late, }$1"
	else
		echo "$1: failed" >>"$work/$1"
	fi
}

programs() {
	local name bad=0 result late
	[ $# -gt 0 ] || set -- clinfo clpeak pyopencl clblast hashcat opencv ffmpeg openmm clfft
	export -f program_clinfo program_clpeak program_pyopencl program_clblast program_hashcat
	export -f program_opencv program_ffmpeg program_openmm program_clfft
	export work
	echo "| program | lines | result |"
	echo "|---|---|---|"
	for name; do
		needs "$name" || {
			printf '%s: %s is not installed and left out; remedy: %s\n' "$me" "$name" "$(remedy "$name")" >&2
			continue
		}
		late=
		timeout "${TIMEOUT:-600}" bash -c "program_$name" >"$work/native" 2>>"$work/log" || ended native
		timeout "${TIMEOUT:-600}" "$bin/dxpu" run --host h1 -- bash -c "program_$name" >"$work/pool" 2>>"$work/log" || ended pool
		result=equal
		if [ -n "$late" ]; then
			result="not compared: no end within ${TIMEOUT:-600} s ($late)"
			bad=1
		elif ! { [ -s "$work/native" ] && cmp -s "$work/native" "$work/pool"; }; then
			result=different
			bad=1
			diff "$work/native" "$work/pool" >&2 || true
		fi
		echo "| $name | $(wc -l <"$work/native") | $result |"
	done
	return $bad
}

# verdict PROGRAM TEST COMMAND... runs a test of OpenCL-CTS and prints its verdict and its
# time in milliseconds. COMMAND is before the program and its argument.
verdict() {
	local program=$1 name=$2 word code=0 start
	shift 2
	start=$(date +%s%N)
	(
		cd "$(dirname "$program")"
		CL_DEVICE_TYPE=${CL_DEVICE_TYPE:-CL_DEVICE_TYPE_CPU} CL_WIMPY_MODE=1 timeout -k 5 "${TIMEOUT:-60}" "$@" "$program" "$name"
	) >"$work/output" 2>>"$work/log" </dev/null || code=$?
	word=$(sed -En "s/^$name (passed|FAILED|skipped|test not supported)$/\1/p" "$work/output" | tail -n 1)
	case $word:$code in
	*:124 | *:137) word="no end" ;;
	FAILED:*) word=fail ;;
	passed:0) word=pass ;;
	skipped:* | test*:*) word=skipped ;;
	*) word=ended ;;
	esac
	printf '%s\t%d\n' "$word" $((($(date +%s%N) - start) / 1000000))
}

suites() {
	local dir=${1:?directory} name program test
	shift
	: >"$work/verdicts"
	for name; do
		program=$(find "$(realpath "$dir")" -name "$name" -type f -perm -u+x | head -n 1)
		[ -n "$program" ] || {
			printf '%s: there is no %s in %s: it is left out\n' "$me" "$name" "$dir" >&2
			continue
		}
		"$program" --list >"$work/tests" 2>>"$work/log" || true
		sed -En 's/^\t([A-Za-z0-9_]+)$/\1/p' "$work/tests" | while read -r test; do
			printf '%s\t%s\t%s\t%s\n' "$name" "$test" "$(verdict "$program" "$test" env)" \
				"$(verdict "$program" "$test" "$bin/dxpu" run --host h1 --)" | tee -a "$work/verdicts" >&2
		done
	done
	awk -F'\t' '
		function tally(n,   i, out) {
			for (i = 1; i <= 5; i++) if (n[words[i]]) out = out (out ? ", " : "") n[words[i]] " " words[i]
			return out
		}
		BEGIN { split("pass,skipped,fail,ended,no end", words, ",") }
		$1 != last { if (last) row(); last = $1; split("", a); split("", b); d = 0 }
		{ a[$3]++; b[$5]++ }
		$3 != $5 || ($6 > 5 * $4 && $6 > $4 + 5000) {
			d++
			other[++others] = sprintf("| `%s` | `%s` | %s, %.1f s | %s, %.1f s |", $1, $2, $3, $4 / 1000, $5, $6 / 1000)
		}
		function row() { rows[++count] = sprintf("| `%s` | %s | %s | %d |", last, tally(a), tally(b), d) }
		END {
			if (last) row()
			print "| suite | natively | through the pool | different |\n|---|---|---|---|"
			for (i = 1; i <= count; i++) print rows[i]
			if (!others) exit
			print "\n| suite | test | natively | through the pool |\n|---|---|---|---|"
			for (i = 1; i <= others; i++) print other[i]
			exit 1
		}' "$work/verdicts"
}

case $mode in
bench | first | peak | programs | suites) "$mode" "$@" ;;
*)
	printf '%s: %s: want bench, first, peak, programs or suites\n' "$me" "$mode" >&2
	exit 2
	;;
esac

package predict_test

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/model/trace"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// checkPredictions replays what a reader made of a file, with both sets of costs: no figure is
// negative, infinite or not a number, none is above 100 %, and in the recorded order a longer
// round trip is never better.
func checkPredictions(t *testing.T, w *workload.Workload) {
	t.Helper()
	p := predict.NewPlan(w)
	sane := func(what string, v float64) {
		if math.IsNaN(v) || v < 0 || v > 1+1e-9 {
			t.Fatalf("%s: %v: want 0 to 1", what, v)
		}
	}
	for _, costs := range []perf.Costs{perf.PaperCosts(), paper.HardwareCosts()} {
		for _, recorded := range []bool{true, false} {
			last := 1.0
			for _, rtt := range []time.Duration{perf.NativeRTT, 1201, 6800 * time.Nanosecond, 50 * time.Microsecond, time.Second} {
				s := predict.Setting{NativeRTT: perf.NativeRTT, RTT: rtt, Costs: costs, Requester: perf.V100, RecordedOrder: recorded}
				r, err := p.Run(s)
				if err != nil {
					t.Fatal(err)
				}
				st := p.Stats(p.InFlight(s))
				what := fmt.Sprintf("%v, recorded order %v", rtt, recorded)
				sane(what, r.Relative)
				sane(what+", additive", r.Additive.Relative)
				sane(what+", busy", st.Utilisation())
				if r.Charged < 0 || r.Exposed < 0 && recorded || r.Covered.Recorded < 0 || r.Covered.Replayed < 0 || st.GPUTime < 0 || st.Busy < 0 {
					t.Fatalf("%s: %+v\n%+v", what, r, st)
				}
				if rtt == perf.NativeRTT && r.Relative != 1 {
					t.Fatalf("%s: %v without added latency", what, r.Relative)
				}
				// Of a trace with steps, time may move to before the first one, or into those
				// without GPU work, which do not count.
				if recorded && len(r.Steps) == 0 && r.Relative > last {
					t.Fatalf("%s: %v after %v", what, r.Relative, last)
				}
				last = r.Relative
				g, err := p.Range(s, &r, &st)
				if err != nil {
					t.Fatal(err)
				}
				sane(what+", low", g.Low)
				sane(what+", high", g.High)
				if g.Low > g.High {
					t.Fatalf("%s: from %v to %v", what, g.Low, g.High)
				}
			}
		}
	}
}

// mostFuzzed bounds the events of a fuzzed trace, and so the time of a try.
const mostFuzzed = 2000

func FuzzReadAndPredict(f *testing.F) {
	for _, name := range []string{"2021.json", "2025.json"} {
		b, err := os.ReadFile("../trace/testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte(kinetoOf([]byte("several threads and streams, and waits"))))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := trace.ReadKineto(bytes.NewReader(b), trace.Options{})
		if err != nil || len(w.Ops)+len(w.Calls) > mostFuzzed {
			return
		}
		checkPredictions(t, w)
	})
}

// FuzzPredict makes a trace of any bytes, so that all of them have work and waits.
func FuzzPredict(f *testing.F) {
	for seed := range 40 {
		b := make([]byte, 120)
		for i := range b {
			b[i] = byte(seed*31 + i*i*(seed+7) + i>>3)
		}
		f.Add(b)
	}
	// An order of threads, and a step without work, made these faster than recorded.
	f.Add([]byte("\x9fA001000  00X000Y0)0Z00AX00A0000ax0AX00A0000Z0\xf30"))
	f.Add([]byte(" x000070a 80!0001000\xf40000000u1\xf500"))
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := trace.ReadKineto(strings.NewReader(kinetoOf(b[:min(len(b), mostFuzzed)])), trace.Options{})
		if err == nil {
			checkPredictions(t, w)
		}
	})
}

// kinetoOf makes a trace of the PyTorch profiler: four bytes are a call, with an operation or a
// wait. Calls overlap, operations begin before their launch, and numbers occur twice.
func kinetoOf(b []byte) string {
	var out strings.Builder
	at, sep := 1000, ""
	end := [4]int{}
	event := func(cat, name string, ts, dur, pid, tid int, args string) {
		fmt.Fprintf(&out, `%s{"ph":"X","cat":%q,"name":%q,"ts":%d,"dur":%d,"pid":%d,"tid":%d,"args":{%s}}`, sep, cat, name, ts, dur, pid, tid, args)
		sep = ","
	}
	out.WriteString(`{"traceEvents":[`)
	for n := 0; len(b) >= 4; n, b = n+1, b[4:] {
		thread, stream, dur := int(b[0]&3), int(b[0]>>2&3), int(b[1])
		at += int(b[2])
		if b[2] >= 240 {
			at -= 300
		}
		stays := at + int(b[3]&63)
		number := fmt.Sprintf(`"correlation":%d`, n+1-int(b[3]>>7&b[2]>>6&1))
		gpu := fmt.Sprintf(`%s,"stream":%d,"device":%d`, number, stream+7, b[0]>>7)
		switch start := max(stays, end[stream]); b[0] >> 4 & 7 {
		case 0:
			event("cuda_runtime", "cudaDeviceSynchronize", at, dur, 1, thread, number)
		case 1:
			event("cuda_runtime", "cudaStreamSynchronize", at, dur, 1, thread, number)
		case 2:
			event("cuda_runtime", "cudaMemcpyAsync", at, int(b[3]&63), 1, thread, number)
			event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", start, dur, 0, stream+7, gpu+fmt.Sprintf(`,"bytes":%d`, dur*int(b[3])*100))
			end[stream] = start + dur
		case 3:
			event("user_annotation", fmt.Sprintf("ProfilerStep#%d", n), at, dur*4, 1, thread, "")
		case 4:
			event("cuda_runtime", "cudaStreamWaitEvent", at, 1, 1, thread, number)
			event("cuda_runtime", "cudaEventRecord", at+1, 1, 1, thread, number)
		default:
			event("cuda_runtime", "cudaLaunchKernel", at, int(b[3]&63), 1, thread, number)
			event("kernel", "k", start, dur, 0, stream+7, gpu)
			end[stream] = start + dur
		}
	}
	out.WriteString(`]}`)
	return out.String()
}

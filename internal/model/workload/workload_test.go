package workload

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const us = time.Microsecond

func nowhere() string { return "nowhere" }

func TestClassify(t *testing.T) {
	for _, tc := range []struct {
		name string
		want Function
		keep bool
	}{
		{"cudaLaunchKernel", Function{call: Launch}, true},
		{"cudaLaunchKernel_v7000", Function{call: Launch}, true},
		{"cudaLaunchKernelExC_v11060", Function{call: Launch}, true},
		{"cuLaunchKernel", Function{call: Launch}, true},
		{"cuLaunchKernelEx_ptsz", Function{call: Launch}, true},
		{"cudaLaunchCooperativeKernel_ptsz_v9000", Function{call: Launch}, true},
		{"hipExtModuleLaunchKernel", Function{call: Launch}, true},
		{"cudaLaunchHostFunc", Function{call: Other}, true},
		{"cudaGraphLaunch_v10000", Function{call: GraphLaunch}, true},
		{"cudaGraphInstantiate", Function{call: Other}, true},
		{"cudaMemcpyAsync", Function{call: CopyCall}, true},
		{"cuMemcpyHtoDAsync_v2", Function{call: CopyCall}, true},
		{"cudaMemcpy_v3020", Function{call: SyncCopy}, true},
		{"cuMemcpyDtoH_v2", Function{call: SyncCopy}, true},
		{"hipMemcpyWithStream", Function{call: SyncCopy}, true},
		{"cudaMemsetAsync", Function{call: MemsetCall}, true},
		{"cuMemsetD32Async", Function{call: MemsetCall}, true},
		{"cudaStreamSynchronize_v3020", Function{call: StreamSync}, true},
		{"cudaEventSynchronize", Function{call: StreamSync}, true},
		{"cudaDeviceSynchronize", Function{call: DeviceSync}, true},
		{"cuCtxSynchronize", Function{call: DeviceSync}, true},
		{"cudaMalloc", Function{call: Memory}, true},
		{"cudaFree", Function{call: Memory}, true},
		{"cuMemFree_v2", Function{call: Memory}, true},
		{"cudaHostAlloc", Function{call: Memory}, true},
		{"cudaStreamIsCapturing", Function{call: Other}, false},
		{"cudaEventQuery", Function{role: asks}, true},
		{"cudaEventQuery_v3020", Function{role: asks}, true},
		{"cuStreamQuery", Function{role: asks}, true},
		{"hipEventQuery", Function{role: asks}, true},
		{"cudaEventQueryLater", Function{call: Other}, false},
		{"EventQuery", Function{call: Other}, true},
		{"cudaEventRecord", Function{role: marks, mark: EventRecord}, true},
		{"cudaEventRecordWithFlags_v11010", Function{role: marks, mark: EventRecord}, true},
		{"cudaStreamWaitEvent", Function{role: marks, mark: StreamWait}, true},
		{"cudaGetDevice", Function{call: Other}, false},
		{"", Function{call: Other}, true},
		{"cuda", Function{call: Other}, true},
		{"_v", Function{call: Other}, true},
	} {
		if got, keep := Classify(tc.name); got != tc.want || keep != tc.keep {
			t.Errorf("%q: %+v, %v; want %+v, %v", tc.name, got, keep, tc.want, tc.keep)
		}
	}
}

func TestClassifyCopy(t *testing.T) {
	for name, want := range map[string]OpKind{
		"Memcpy HtoD (Pageable -> Device)": CopyHtoD,
		"Memcpy DtoH (Device -> Pinned)":   CopyDtoH,
		"Memcpy DtoD (Device -> Device)":   CopyDtoD,
		"Memcpy PtoP (Device -> Device)":   CopyPtoP,
		"CopyHostToDevice":                 CopyHtoD,
		"Memcpy":                           CopyOther,
	} {
		if got := ClassifyCopy(name); got != want {
			t.Errorf("%q: %v, want %v", name, got, want)
		}
	}
}

// build makes a builder with one stream and one thread.
func build() (b *Builder, stream, thread int32) {
	b = NewBuilder("test")
	stream, _ = b.Stream(Stream{Device: 0, ID: 7})
	thread, _ = b.Thread(Thread{ID: 1})
	return b, stream, thread
}

func TestJoin(t *testing.T) {
	b, st, th := build()
	at := 1000 * time.Second
	b.AddCall(Call{Start: at, Dur: 5 * us, Corr: 1, Thread: th, Kind: Launch}, nowhere)
	b.AddCall(Call{Start: at + 10*us, Dur: 5 * us, Corr: 2, Thread: th, Kind: GraphLaunch}, nowhere)
	b.AddCall(Call{Start: at + 30*us, Dur: 5 * us, Corr: 1, Thread: th, Kind: Launch}, nowhere) // reuses the number
	b.AddOp(Op{Start: at + 40*us, Dur: us, Corr: 1, Stream: st}, nowhere)
	b.AddOp(Op{Start: at + 6*us, Dur: us, Corr: 1, Stream: st}, nowhere)
	b.AddOp(Op{Start: at + 16*us, Dur: us, Corr: 2, Stream: st}, nowhere)
	b.AddOp(Op{Start: at + 9*us, Dur: us, Corr: 2, Stream: st}, nowhere) // before its own launch
	b.AddOp(Op{Start: at + 50*us, Dur: us, Corr: 9, Stream: st}, nowhere)
	b.AddOp(Op{Start: at + 51*us, Dur: us, Stream: st}, nowhere)
	w, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	var calls []int32
	var kinds []OpKind
	for _, op := range w.Ops {
		calls = append(calls, op.Call)
		kinds = append(kinds, op.Kind)
	}
	if d := cmp.Diff([]int32{0, 1, 1, 2, None, None}, calls); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]OpKind{Kernel, GraphKernel, GraphKernel, Kernel, Kernel, Kernel}, kinds); d != "" {
		t.Error(d)
	}
	if w.Report.Orphans != 2 || w.Report.Skewed != 1 {
		t.Errorf("%d orphans, %d skewed; want 2, 1", w.Report.Orphans, w.Report.Skewed)
	}
	if w.Ops[0].Start != 6*us || w.Span() != 52*us {
		t.Errorf("first operation at %v, span %v", w.Ops[0].Start, w.Span())
	}
}

// A driver call inside a runtime call is merged into it; an overlap by rounding is
// trimmed.
func TestCallsDoNotNestOrOverlap(t *testing.T) {
	b, st, th := build()
	b.AddCall(Call{Start: 0, Dur: 10 * us, Corr: 1, Thread: th, Kind: Launch}, nowhere)
	b.AddCall(Call{Start: 2 * us, Dur: 5 * us, Corr: 2, Thread: th, Kind: Launch}, nowhere)
	b.AddCall(Call{Start: 9 * us, Dur: 5 * us, Corr: 3, Thread: th, Kind: Launch}, nowhere)
	b.AddOp(Op{Start: 12 * us, Dur: us, Corr: 2, Stream: st}, nowhere)
	w, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if len(w.Calls) != 2 || w.Calls[0].End() != 9*us || w.Calls[1].Start != 9*us {
		t.Errorf("calls %+v", w.Calls)
	}
	if w.Ops[0].Call != 0 {
		t.Errorf("the operation belongs to call %d, want the outer one", w.Ops[0].Call)
	}
}

func TestDamageIsCounted(t *testing.T) {
	b, st, th := build()
	b.AddOp(Op{Start: time.Second, Dur: us, Stream: st}, nowhere)
	b.AddOp(Op{Start: time.Second, Dur: -1, Stream: st}, nowhere)
	b.AddOp(Op{Start: time.Second, Dur: MaxTime + 1, Stream: st}, nowhere)
	b.AddOp(Op{Start: time.Second + 2*MaxTime, Dur: 1, Stream: st}, nowhere)
	b.AddCall(Call{Start: -1 << 62, Dur: 1, Thread: th}, nowhere)
	b.AddOp(Op{Start: time.Second, Dur: us, Stream: st}, nowhere)
	w, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if got := w.Report.Dropped(); got != 4 || len(w.Ops) != 2 || len(w.Calls) != 0 {
		t.Errorf("%d dropped, %d operations, %d calls; want 4, 2, 0: %s", got, len(w.Ops), len(w.Calls), w.Report.Warning())
	}
	if !strings.Contains(w.Report.Warning(), "4 of ") || !strings.Contains(w.Report.Warning(), "nowhere") {
		t.Errorf("warning %q", w.Report.Warning())
	}
}

func TestNoGPUOperation(t *testing.T) {
	b, _, th := build()
	b.AddCall(Call{Thread: th}, nowhere)
	b.Report.Drop("broken", "here")
	if _, err := b.Build(); err == nil || !strings.Contains(err.Error(), "no kernel") || !strings.Contains(err.Error(), "1 broken") {
		t.Errorf("error %v", err)
	}
}

func TestNamesAreCleanAndBounded(t *testing.T) {
	b, _, _ := build()
	bad := b.Name([]byte("a\xffb"))
	if got := b.w.Names[bad]; got != "a\uFFFDb" {
		t.Errorf("%q", got)
	}
	if again := b.Name([]byte("a\xffb")); again != bad {
		t.Error("the same name has two numbers")
	}
	long := b.Name([]byte(strings.Repeat("x", maxName+1)))
	if got := len(b.w.Names[long]); got != maxName {
		t.Errorf("a name of %d bytes", got)
	}
	b.nameBytes = MaxNameBytes - 5
	if b.Name([]byte("five5")) == 0 || b.Name([]byte("six")) != 0 {
		t.Error("the limit on names is not exact")
	}
	if len(b.Report.Notes) != 1 {
		t.Errorf("notes %q", b.Report.Notes)
	}
}

func TestStepsAreNotDoubled(t *testing.T) {
	b, st, th := build()
	b.AddOp(Op{Start: 0, Dur: us, Stream: st}, nowhere)
	for range 2 {
		b.AddStep(Step{Name: "ProfilerStep#1", Thread: th, Start: 0, Dur: us}, nowhere)
	}
	w, err := b.Build()
	if err != nil || len(w.Steps) != 1 {
		t.Errorf("%d steps, %v", len(w.Steps), err)
	}
}

func TestStrings(t *testing.T) {
	if Kernel.String() != "kernel" || Memset.String() != "memset" || OpKind(99).String() != "OpKind(99)" {
		t.Error("OpKind")
	}
	if Launch.String() != "launch" || Other.String() != "other" || CallKind(99).String() != "CallKind(99)" {
		t.Error("CallKind")
	}
}

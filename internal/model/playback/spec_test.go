package playback_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
	"github.com/dxpu-project/dxpu/internal/model/playback"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// oneCopy is a workload of one copy to the device.
func oneCopy(t *testing.T, bytes int64, dur time.Duration) *predict.Plan {
	r := record(t)
	r.op(workload.CopyHtoD, r.call(workload.CopyCall, 1, 0, 5*us), 7, 6*us, dur, bytes)
	return r.plan()
}

func TestSpecReady(t *testing.T) {
	good := playback.Spec{NativeRTT: perf.NativeRTT, RTT: paper.RTTLong, Requester: perf.V100}
	for _, tt := range []struct {
		name     string
		change   func(s *playback.Spec)
		bytes    int64
		dur      time.Duration
		tags     int
		note     string
		notValid string
	}{
		{name: "slow copies", bytes: 1 << 20, dur: 100 * us, tags: 140},
		{name: "fast copies", bytes: 1 << 20, dur: 40 * us, tags: 246, note: "246 tags instead of 140"},
		{name: "faster than any", bytes: 1 << 28, dur: 1000 * us, tags: 1024, note: "even need"},
		{name: "no round trip", change: func(s *playback.Spec) { s.NativeRTT = 0 }, notValid: "native"},
		{name: "below native", change: func(s *playback.Spec) { s.RTT = us }, notValid: "native"},
		{name: "seconds", change: func(s *playback.Spec) { s.RTT = 2 * time.Second }, notValid: "1s"},
		{name: "MRRS", change: func(s *playback.Spec) { s.Requester.MRRS = 100 }, notValid: "Max_Read_Request_Size"},
		{name: "tags", change: func(s *playback.Spec) { s.Requester.Tags = 2000 }, notValid: "1024"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := good
			if tt.change != nil {
				tt.change(&s)
			}
			got, note, err := s.Ready(oneCopy(t, max(tt.bytes, 1), max(tt.dur, us)))
			if tt.notValid != "" {
				if err == nil || !strings.Contains(err.Error(), tt.notValid) {
					t.Errorf("error %v, want one with %q", err, tt.notValid)
				}
				return
			}
			if err != nil || got.Requester.Tags != tt.tags || !strings.Contains(note, tt.note) || (note == "") != (tt.note == "") {
				t.Errorf("%d tags, note %q, %v", got.Requester.Tags, note, err)
			}
		})
	}
}

func TestVirtualRefuses(t *testing.T) {
	s := playback.Spec{NativeRTT: perf.NativeRTT, RTT: perf.NativeRTT, Requester: perf.V100}
	if _, err := playback.Virtual(t.Context(), oneCopy(t, 1<<40, time.Second), s); !errors.Is(err, playback.ErrCopy) {
		t.Errorf("a terabyte: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := playback.Virtual(ctx, kernelsOnly(t), s); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// More streams than queues share one; nothing is lost.
func TestManyStreams(t *testing.T) {
	r := record(t)
	for i := range 120 {
		at := time.Duration(i) * 10 * us
		r.op(workload.Kernel, r.call(workload.Launch, 1, at, 5*us), uint64(i%12), at+6*us, 50*us, 0)
	}
	p := r.plan()
	got := run(t, p, perf.NativeRTT)
	if off := got.Relative; off < 0.5 || off > 1.01 {
		t.Errorf("relative performance %v", off)
	}
}

// An operation that overlaps the one before it on its stream is in time.
func TestOverlap(t *testing.T) {
	r := record(t)
	for i := range 20 {
		at := time.Duration(i) * 30 * us
		r.op(workload.Kernel, r.call(workload.GraphLaunch, 1, at, 5*us), 7, at+6*us, 40*us, 0)
	}
	r.call(workload.DeviceSync, 1, 700*us, 10*us)
	if got := run(t, r.plan(), perf.NativeRTT); got.Relative < 0.99 || got.Relative > 1.01 {
		t.Errorf("relative performance %v", got.Relative)
	}
}

func TestCut(t *testing.T) {
	w := mixed(t).Workload()
	ends := func(i int) time.Duration { return w.Steps[i].End() }
	for _, tt := range []struct {
		name  string
		steps int
		limit time.Duration
		want  int // steps that stay
		until time.Duration
	}{
		{"nothing asked", 0, 0, 6, w.Span()},
		{"more steps than there are", 7, 0, 6, w.Span()},
		{"two steps", 2, 0, 2, ends(1)},
		{"a limit within the fourth step", 0, ends(2) + us, 3, ends(2)},
		{"a limit within the first step", 0, 100 * us, 0, 100 * us},
		{"both", 3, ends(0), 1, ends(0)},
		{"a limit before the first operation", 0, 1, 0, 1},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := playback.Cut(w, tt.steps, tt.limit)
			if len(got.Steps) != tt.want {
				t.Errorf("%d steps, want %d", len(got.Steps), tt.want)
			}
			for i := range got.Ops {
				if c := got.Ops[i].Call; got.Calls[c].Start >= tt.until || got.Calls[c].Start != w.Calls[c].Start {
					t.Fatalf("operation %d of call %d at %v", i, c, got.Calls[c].Start)
				}
			}
			predict.NewPlan(got)
		})
	}
	if got := playback.Traffic(w); got != 6*(64<<10+4) {
		t.Errorf("traffic %d", got)
	}
}

// An operation is dropped that starts before the ones that wait for each other, because it
// was launched after the end of the part: these keep their waits.
func TestCutKeepsWaits(t *testing.T) {
	call := func(start time.Duration, kind workload.CallKind) workload.Call {
		return workload.Call{Start: start, Dur: us, Stream: workload.None, Event: workload.None, Latest: workload.None, Record: workload.None, Kind: kind}
	}
	op := func(start, dur time.Duration, stream, call int32) workload.Op {
		return workload.Op{Start: start, Dur: dur, Stream: stream, Call: call, Kind: workload.Kernel}
	}
	w := &workload.Workload{
		Threads: make([]workload.Thread, 1), Streams: make([]workload.Stream, 3), Names: []string{""},
		Calls: []workload.Call{
			call(0, workload.Launch), call(2*us, workload.Launch), call(4*us, workload.Launch),
			call(6*us, workload.StreamSync), call(110*us, workload.Launch), call(112*us, workload.DeviceSync),
		},
		Ops: []workload.Op{
			op(us, 300*us, 0, 0), op(111*us, us, 1, 4), op(301*us, 10*us, 0, 1), op(312*us, 10*us, 2, 2),
		},
	}
	w.Calls[3].Event, w.Calls[3].Latest = 2, 1
	w.Waits = []workload.Wait{{Op: 1, On: 0}, {Op: 3, On: 2}}
	w.Most, w.Least = []workload.Wait{{Op: 3, On: 0}, {Op: 3, On: 1}}, []workload.Wait{{Op: 3, On: 1}}
	w.Awaits = []workload.Await{{Call: 3, On: 3}, {Call: 5, On: 3}}
	w.Handovers = []workload.Handover{{Call: 2, After: 1}, {Call: 4, After: 0}}
	before := fmt.Sprint(w)
	got := playback.Cut(w, 0, 100*us)
	want := []any{
		[]workload.Wait{{Op: 2, On: 1}},
		[]workload.Wait{{Op: 2, On: 0}},
		[]workload.Wait{},
		[]workload.Await{{Call: 3, On: 2}},
		[]workload.Await(nil),
		[]workload.Handover{{Call: 2, After: 1}},
		int32(1), workload.None,
	}
	has := []any{got.Waits, got.Most, got.Least, got.Awaits, got.MostAwaits, got.Handovers, got.Calls[3].Event, got.Calls[3].Latest}
	if !reflect.DeepEqual(has, want) {
		t.Errorf("got %v, want %v", has, want)
	}
	if after := fmt.Sprint(w); after != before {
		t.Errorf("the whole was changed: %s, before %s", after, before)
	}
}

func TestCompareNothing(t *testing.T) {
	if _, err := playback.Compare(kernelsOnly(t), perf.V100, perf.PaperCosts(), nil); err == nil {
		t.Error("no error")
	}
}

package workload

import (
	"strings"
	"testing"
	"time"
)

// A GPU's clock that is late or early against the host's, or drifts, is corrected, and the
// report says so. Damage is not taken for a clock.
func TestClockOfGPU(t *testing.T) {
	const n = 200
	for _, tc := range []struct {
		name string
		off  func(i int) time.Duration // of the clock, or of one damaged record
		note string
		// By how much the corrected times of the kernels may be wrong.
		early, late time.Duration
	}{
		{"none", func(int) time.Duration { return 0 }, "", 0, 0},
		{"less than a wait takes to return", func(int) time.Duration { return 2 * us }, "", 0, 2 * us},
		{"late", func(int) time.Duration { return 5 * us }, "the clock of GPU 0 is at least 2µs late", 0, 3 * us},
		{"very late", func(int) time.Duration { return 900 * us }, "at least 897µs late", 0, 3 * us},
		{"early", func(int) time.Duration { return -16 * us }, "about 16µs early", 0, 0},
		{"drifts", func(i int) time.Duration { return time.Duration(i) * us / 4 }, "late", -6 * us, 4 * us},
		{"one record", func(i int) time.Duration {
			if i == 50 {
				return 7 * time.Millisecond
			}
			return 0
		}, "", 0, 7 * time.Millisecond},
	} {
		for _, device := range []bool{false, true} {
			b, st, th := build()
			name := b.Name([]byte("call"))
			for i := range n {
				at := time.Duration(i) * 10 * time.Millisecond
				b.AddCall(Call{Start: at, Dur: 4 * us, Corr: uint32(2*i + 1), Name: name, Thread: th, Kind: Launch}, nowhere)
				b.AddOp(Op{Start: at + 6*us + tc.off(i), Dur: 15 * us, Corr: uint32(2*i + 1), Stream: st}, nowhere)
				wait := Call{Start: at + 5*us, Dur: 19 * us, Corr: uint32(2*i + 2), Name: name, Thread: th, Kind: DeviceSync}
				if !device {
					wait.Kind = StreamSync
					b.AddAwaited(Awaited{Corr: wait.Corr, Stream: st, From: None})
				}
				b.AddCall(wait, nowhere)
			}
			w, err := b.Build()
			if err != nil {
				t.Fatal(err)
			}
			if notes := strings.Join(w.Report.Notes, "; "); (notes == "") != (tc.note == "") || !strings.Contains(notes, tc.note) {
				t.Errorf("%s: notes %q", tc.name, notes)
			}
			if len(w.Report.Doubts) > 0 || w.Report.Skewed > n/50 {
				t.Errorf("%s: %+v", tc.name, w.Report)
			}
			for _, op := range w.Ops {
				if by := op.Start - w.Calls[op.Call].Start - 6*us; by < tc.early-us || by > tc.late+us {
					t.Fatalf("%s: an operation is still %v off", tc.name, by)
				}
			}
		}
	}
}

// Clocks that no correction explains are reported.
func TestClockThatJumps(t *testing.T) {
	b, st, th := build()
	name := b.Name([]byte("call"))
	for i := range 100 {
		at := time.Duration(i) * 100 * us
		b.AddCall(Call{Start: at, Dur: 4 * us, Corr: uint32(2*i + 1), Name: name, Thread: th, Kind: Launch}, nowhere)
		off := 40 * us
		if i%2 == 1 {
			off = -40 * us
		}
		b.AddOp(Op{Start: at + 6*us + off, Dur: 15 * us, Corr: uint32(2*i + 1), Stream: st}, nowhere)
		b.AddCall(Call{Start: at + 5*us, Dur: 19 * us, Corr: uint32(2*i + 2), Name: name, Thread: th, Kind: DeviceSync}, nowhere)
	}
	w, err := b.Build()
	if err != nil || !strings.Contains(w.Report.Warning(), "the clock of GPU 0 contradicts the host's") {
		t.Errorf("%v, %q", err, w.Report.Warning())
	}
}

// Two GPUs have clocks of their own.
func TestClocksOfTwoGPUs(t *testing.T) {
	b := NewBuilder("test")
	th, _ := b.Thread(Thread{ID: 1})
	name := b.Name([]byte("call"))
	for i := range 100 {
		for device := range 2 {
			at := time.Duration(2*i+device) * 100 * us
			st, _ := b.Stream(Stream{Device: int64(device), ID: 7})
			corr := uint32(4*i + 2*device + 1)
			b.AddCall(Call{Start: at, Dur: 4 * us, Corr: corr, Name: name, Thread: th, Kind: Launch}, nowhere)
			b.AddOp(Op{Start: at + 6*us + time.Duration(device)*20*us, Dur: 15 * us, Corr: corr, Stream: st}, nowhere)
			b.AddCall(Call{Start: at + 5*us, Dur: 19 * us, Corr: corr + 1, Name: name, Thread: th, Kind: StreamSync}, nowhere)
			b.AddAwaited(Awaited{Corr: corr + 1, Stream: st, From: None})
		}
	}
	w, err := b.Build()
	if err != nil {
		t.Fatal(err)
	}
	if notes := strings.Join(w.Report.Notes, "; "); strings.Contains(notes, "GPU 0") || !strings.Contains(notes, "GPU 1 is at least 17µs late") {
		t.Errorf("notes %q", notes)
	}
}

// A wait for one of several GPUs says nothing of the clocks of the others.
func TestWaitForOneOfSeveralGPUs(t *testing.T) {
	for gpus := 2; gpus <= 4; gpus++ {
		b := NewBuilder("test")
		th, _ := b.Thread(Thread{ID: 1})
		name := b.Name([]byte("call"))
		for i := range 100 {
			at := time.Duration(i) * time.Millisecond
			corr := uint32(10*i + 1)
			for device := range gpus {
				st, _ := b.Stream(Stream{Device: int64(device), ID: 7})
				b.AddCall(Call{Start: at, Dur: 4 * us, Corr: corr, Name: name, Thread: th, Kind: Launch}, nowhere)
				b.AddOp(Op{Start: at + 6*us, Dur: time.Duration(1+9*device) * 10 * us, Corr: corr, Stream: st}, nowhere)
				at += 5 * us
				corr++
			}
			b.AddCall(Call{Start: at, Dur: 20 * us, Corr: corr, Name: name, Thread: th, Kind: DeviceSync}, nowhere)
		}
		w, err := b.Build()
		if err != nil || len(w.Report.Notes)+len(w.Report.Doubts) > 0 {
			t.Errorf("%d GPUs: %v, notes %q, doubts %q", gpus, err, w.Report.Notes, w.Report.Doubts)
		}
	}
}

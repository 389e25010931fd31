package netio

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

func TestSignalWakesOnce(t *testing.T) {
	s := (&Fabric{}).NewSignal()
	s.Set()
	s.Set() // counts once
	if !s.Wait(t.Context(), time.Minute) {
		t.Error("a set signal did not wake")
	}
	if s.Wait(t.Context(), time.Millisecond) {
		t.Error("the wait did not clear the signal")
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if s.Wait(ended, time.Minute) {
		t.Error("the end of the context woke as a signal")
	}
	go s.Set()
	if !s.Wait(t.Context(), time.Minute) {
		t.Error("a signal of another goroutine did not wake")
	}
}

func TestComputeRunsOnePerPlace(t *testing.T) {
	f := &Fabric{compute: make(chan struct{}, 1)}
	const jobs = 8
	done := make(chan struct{}, jobs)
	running := make(chan struct{}, 1)
	for range jobs {
		f.Compute(func() (more bool) {
			select {
			case running <- struct{}{}:
				<-running
			default:
				t.Error("two computations run in one place")
			}
			return false
		}, time.Hour, func() { done <- struct{}{} })
	}
	for range jobs {
		<-done
	}
}

// The processors that a program of proxies reserves for its readers are no places for
// computations.
func TestComputationsLeaveTheReserve(t *testing.T) {
	processors, before := reader.Processors(), runtime.GOMAXPROCS(0)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
	reader.ReserveProcessors()
	runtime.GOMAXPROCS(processors + 4) // an earlier run of the test has taken the reserve back
	f := open(t, PathConfig{Listen: "127.0.0.1:0"})
	if n := cap(f.compute); n != processors {
		t.Errorf("%d computations run at one time, want %d", n, processors)
	}
}

// A computation that does not end leaves the others their turns.
func TestComputationsTakeTurns(t *testing.T) {
	f := &Fabric{compute: make(chan struct{}, 1)}
	const parts = 100
	var end atomic.Bool
	hog, began, others := make(chan int, 1), make(chan struct{}, 1), make(chan struct{}, 2)
	n := 0
	f.Compute(func() (more bool) {
		select {
		case began <- struct{}{}:
		default:
		}
		n++
		return !end.Load() && n < 1e6
	}, time.Hour, func() { hog <- n })
	<-began
	for range cap(others) {
		left := parts
		f.Compute(func() (more bool) {
			left--
			return left > 0
		}, time.Hour, func() { others <- struct{}{} })
	}
	for range cap(others) {
		<-others
	}
	end.Store(true)
	if n := <-hog; n >= 1e6 {
		t.Error("the others had to wait for the end")
	}
}

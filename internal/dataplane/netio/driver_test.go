package netio

import (
	"context"
	"testing"
	"time"
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
		f.Compute(func() {
			select {
			case running <- struct{}{}:
				<-running
			default:
				t.Error("two computations run in one place")
			}
		}, time.Hour, func() { done <- struct{}{} })
	}
	for range jobs {
		<-done
	}
}

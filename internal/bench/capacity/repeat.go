package capacity

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// AttachReport holds the times of attaches, one GPU after the other.
type AttachReport struct {
	Processors int    `json:"processors"`
	Go         string `json:"go"`
	Count      int    `json:"count"`
	Parts      []Part `json:"parts"`
	Detach     Part   `json:"detach"` // from the call until the GPU is clean and free again
}

// Attach attaches one GPU of a pool, uses and releases it, count times.
func Attach(ctx context.Context, spec Spec, count int) (r *AttachReport, err error) {
	if err := spec.setDefaults(); err != nil {
		return nil, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	w, err := newWorld(ctx, spec)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, w.close()) }()
	defer stop() // ends the watch; close waits for it
	l, err := w.watch(ctx)
	if err != nil {
		return nil, err
	}
	var all []*attachment
	var detached []time.Duration
	for i := range count {
		spec.Progress("attach %d of %d", i+1, count)
		took, a, err := w.once(ctx, l)
		if err != nil {
			return nil, fmt.Errorf("bench: attach %d: %w", i+1, err)
		}
		all, detached = append(all, a), append(detached, took)
	}
	return &AttachReport{
		Processors: runtime.NumCPU(), Go: runtime.Version(), Count: count,
		Parts: partsOf(all), Detach: partOf("from the call until the GPU is clean and free", detached),
	}, nil
}

// once attaches, uses and releases one GPU, and returns the time of the release.
func (w *world) once(ctx context.Context, l *watcher) (time.Duration, *attachment, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, w.spec.Timeout, fmt.Errorf("took longer than %v", w.spec.Timeout))
	defer cancel()
	a, err := w.attach(ctx, l)
	if err != nil {
		return 0, nil, err
	}
	one := []*attachment{a}
	if err := w.details(ctx, one); err != nil {
		return 0, nil, err
	}
	if _, err := w.drive(ctx, a); err != nil {
		return 0, nil, err
	}
	at := time.Now()
	err = w.release(ctx, l, one)
	return time.Since(at), a, err
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// Neighbours of Options.Beside.
const (
	BesideGuest = "guest" // an idle guest in QEMU
	BesideBusy  = "busy"  // a process with a busy loop
)

// guestSettles is the time in which a guest ends the work of its boot.
const guestSettles = 5 * time.Second

// startNeighbour starts the process that the measurements share the processors with.
func (o *Options) startNeighbour(ctx context.Context) (stop func() error, err error) {
	switch o.Beside {
	case "":
		return func() error { return nil }, nil
	case BesideBusy:
		c, err := o.spawn(ctx, memberSpec{Kind: kindBusy})
		if err != nil {
			return nil, err
		}
		return c.stop, nil
	case BesideGuest:
		return o.startGuest(ctx)
	}
	return nil, fmt.Errorf("bench: no neighbour %q", o.Beside)
}

func (o *Options) startGuest(ctx context.Context) (stop func() error, err error) {
	dir, err := os.MkdirTemp("", "dxpu")
	if err != nil {
		return nil, err
	}
	o.Progress("boot a guest")
	vm, err := qemu.Start(ctx, qemu.Spec{Install: *o.Guest, Dir: dir})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("bench: %w", err), os.RemoveAll(dir))
	}
	select {
	case <-time.After(guestSettles):
	case <-ctx.Done():
		return nil, errors.Join(context.Cause(ctx), vm.Close(), os.RemoveAll(dir))
	}
	return func() error { return errors.Join(vm.Close(), os.RemoveAll(dir)) }, nil
}

// busyLoop keeps a processor busy until stop is called.
func busyLoop() (stop func()) {
	var over atomic.Bool
	var done sync.WaitGroup
	done.Go(func() {
		for !over.Load() { //nolint:revive // the loop is the load
		}
	})
	return func() {
		over.Store(true)
		done.Wait()
	}
}

// MaxBusy bounds Options.Busy.
const MaxBusy = 256

// BesideLoops calls run while n processes keep a processor busy each, as the neighbours
// of a proxy do on a machine that has more to do. command is Options.Child.
func BesideLoops[R any](ctx context.Context, n int, command []string, run func(context.Context) (R, error)) (result R, err error) {
	o := &Options{Child: command}
	var loops []*child
	defer func() {
		for _, c := range loops {
			err = errors.Join(err, c.stop())
		}
	}()
	for range n {
		c, err := o.spawn(ctx, memberSpec{Kind: kindBusy})
		if err != nil {
			return result, fmt.Errorf("bench: busy process: %w", err)
		}
		loops = append(loops, c)
	}
	return run(ctx)
}

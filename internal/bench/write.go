package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// writeBurst is the number of posted writes before a read that waits for all of
// them. It bounds the queue of the embedded host, which has no back-pressure.
const writeBurst = 1 << 13

// statsInterval is longer than the interval at which a box samples its counters.
const statsInterval = 400 * time.Millisecond

// Write measures the posted register writes per second of one binding. It writes
// rising numbers to the scratch registers in turn, so that their values after a
// round show whether the last writes arrived in order. The counters of the box show
// whether all writes arrived.
func Write(ctx context.Context, o Options) (report *Report, err error) {
	o = o.withDefaults()
	_, dev, err := newNative(ctx)
	if err != nil {
		return nil, err
	}
	names := []string{"native: embedded host, no network", "embedded host, remote GPU", "vfio-user client, remote GPU"}
	writers := []*writer{{dev: dev}}
	mtu := 0
	for _, vm := range []bool{false, true} {
		p, dev, err := o.ready(ctx, pairSpec{slots: 1, vm: vm})
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, dev.close(), p.close()) }()
		mtu = p.mtu
		writers = append(writers, &writer{dev: dev, pair: p})
	}
	var probes []probe
	for i, w := range writers {
		probes = append(probes, probe{names[i], w.run})
	}
	values, err := o.alternate(probes)
	if err != nil {
		return nil, err
	}
	report = o.report("write", mtu)
	for i, name := range names {
		f := figure(name, PerSecond, values[i])
		if i > 0 {
			f = f.beside(names[0], values[i], values[0])
		}
		report.Figures = append(report.Figures, f)
	}
	report.Notes = append(report.Notes, fmt.Sprintf("bursts of %d writes of 4 bytes, each ended by a read that waits for all of them; the box counts every write, the last %d of each round are checked for order",
		writeBurst, reg.ScratchCount))
	return report, nil
}

type writer struct {
	dev   *opened
	pair  *pair // nil: native
	count uint32
}

func (w *writer) run(d time.Duration) (float64, error) {
	before, err := w.received()
	if err != nil {
		return 0, err
	}
	first := w.count
	rate, err := perSecond(d, w.burst)
	if err != nil {
		return 0, err
	}
	if err := w.last(); err != nil {
		return 0, err
	}
	made := uint64(w.count - first)
	return rate, w.check(before, made+made/writeBurst+reg.ScratchCount)
}

// burst makes the writes of one burst and waits until they have arrived.
func (w *writer) burst() (int, error) {
	regs := w.dev.Registers()
	for range writeBurst {
		w.count++
		regs.Write32(scratch(w.count), w.count)
	}
	return writeBurst, w.dev.Flush()
}

// last checks that the registers hold the values of the last writes.
func (w *writer) last() error {
	regs := w.dev.Registers()
	for i := range uint32(reg.ScratchCount) {
		want := w.count - i
		if got := regs.Read32(scratch(want)); got != want {
			return fmt.Errorf("scratch register %d holds %d, want %d", want%reg.ScratchCount, got, want)
		}
	}
	return nil
}

// scratch returns the register of write number n.
func scratch(n uint32) uint64 { return reg.Scratch + 4*uint64(n%reg.ScratchCount) }

// received returns the number of TLPs that the box has received from the host.
func (w *writer) received() (uint64, error) {
	if w.pair == nil {
		return 0, nil
	}
	time.Sleep(statsInterval)
	r, err := w.pair.box.call(request{TLPs: true})
	return r.Value, err
}

// check compares the number of TLPs that the box received with the number sent.
func (w *writer) check(before, sent uint64) error {
	after, err := w.received()
	if err != nil || w.pair == nil {
		return err
	}
	if got := after - before; got != sent {
		return fmt.Errorf("the box received %d TLPs, want %d", got, sent)
	}
	return nil
}

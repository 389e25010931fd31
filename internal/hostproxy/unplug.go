package hostproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/vm/qmp"
)

// useInterval is the time between two looks at a device that the host was asked
// to release.
const useInterval = 250 * time.Millisecond

// unplug asks the host to release the device, and takes note if it does not.
func (s *slot) unplug(ctx context.Context, timeout time.Duration) {
	if s.plugged == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	use, err := s.plugged.unplug(ctx)
	removal := &dxpuv1.Removal{BindingId: s.status.Get().ID}
	if err != nil {
		removal.Forced, removal.Detail = true, cmp.Or(use, err.Error())
		s.counters.forced.Add(1)
		s.host.log.Warn("the host has not released the device: it is taken away", "slot", s.index, "err", err)
	}
	s.guest.removal.Store(removal)
}

// unplug asks QEMU to remove the device. While the guest holds it, the status
// reports the signs of its use.
func (p *pluggedVM) unplug(ctx context.Context) (use string, err error) {
	watched, stop := context.WithCancel(ctx)
	var watch sync.WaitGroup
	watch.Go(func() { use = p.watchUse(watched) })
	err = p.remove(ctx)
	stop()
	watch.Wait()
	return use, err
}

// watchUse reports the use of a device until ctx ends, and returns its last
// report. It keeps the present detail of the status.
func (v *vm) watchUse(ctx context.Context) (use string) {
	s := v.slot
	why := s.status.Get().Detail
	tick := time.NewTicker(useInterval)
	defer tick.Stop()
	seen := s.counters.traffic()
	for {
		select {
		case <-ctx.Done():
			return use
		case <-tick.C:
		}
		e := s.host.group.Enter()
		use = v.inUse(e)
		s.host.group.Leave(e)
		passed := s.counters.traffic()
		switch {
		case use != "" && passed != seen:
			use = "the guest still holds the device and uses it: " + use
		case use != "":
			use = "the guest still holds the device: " + use
		}
		seen = passed
		detail := cmp.Or(use, why)
		if use != "" && why != "" {
			detail = why + "; " + use
		}
		if s.status.Note(detail) {
			s.host.Changed()
		}
	}
}

// inUse returns the signs of a driver in the guest, "" for none. A driver that
// has released a device has switched off memory decoding, bus mastering and, as a
// rule, power (PCI Express Base 6.0, sections 7.5.1.1.3 and 5.3.1.4).
func (v *vm) inUse(engine.Entry) string {
	entry, _ := v.slot.host.table.Entry(v.slot.index)
	var signs []string
	if entry.MemoryEnabled() {
		var bars []string
		for i, bar := range entry.BARs {
			if bar.Size > 0 {
				bars = append(bars, fmt.Sprintf("BAR %d at %#x", i, entry.BARAddress(i)))
			}
		}
		signs = append(signs, "decodes memory ("+strings.Join(bars, ", ")+")")
	}
	if entry.BusMaster() {
		signs = append(signs, "is bus master")
	}
	if n := v.open.Load(); n > 0 {
		signs = append(signs, fmt.Sprintf("%d accesses are not answered yet", n))
	}
	if v.refused.Load() {
		signs = append(signs, "the guest refused to eject it")
	}
	if v.conn == nil || len(signs) == 0 {
		return ""
	}
	return "it " + strings.Join(signs, ", ")
}

// held reports whether a driver of the guest has the device: drivers make it bus
// master when they take it and clear that when they release it; firmware and
// kernels do neither.
func (v *vm) held(engine.Entry) bool {
	entry, _ := v.slot.host.table.Entry(v.slot.index)
	return v.conn != nil && entry.BusMaster()
}

// askAgain is the time after a guest's refusal to eject a device and the next
// request: a busy driver may have finished.
const askAgain = time.Second

// remove asks QEMU to remove the device, again and again, until it has.
func (p *pluggedVM) remove(ctx context.Context) error {
	if !p.added {
		return nil
	}
	client, done, err := p.front.control.use(ctx, p.front.QMP)
	if err != nil {
		if !p.connected() {
			return nil // the VM is gone
		}
		return fmt.Errorf("hot-unplug: %w", err)
	}
	defer done()
	for {
		err = client.Unplug(ctx, deviceID(p.vm.slot.index))
		if !errors.Is(err, qmp.ErrUnplugRefused) {
			break
		}
		p.refused.Store(true)
		select {
		case <-time.After(askAgain):
		case <-ctx.Done():
			return fmt.Errorf("hot-unplug: %w", err)
		}
	}
	if err != nil {
		return fmt.Errorf("hot-unplug: %w", err)
	}
	p.added = false
	return nil
}

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
	"github.com/dxpu-project/dxpu/internal/vm/qmp"
)

// useInterval is how often it is looked whether a host that was asked to let a
// device go still uses it.
const useInterval = 250 * time.Millisecond

// unplug asks the host to let go of the device. While it takes its time, the
// status says by what it can be seen that the device is in use.
func (s *slot) unplug(ctx context.Context, timeout time.Duration) {
	if s.plugged == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	var use string
	var watch sync.WaitGroup
	watch.Go(func() { use = s.watchUse(ctx) })
	err := s.plugged.unplug(ctx)
	cancel()
	watch.Wait()
	removal := &dxpuv1.Removal{BindingId: s.observed().ID}
	if err != nil {
		removal.Forced, removal.Detail = true, cmp.Or(use, err.Error())
		s.counters.forced.Add(1)
		s.host.log.Warn("the host has not let go of the device: it is taken away", "slot", s.index, "err", err)
	}
	s.guest.removal.Store(removal)
}

// watchUse reports how a device is used until ctx ends, and returns what it saw
// last. What the status says already stays.
func (s *slot) watchUse(ctx context.Context) (use string) {
	why := s.observed().Detail
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
		use = s.plugged.inUse()
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

// inUse: a driver that has let a device go has taken memory decoding, bus
// mastering and, as a rule, power away from it (PCI Express Base 6.0, sections
// 7.5.1.1.3 and 5.3.1.4).
func (v *vm) inUse() string {
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

// held: drivers make a device bus master when they take it and no longer so when
// they let it go; firmware and kernels leave that to them.
func (v *vm) held() bool {
	entry, _ := v.slot.host.table.Entry(v.slot.index)
	return v.conn != nil && entry.BusMaster()
}

// askAgain is how long after a guest would not eject a device it is asked again:
// a driver that is busy may be done.
const askAgain = time.Second

func (p *pluggedVM) unplug(ctx context.Context) error {
	if !p.added {
		return nil
	}
	client, done, err := p.front.control.use(ctx, p.front.QMP)
	if err != nil {
		if !p.connected() {
			return nil // a VM that is gone holds nothing
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

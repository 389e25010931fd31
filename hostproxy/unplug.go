package hostproxy

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
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
	var watch sync.WaitGroup
	watch.Go(func() { s.watchUse(ctx) })
	err := s.plugged.unplug(ctx)
	cancel()
	watch.Wait()
	if err == nil {
		return
	}
	s.host.log.Warn("the host has not let go of the device: it is taken away", "slot", s.index, "err", err)
	s.status.Note("taken away by force: " + err.Error())
	s.host.Changed()
}

// watchUse reports how a device is used until ctx ends.
func (s *slot) watchUse(ctx context.Context) {
	tick := time.NewTicker(useInterval)
	defer tick.Stop()
	seen := s.counters.toDevice.Load()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		s.host.group.Enter()
		use := s.plugged.inUse()
		s.host.group.Leave()
		sent := s.counters.toDevice.Load()
		switch {
		case use != "" && sent != seen:
			use = "the guest still holds the device and uses it: " + use
		case use != "":
			use = "the guest still holds the device: " + use
		}
		seen = sent
		if s.status.Note(use) {
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

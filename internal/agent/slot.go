package agent

import (
	"sync/atomic"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
	"github.com/dxpu-project/dxpu/link"
)

// SlotState is what a slot of either proxy reports to the manager and to operators,
// for embedding. The slot's controller and its traffic write it; any goroutine reads
// it.
type SlotState struct {
	Status    Status
	Applied   atomic.Uint64              // the desired revision that Status reflects
	LinkStats atomic.Pointer[link.Stats] // nil: no link was sampled
	Traffic   Traffic
}

// Traffic counts the TLPs between the device in a slot and its host, since the proxy
// started.
type Traffic struct {
	ToDevice, FromDevice Flow
	Peer                 atomic.Uint64 // TLPs that the proxy handed to another device
}

// TLPs returns the number of TLPs in both directions.
func (t *Traffic) TLPs() uint64 { return t.ToDevice.tlps.Load() + t.FromDevice.tlps.Load() }

// Publish shows what was counted to other goroutines. The owner of the slot calls it at
// the end of each Transmit.
func (t *Traffic) Publish() {
	t.ToDevice.publish()
	t.FromDevice.publish()
}

// Flow counts the TLPs of one direction and the bytes of their payload.
type Flow struct {
	tlps, bytes atomic.Uint64

	// Counted since the last Publish, for the goroutine that has entered the group: an
	// atomic addition waits until the payload before it has left the processor.
	newTLPs, newBytes uint64
}

// Count counts tlps TLPs with n bytes of payload in total. Its caller has entered the
// group of the slot.
func (f *Flow) Count(tlps, n int) {
	f.newTLPs += uint64(tlps)
	f.newBytes += uint64(n)
}

func (f *Flow) publish() {
	if f.newTLPs == 0 {
		return
	}
	f.tlps.Add(f.newTLPs)
	f.bytes.Add(f.newBytes)
	f.newTLPs, f.newBytes = 0, 0
}

// Reflects returns the desired revision that Status reflects.
func (s *SlotState) Reflects() uint64 { return s.Applied.Load() }

// Report returns what both proxies report of a slot. d is the desired state of the
// proxy. The caller adds what only its role has.
func (s *SlotState) Report(slot int, d *dxpuv1.DesiredState) SlotReport {
	t := &s.Traffic
	return SlotReport{
		Slot: slot,
		Counters: SlotCounters{
			ToDevice: t.ToDevice.tlps.Load(), FromDevice: t.FromDevice.tlps.Load(),
			ToDeviceBytes: t.ToDevice.bytes.Load(), FromDeviceBytes: t.FromDevice.bytes.Load(), Peer: t.Peer.Load(),
		},
		Binding: ReportBinding(slot, s.Status.Get(), d),
	}
}

// Binding returns the binding as the API reports it, with the counters of its link,
// and nil for a free slot.
func (s *SlotState) Binding() *dxpuv1.ObservedBinding {
	st := s.Status.Get()
	out := st.Observed()
	if l := s.LinkStats.Load(); l != nil && out != nil {
		out.Counters, out.Paths = LinkCounters(*l), PathStatuses(*l)
	}
	return out
}

// Slot is a slot of a proxy. It embeds SlotState.
type Slot interface {
	// Reflects returns the desired revision that the slot's report reflects.
	Reflects() uint64
	// Observe returns the slot as the API reports it.
	Observe() *dxpuv1.ObservedSlot
}

// Observe returns the state of a proxy and its slots for the manager. The caller adds
// what only its role has.
func Observe[S Slot](f engine.Driver, rack string, labels map[string]string, slots []S) *dxpuv1.ObservedState {
	// Read the revisions before the slots: a slot that advances meanwhile shows a
	// later state than its revision, never an earlier one.
	applied := make([]uint64, len(slots))
	for i, s := range slots {
		applied[i] = s.Reflects()
	}
	out := &dxpuv1.ObservedState{AppliedRevision: revision.Common(applied...), Rack: rack, Labels: labels, Addresses: Addresses(f)}
	for _, s := range slots {
		out.Slots = append(out.Slots, s.Observe())
	}
	return out
}

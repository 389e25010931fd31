package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
	"github.com/dxpu-project/dxpu/pcie"
)

// The mixers move between boxes with what they have in mind: the target of a migration goes on
// with the plan of the source.

const mixerPages = mixerBAR / pcie.PageSize

// travel is the part of a mixer that concerns migrations.
type travel struct {
	frozen  bool
	tracked bool
	dirty   [mixerPages]bool
	from    *mixer // whose state was restored
}

func (v *travel) touched(off uint64, n int) {
	for p := off / pcie.PageSize; v.tracked && n > 0 && p <= (off+uint64(n)-1)/pcie.PageSize; p++ {
		v.dirty[p] = true
	}
}

func (m *mixer) Movable() error { return nil }

func (m *mixer) Track(on bool) {
	m.tracked = on
	for p := range m.dirty {
		m.dirty[p] = on
	}
}

func (m *mixer) Changed() (n uint64) {
	for _, d := range m.dirty {
		if d {
			n += pcie.PageSize
		}
	}
	return n
}

func (m *mixer) ChangedMemory(from uint64, buf []byte) (addr uint64, n int, later bool) {
	for p := from / pcie.PageSize; p < mixerPages; p++ {
		if m.dirty[p] {
			m.dirty[p] = false
			return p * pcie.PageSize, copy(buf, m.mem[p*pcie.PageSize:][:pcie.PageSize]), false
		}
	}
	return 0, 0, false
}

func (m *mixer) Freeze() { m.frozen = true }

func (m *mixer) Snapshot(now time.Duration) (state []byte, ok bool) {
	m.now = now
	if !m.frozen || m.req.InFlight() > 0 || m.staged != nil || len(m.answer) > 0 {
		return nil, false
	}
	state = binary.LittleEndian.AppendUint16([]byte{byte(m.number)}, uint16(m.id))
	return append(state, m.cfg.Bytes()...), true
}

// Thaw lets the source go on, or the target with the plan of the source.
func (m *mixer) Thaw(now time.Duration) {
	m.now, m.frozen = now, false
	if from := m.from; from != nil {
		m.from = nil
		m.mind, from.mind = from.mind, newMind(-1, nil)
		m.t.mixers[m.index] = m
	}
}

func (m *mixer) StoreMemory(addr uint64, p []byte) error {
	if addr > mixerBAR || uint64(len(p)) > mixerBAR-addr {
		return errors.New("outside of the memory")
	}
	copy(m.mem[addr:], p)
	return nil
}

func (m *mixer) Settled() bool { return true }

func (m *mixer) Restore(now time.Duration, state []byte) (bool, error) {
	m.now = now
	if len(state) < 3 || int(state[0]) >= len(m.t.devices) {
		return false, errors.New("no state of a mixer")
	}
	if err := m.cfg.Adopt(state[3:]); err != nil {
		return false, err
	}
	m.id, m.frozen, m.from = pcie.BDF(binary.LittleEndian.Uint16(state[1:])), true, m.t.devices[state[0]]
	m.req.SetID(m.id)
	return true, nil
}

func (m *mixer) Window() (id pcie.BDF, header [64]byte) {
	copy(header[:], m.cfg.Bytes())
	return m.id, header
}

// move is a migration of a binding.
type move struct {
	epoch    uint64
	to       int // device
	switches bool
}

// binding returns what is wanted for a mixer.
func (t *ordering) binding(i int) agenttest.Binding {
	b := t.bindingTo(i, t.wanted[i], t.at[i])
	if n := t.next[i]; n != nil {
		next := t.bindingTo(i, n.epoch, n.to)
		b.Next, b.Switch = &next, n.switches
	}
	return b
}

func (t *ordering) bindingTo(i int, epoch uint64, dev int) agenttest.Binding {
	box, slot := dev/boxMixers, dev%boxMixers
	return agenttest.Binding{
		ID: fmt.Sprint("b", epoch), Epoch: epoch, Domain: "host/0",
		Host: t.nodes[0].end(1, uint32(i)), Box: t.nodes[1+box].end(uint32(2+box), uint32(slot)),
	}
}

// atBox returns what the box of a device says about its slot.
func (t *ordering) atBox(dev int) *dxpuv1.ObservedBinding {
	return t.boxes[dev/boxMixers].Observe().Slots[dev%boxMixers].Binding
}

// spare returns a device that no mixer uses.
func (t *ordering) spare(r *rand.Rand) int {
	for {
		dev, used := r.IntN(len(t.devices)), false
		for _, at := range t.at {
			used = used || at == dev
		}
		if !used {
			return dev
		}
	}
}

// migrate moves a mixer to another box in the middle of the traffic, or begins to. Nothing gets
// lost.
func (t *ordering) migrate(tb *testing.T, i int, r *rand.Rand) {
	t.epoch++
	next := &move{epoch: t.epoch, to: t.spare(r)}
	for next.to/boxMixers == t.at[i]/boxMixers {
		next.to = t.spare(r)
	}
	t.next[i] = next
	t.apply()
	id := fmt.Sprint("b", next.epoch)
	at := func() (host, box *dxpuv1.Migration) {
		return t.host.Observe().Slots[i].Binding.GetMigration(), t.atBox(t.at[i]).GetMigration()
	}
	if !t.RunUntil(t.Now()+100*time.Millisecond, func() bool {
		host, box := at()
		return host.GetBindingId() == id && box.GetBindingId() == id && host.State == dxpuv1.MigrationState_MIGRATION_STATE_COPYING && box.State == dxpuv1.MigrationState_MIGRATION_STATE_READY
	}) {
		host, box := at()
		tb.Fatalf("mixer %d is not ready to move: %v, %v", i, host, box)
	}
	t.Run(t.Now() + time.Duration(r.IntN(300))*time.Microsecond)
	if r.IntN(4) == 0 {
		t.next[i] = nil
		t.apply()
		t.settled(tb, i)
		return
	}
	next.switches = true
	t.apply()
	var have *dxpuv1.Migration
	if !t.RunUntil(t.Now()+100*time.Millisecond, func() bool {
		have, _ = at()
		return have.GetBindingId() == id && have.State >= dxpuv1.MigrationState_MIGRATION_STATE_DONE
	}) || have.State != dxpuv1.MigrationState_MIGRATION_STATE_DONE {
		tb.Fatalf("mixer %d has not moved: %v", i, have)
	}
	if r.IntN(2) == 0 { // the manager is away: all works without it
		t.quiet()
		t.going(true)
	}
	t.at[i], t.wanted[i], t.next[i] = next.to, next.epoch, nil
	t.apply()
	t.settled(tb, i)
}

// settled waits until host and boxes have what is wanted for a mixer.
func (t *ordering) settled(tb *testing.T, i int) {
	id := fmt.Sprint("b", t.wanted[i])
	if !t.RunUntil(t.Now()+20*time.Millisecond, func() bool {
		for dev := range t.devices {
			if b := t.atBox(dev); (b != nil) != slices.Contains(t.at[:], dev) || dev == t.at[i] && (b.BindingId != id || b.Migration != nil) {
				return false
			}
		}
		return t.host.Observe().Slots[i].Binding.GetBindingId() == id
	}) {
		tb.Fatalf("mixer %d does not settle: %v, %v", i, t.host.Observe().Slots[i], t.atBox(t.at[i]))
	}
}

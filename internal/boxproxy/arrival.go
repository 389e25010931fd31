package boxproxy

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/migration"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// arrival takes the state of another box's device into that of the slot. It is the
// handler of the transfer, in the group of the device. The sender may be hostile.
type arrival struct {
	transfer
	device device.Migratable

	state  []byte
	waits  bool           // for room in the device
	asked  bool           // the source waits for Settled
	commit *migration.Sum // has come, and the device does not have the state yet; nil: no
	over   bool           // Commit has come, or a mistake
}

// Receive stores memory, and the state after Commit.
func (a *arrival) Receive(e engine.Entry, p *tlp.Packet) bool {
	if a.over {
		return true
	}
	if m, ok := migration.Parse(p); ok && m.Order == migration.Commit && m.Epoch == a.epoch {
		a.over, a.commit = true, &m.Sum
		a.install(e)
		return true
	}
	if m, ok := migration.Parse(p); ok && m.Order == migration.Settle && m.Epoch == a.epoch {
		a.asked = true
		a.settle(e)
		return true
	}
	if addr, n := p.ByteRange(); p.Type == tlp.MWr && n == len(p.Data) && !p.EP {
		return a.store(e, addr, p.Data)
	}
	a.refuse(e, fmt.Sprintf("the other box sent a %v", p.Type))
	return true
}

// ReceiveRun stores memory that came in a row.
func (a *arrival) ReceiveRun(e engine.Entry, r *link.Run) bool {
	if !r.Writes() {
		return false
	}
	return a.over || a.store(e, r.First.Addr, r.Data)
}

// store stores memory, or the next bytes of the state. It returns false if the device has no
// room at present.
func (a *arrival) store(e engine.Entry, addr uint64, b []byte) bool {
	if addr < migration.StateAt {
		err := a.device.StoreMemory(addr, b)
		if a.waits = errors.Is(err, device.ErrBusy); a.waits {
			return false
		}
		if err != nil {
			a.refuse(e, err.Error())
		}
		return true
	}
	if addr != migration.StateAt+uint64(len(a.state)) || len(b) > device.MaxState-len(a.state) {
		a.refuse(e, "the state of the other device is too large or has gaps")
		return true
	}
	a.state = append(a.state, b...)
	return true
}

// install takes the state over, once Commit has come and the device is ready for it, and tells
// the host.
func (a *arrival) install(e engine.Entry) {
	if a.commit == nil {
		return
	}
	sum := *a.commit
	if n := uint32(len(a.state)); sum.Length > n || n-sum.Length >= pcie.DW || migration.SumOf(a.state[:sum.Length]) != sum {
		a.refuse(e, "the state of the other device is damaged")
		return
	}
	ok, err := a.device.Restore(e.Now(), a.state[:sum.Length])
	switch {
	case err != nil:
		a.refuse(e, err.Error())
		return
	case !ok:
		return
	}
	a.state, a.commit = nil, nil
	a.slot.installed = a
	a.learn()
	a.slot.say(e, migration.Message{Order: migration.Installed, Epoch: a.epoch})
}

// learn shows the device's BARs to the box's mapping table, which has seen no
// configuration write of this guest.
func (a *arrival) learn() {
	id, header := a.device.Window()
	for _, register := range []uint16{cfgspace.OffBAR0, cfgspace.OffBAR0 + 4, cfgspace.OffBAR0 + 8, cfgspace.OffBAR0 + 12, cfgspace.OffBAR0 + 16, cfgspace.OffBAR0 + 20, cfgspace.OffCommand} {
		p := tlp.Packet{Type: tlp.CfgWr0, Target: id, Register: register, Length: 1, FirstBE: 0xf}
		p.Data = binary.LittleEndian.AppendUint32(nil, binary.LittleEndian.Uint32(header[register:]))
		a.slot.box.snoop(a.slot.index, &p)
	}
}

// refuse ends the arrival.
func (a *arrival) refuse(e engine.Entry, why string) {
	a.over, a.state, a.commit, a.waits = true, nil, nil, false
	a.slot.say(e, migration.Message{Order: migration.Refused, Epoch: a.epoch, Why: why})
	a.publish(dxpuv1.MigrationState_MIGRATION_STATE_FAILED, why)
}

// Transmit has nothing to send. The group offers what the device had no room for again.
func (a *arrival) Transmit(e engine.Entry) {
	a.install(e)
	a.settle(e)
}

// settle answers the source once the device has done what it got.
func (a *arrival) settle(e engine.Entry) {
	if a.over || !a.asked || !a.device.Settled() {
		return
	}
	p := migration.Message{Order: migration.Settled, Epoch: a.epoch}.Packet()
	a.asked = a.binding.Send(e, &p) != nil
}

// Wake returns machine.Never.
func (a *arrival) Wake(engine.Entry) time.Duration { return machine.Never }

// LinkChanged notes the link to the source.
func (a *arrival) LinkChanged(e engine.Entry, state link.State) {
	switch {
	case state == link.Up:
		a.publish(dxpuv1.MigrationState_MIGRATION_STATE_COPYING, "")
	case state == link.Down && !a.over:
		a.refuse(e, "the link to the box of the source: "+a.binding.Why(e))
	}
}

func (a *arrival) publish(state dxpuv1.MigrationState, detail string) {
	a.slot.publish(&dxpuv1.Migration{BindingId: a.id, State: state, Detail: detail})
}

package boxproxy

import (
	"encoding/binary"
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

	state []byte
	over  bool // Commit has come, or a mistake
}

// Receive stores memory, and the state after Commit.
func (a *arrival) Receive(e engine.Entry, p *tlp.Packet) bool {
	if a.over {
		return true
	}
	if m, ok := migration.Parse(p); ok && m.Order == migration.Commit && m.Epoch == a.epoch {
		a.commit(e, m.Sum)
		return true
	}
	if addr, n := p.ByteRange(); p.Type == tlp.MWr && n == len(p.Data) && !p.EP {
		a.store(e, addr, p.Data)
		return true
	}
	a.refuse(e, fmt.Sprintf("the other box sent a %v", p.Type))
	return true
}

// ReceiveRun stores memory that came in a row.
func (a *arrival) ReceiveRun(e engine.Entry, r *link.Run) bool {
	if !r.Writes() {
		return false
	}
	if !a.over {
		a.store(e, r.First.Addr, r.Data)
	}
	return true
}

// store stores memory, or the next bytes of the state.
func (a *arrival) store(e engine.Entry, addr uint64, b []byte) {
	if addr < migration.StateAt {
		if err := a.device.StoreMemory(addr, b); err != nil {
			a.refuse(e, err.Error())
		}
		return
	}
	if addr != migration.StateAt+uint64(len(a.state)) || len(b) > device.MaxState-len(a.state) {
		a.refuse(e, "the state of the other device is too large or has gaps")
		return
	}
	a.state = append(a.state, b...)
}

// commit takes the state over and tells the host.
func (a *arrival) commit(e engine.Entry, sum migration.Sum) {
	a.over = true
	if n := uint32(len(a.state)); sum.Length > n || n-sum.Length >= pcie.DW || migration.SumOf(a.state[:sum.Length]) != sum {
		a.refuse(e, "the state of the other device is damaged")
		return
	}
	if err := a.device.Restore(e.Now(), a.state[:sum.Length]); err != nil {
		a.refuse(e, err.Error())
		return
	}
	a.state = nil
	a.slot.installed = a
	a.learn()
	a.slot.say(e, migration.Installed, a.epoch)
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
	a.over, a.state = true, nil
	a.slot.say(e, migration.Refused, a.epoch)
	a.publish(dxpuv1.MigrationState_MIGRATION_STATE_FAILED, why)
}

// Transmit has nothing to send.
func (a *arrival) Transmit(engine.Entry) {}

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

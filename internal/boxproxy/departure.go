package boxproxy

import (
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/migration"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

const (
	// pieceSize is how much changed memory is read at a time, in bytes.
	pieceSize = 64 << 10
	// littleLeft is how much changed memory ends the copying, in bytes: some milliseconds
	// at 10 Gb/s.
	littleLeft = 1 << 20
	// maxRounds bounds the rounds of copying: a guest may write faster than the network
	// carries.
	maxRounds = 30
	// recopyInterval is the pause between two rounds when little is left, and between two looks
	// at what has changed.
	recopyInterval = 10 * time.Millisecond
	// progressInterval is the time between two reports while the memory is copied.
	progressInterval = time.Second
)

// departure sends the state of the slot's device to another box (docs/migration.md). It is
// the handler of the transfer, in the group of the device.
//
//	copying ──> settling ──> ready ──STOP──> sending ──> sent
//	   ^             │         │
//	   └─────────────┴─────────┘ much has changed
//	    any of them ──RESUME, the end of the link──> failed
type departure struct {
	transfer
	device device.Migratable

	phase  departurePhase
	rounds uint32
	sent   uint64
	recopy time.Duration // when the next round begins, unless little has changed
	report time.Duration // when the next report is due

	from    uint64 // where the round is
	buf     [pieceSize]byte
	piece   []byte // of buf: not sent yet
	asked   bool   // settling: the target knows
	later   bool   // the device is fetching more
	at      uint64 // address of piece
	state   []byte // from the STOP on
	stateAt int    // bytes of state that are sent
	out     tlp.Packet
}

type departurePhase uint8

const (
	copying  departurePhase = iota
	settling                // the target works on what it has got
	readyToStop
	sending
	sent
	departureFailed
)

// Receive takes the target's answer that it has done what it got. It has nothing else to say.
func (d *departure) Receive(e engine.Entry, p *tlp.Packet) bool {
	if m, ok := migration.Parse(p); ok && m.Order == migration.Settled && m.Epoch == d.epoch && d.phase == settling {
		if d.device.Changed() < littleLeft || d.rounds >= maxRounds {
			d.ready(e)
		} else {
			d.phase = copying
			d.binding.Touch(e)
		}
	}
	return true
}

// Transmit sends memory and state while the link has room.
func (d *departure) Transmit(e engine.Entry) {
	if d.binding == nil || d.binding.State(e) != link.Up || d.phase >= sent {
		return
	}
	if err := d.device.Movable(); err != nil {
		d.fail(e, err.Error())
		d.slot.say(e, migration.Message{Order: migration.Refused, Epoch: d.epoch, Why: err.Error()})
		return
	}
	if d.phase == readyToStop {
		if d.rounds >= maxRounds || e.Now() < d.recopy {
			return
		}
		if d.device.Changed() < littleLeft {
			d.recopy = e.Now() + recopyInterval // not at once: the manager may be away for long
			return
		}
		d.phase = copying
	}
	if d.phase == settling {
		d.settle(e)
		return
	}
	for d.sendPiece(e) {
		addr, n, later := d.device.ChangedMemory(d.from, d.buf[:])
		if d.later = later && n == 0; d.later {
			return
		}
		if n > 0 {
			d.piece, d.at, d.from = d.buf[:n], addr, addr+uint64(n)
			if d.phase == copying && e.Now() >= d.report {
				d.report = e.Now() + progressInterval
				d.publish(dxpuv1.MigrationState_MIGRATION_STATE_COPYING, "")
			}
			continue
		}
		if d.from > 0 { // the end of a round, with changes before from perhaps
			d.from = 0
			d.rounds++
			if d.phase == copying && (d.device.Changed() < littleLeft || d.rounds >= maxRounds) {
				d.settle(e)
				return
			}
			continue
		}
		if d.phase == copying {
			d.rounds++
			d.settle(e)
			return
		}
		if d.sendState(e) {
			d.phase = sent
			d.publish(dxpuv1.MigrationState_MIGRATION_STATE_READY, "")
		}
		return
	}
}

// settle asks the target to answer when it has done what it got, once the link has room.
func (d *departure) settle(e engine.Entry) {
	if d.phase != settling {
		d.phase, d.asked = settling, false
	}
	if p := (migration.Message{Order: migration.Settle, Epoch: d.epoch}).Packet(); !d.asked {
		d.asked = d.binding.Send(e, &p) == nil
	}
}

func (d *departure) ready(e engine.Entry) {
	d.phase, d.recopy = readyToStop, e.Now()+recopyInterval
	d.publish(dxpuv1.MigrationState_MIGRATION_STATE_READY, "")
}

// sendPiece sends the rest of the piece. It returns false when the link is full.
func (d *departure) sendPiece(e engine.Entry) bool {
	for len(d.piece) > 0 {
		// No request crosses a boundary of 4096 bytes (section 2.2.7).
		n := min(len(d.piece), pcie.MaxPayload-int(d.at%pcie.MaxPayload))
		if !d.write(e, d.at, d.piece[:n]) {
			return false
		}
		d.piece, d.at = d.piece[n:], d.at+uint64(n)
		d.sent += uint64(n)
	}
	return true
}

// sendState sends the rest of the state, and Commit. It returns false when the link is
// full.
func (d *departure) sendState(e engine.Entry) bool {
	for d.stateAt < len(d.state) {
		n := min(len(d.state)-d.stateAt, pcie.MaxPayload)
		b := d.state[d.stateAt:][:n]
		if n%pcie.DW != 0 { // the last double word: Commit tells the length
			b = append(append([]byte(nil), b...), make([]byte, pcie.DW-n%pcie.DW)...)
		}
		if !d.write(e, migration.StateAt+uint64(d.stateAt), b) {
			return false
		}
		d.stateAt += n
	}
	p := migration.Message{Order: migration.Commit, Epoch: d.epoch, Sum: migration.SumOf(d.state)}.Packet()
	return d.binding.Send(e, &p) == nil
}

func (d *departure) write(e engine.Entry, addr uint64, b []byte) bool {
	d.out = tlp.Packet{Type: tlp.MWr, Data: b}
	d.out.SetMemory(addr, len(b))
	return d.binding.Send(e, &d.out) == nil
}

// stopped takes the state of the device, which is frozen.
func (d *departure) stopped(e engine.Entry, state []byte) {
	d.phase, d.state, d.from = sending, state, 0
	d.binding.Touch(e)
}

// Wake returns when the next round is due.
func (d *departure) Wake(engine.Entry) time.Duration {
	if d.phase == readyToStop && d.rounds < maxRounds {
		return d.recopy
	}
	return machine.Never
}

// LinkChanged ends the departure with its link.
func (d *departure) LinkChanged(e engine.Entry, state link.State) {
	switch {
	case state == link.Up:
		d.publish(dxpuv1.MigrationState_MIGRATION_STATE_COPYING, "")
	case state == link.Down && d.phase < sent:
		d.fail(e, "the link to the box of the target: "+d.binding.Why(e))
	}
}

func (d *departure) fail(_ engine.Entry, why string) {
	d.phase = departureFailed
	d.device.Track(false)
	d.publish(dxpuv1.MigrationState_MIGRATION_STATE_FAILED, why)
}

func (d *departure) publish(state dxpuv1.MigrationState, detail string) {
	d.slot.publish(&dxpuv1.Migration{
		BindingId: d.id, State: state, Detail: detail, BytesSent: d.sent, BytesLeft: d.device.Changed(), Rounds: d.rounds,
	})
}

package gpu

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
)

// Fault is a kind of failure, for tests and demonstrations.
type Fault uint8

// Faults.
const (
	// Kill makes the device fall off the bus: it answers nothing, and no reset
	// revives it.
	Kill Fault = iota + 1
	// Hang stops the engines; registers still answer. A reset helps.
	Hang
	// ECCCorrected counts a single-bit error.
	ECCCorrected
	// ECCUncorrectable counts a double-bit error and halts every busy queue.
	ECCUncorrectable
)

var faultNames = [...]string{"", "kill", "hang", "ecc-corrected", "ecc-uncorrectable"}

// String returns the name that ParseFault reads.
func (f Fault) String() string {
	if f >= Kill && int(f) < len(faultNames) {
		return faultNames[f]
	}
	return fmt.Sprintf("Fault(%d)", uint8(f))
}

// ParseFault reads the name of a fault.
func ParseFault(s string) (Fault, error) {
	if i := slices.Index(faultNames[Kill:], s); i >= 0 {
		return Kill + Fault(i), nil
	}
	return 0, fmt.Errorf("gpu: unknown fault %q: want one of %q", s, faultNames[Kill:])
}

// Inject makes the GPU fail. The next Transmit sends the interrupts of the failure.
func (g *GPU) Inject(f Fault) {
	switch f {
	case Kill:
		g.dead = true
		g.noteXID(reg.XIDLost)
	case Hang:
		g.hung = true
	case ECCCorrected:
		g.regs.eccCorrected++
	case ECCUncorrectable:
		g.regs.eccFatal++
		g.event(reg.XIDDoubleBit)
		for i := range g.queues {
			if q := &g.queues[i]; q.currentState() == reg.QueueBusy {
				g.halt(q, reg.ErrECC, 0, 0)
			}
		}
	}
}

// InjectXID makes the GPU report an XID. The XID of a Fault has the effects of the
// fault.
func (g *GPU) InjectXID(code uint32) {
	switch code {
	case reg.XIDLost:
		g.Inject(Kill)
	case reg.XIDDoubleBit:
		g.Inject(ECCUncorrectable)
	default:
		g.event(code)
	}
}

// Errors implements device.ErrorCounter with the count of each XID since New.
// Resets keep the counts.
func (g *GPU) Errors() []device.ErrorCount {
	var out []device.ErrorCount
	for _, code := range slices.Sorted(maps.Keys(g.xids)) {
		out = append(out, device.ErrorCount{Code: code, Count: g.xids[code]})
	}
	return out
}

// maxXIDs bounds the number of counters. There are fewer XIDs.
const maxXIDs = 64

func (g *GPU) noteXID(code uint32) {
	g.regs.xid = code
	if g.xids == nil {
		g.xids = map[uint32]uint64{}
	}
	if _, ok := g.xids[code]; ok || len(g.xids) < maxXIDs {
		g.xids[code]++
	}
}

// event records an XID and interrupts.
func (g *GPU) event(xid uint32) {
	g.noteXID(xid)
	g.raise(reg.IntDevice, g.regs.intVector)
}

// Health is the state of a GPU as its box reports it.
type Health struct {
	Alive            bool
	XID              uint32 // newest event since reset, a reg.XID constant
	ECCCorrected     uint32
	ECCUncorrectable uint32
	Busy             bool // a queue has work
	MilliCelsius     uint32
	MilliWatts       uint32
}

// Health returns the present state.
func (g *GPU) Health() Health {
	h := Health{
		Alive: !g.dead, XID: g.regs.xid, ECCCorrected: g.regs.eccCorrected, ECCUncorrectable: g.regs.eccFatal,
		Busy: g.jobOut != nil || g.status()&reg.StatusBusy != 0,
	}
	// Two operating points of the paper's V100: idle and at its limit.
	h.MilliCelsius, h.MilliWatts = 38_000, 42_000
	if h.Busy {
		h.MilliCelsius, h.MilliWatts = 67_000, 290_000
	}
	return h
}

var (
	_ device.Device       = (*GPU)(nil)
	_ device.Describer    = (*GPU)(nil)
	_ device.Checker      = (*GPU)(nil)
	_ device.ErrorCounter = (*GPU)(nil)
	_ device.Scrubber     = (*GPU)(nil)
	_ device.TagCounter   = (*GPU)(nil)
	_ device.Limited      = (*GPU)(nil)
	_ device.Patient      = (*GPU)(nil)
)

// Model makes software GPUs with the parameters of Spec. A GPU without a serial
// number gets that of its place.
func Model() device.Model {
	return device.NewModel("gpu", "software GPU", "", func(_ context.Context, at device.Place, spec Spec) (device.Device, error) {
		spec.Serial = cmp.Or(spec.Serial, at.Serial())
		return New(spec)
	})
}

// Info implements device.Describer.
func (g *GPU) Info() device.Info {
	out := device.Info{
		Model: g.spec.Model, Serial: fmt.Sprintf("%016x", g.spec.Serial), Memory: uint64(g.spec.VRAM),
		Vendor: reg.VendorID, Device: reg.DeviceID,
	}
	for i := range out.BARs {
		b := g.cfg.BAR(i)
		out.BARs[i] = pcie.BAR{Size: b.Size, Wide: b.Kind == cfgspace.Memory64, IO: b.Kind == cfgspace.IO, Prefetchable: b.Prefetchable}
	}
	return out
}

// Check implements device.Checker: a GPU off the bus, or with a memory error
// that was not corrected, does not work.
func (g *GPU) Check() (ok bool, detail string) {
	switch h := g.Health(); {
	case !h.Alive:
		return false, fmt.Sprintf("the GPU has fallen off the bus (XID %d)", reg.XIDLost) // h.XID is that since the last reset
	case h.XID == reg.XIDDoubleBit:
		return false, fmt.Sprintf("double-bit memory error (XID %d), %d so far", h.XID, h.ECCUncorrectable)
	}
	return true, ""
}

// TagsInUse implements device.TagCounter for the DMA reads.
func (g *GPU) TagsInUse() (n, limit int) { return g.req.InFlight(), g.req.Tags() }

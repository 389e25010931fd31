package hostproxy

import (
	"encoding/binary"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// vm is the port of a slot towards a virtual machine: it serves the device at a
// vfio-user socket. It turns the VMM's accesses into TLPs with the addresses that
// the guest programmed, and does the device's DMA in the memory that the VMM shares.
type vm struct {
	vfiouser.NopHandler

	slot   *slot
	log    *slog.Logger
	device *remote // result of the probe
	root   *requestPort
	// messageDMA accepts memory that comes without a descriptor.
	messageDMA bool
	estate     *estate // nil: none outlives the proxy

	// Guarded by the group:
	lost  bool // the device is gone, and the slot may have another one
	conn  *vfiouser.Conn
	bus   *vfiouser.Conn // whose memory the device reaches; nil: none
	power uint8          // power state of the function, if leaving it matters
	reads readQueue
	out   tlp.Packet

	resting bool       // the device is being reset, for the next VMM
	unsent  *accessRun // requests of that reset that wait for room; nil: none

	useless atomic.Pointer[string] // why memory of this connection was refused; nil: none was

	full atomic.Bool // TLPs wait for room in the queue of the connection's messages

	refused atomic.Bool // the guest refused to eject the device

	open     atomic.Int32 // accesses that the device has not answered
	answered reader.Wait  // until open is 0

	// Method values, made once: they would allocate in the paths that use them.
	writeMem             func(addr uint64, src []byte) pcie.CplStatus
	readMem              func(addr uint64, dst []byte) pcie.CplStatus
	fetchMem             func(addr uint64, n int) []byte
	tryMem               func(addr uint64, dst []byte) bool
	sendTLP              func(*tlp.Packet) bool
	onWrote, onSignalled func(error)
}

var (
	_ runPort          = (*vm)(nil)
	_ vfiouser.Handler = (*vm)(nil)
)

func newVM(s *slot, device *remote) *vm {
	v := &vm{slot: s, log: s.host.log.With("slot", s.index), device: device, root: s.root}
	v.writeMem, v.readMem, v.fetchMem, v.tryMem, v.sendTLP = v.write, v.read, v.fetch, v.tryRead, v.toDevice
	v.onWrote, v.onSignalled = v.wrote, v.signalled
	v.answered = reader.Wait{Ready: func() bool { return v.open.Load() == 0 }}
	v.reads.buf = make([]byte, pcie.MaxPayload+2*pcie.DW)
	return v
}

// serverConfig describes the device to VMMs.
func (v *vm) serverConfig(deadline time.Duration, polling reader.Polling) vfiouser.Config {
	cfg := vfiouser.Config{
		// Hidden while QEMU realizes the device, so that QEMU does not virtualise
		// MSI-X: the guest then programs the device's own table, an interrupt is
		// an ordinary memory write, and unplugging is safe.
		HideMSIXAtRealize: true,
		Resettable:        v.device.flr,
		WriteMultiple:     true,
		Deadline:          deadline,
		Polling:           polling,
		Journal:           v.estate.journal(),
		// A write of the device must not delay the answer to an access: the VMM
		// takes no message before that answer. This number of writes of 128 bytes
		// is 2 MiB, or 1.6 ms at 10 Gb/s.
		MaxDMA:  1 << 14,
		Handler: v,
		Logger:  v.log,
	}
	const rw = vfiouser.RegionFlagRead | vfiouser.RegionFlagWrite
	for i, bar := range v.device.bars {
		// I/O BARs stay hidden: a PCI Express endpoint must work without
		// them (section 7.5.1.2.1).
		if bar.Size > 0 && !bar.IO {
			cfg.Regions[i] = vfiouser.Region{Size: bar.Size, Flags: rw}
		}
	}
	cfg.Regions[vfiouser.RegionConfig] = vfiouser.Region{Size: uint64(len(v.device.config)), Flags: rw}
	if v.device.config[cfgspace.OffIntPin] != 0 {
		cfg.IRQs[vfiouser.IRQINTx] = 1
	}
	// The device writes its messages to memory itself; VMMs arm the vectors
	// nevertheless, and log an error when they cannot.
	cfg.IRQs[vfiouser.IRQMSI] = uint32(v.device.msiVectors)
	cfg.IRQs[vfiouser.IRQMSIX] = uint32(v.device.msixVectors)
	cfg.IRQs[vfiouser.IRQReq] = 1
	return cfg
}

// Connected notes the VMM's connection.
func (v *vm) Connected(c *vfiouser.Conn) {
	e := v.slot.host.group.Enter()
	v.conn = c
	v.admit(e)
	v.slot.host.group.Leave(e)
	v.slot.host.waiter.Attend()
	v.useless.Store(nil)
	v.log.Info("VMM connected")
	if err := v.estate.put(c); err != nil {
		v.log.Warn("the VMM's connection ends with this process", "err", err)
	}
}

// Disconnected drops the VMM's connection and resets the device. Further DMA is refused.
func (v *vm) Disconnected(c *vfiouser.Conn, err error) {
	e := v.slot.host.group.Enter()
	if v.conn == c {
		v.conn, v.bus = nil, nil
		v.rest(e)
	}
	v.slot.host.group.Leave(e)
	v.slot.host.waiter.Attend()
	v.log.Info("VMM disconnected", "err", errors.Join(err, v.estate.remove()))
	v.slot.wake() // the guest may have removed the device
}

// Access turns an access of the VMM into TLPs. It runs in the goroutine that
// reads the socket and blocks it while the link is full: that is the guest's
// back-pressure. When the VMM waits for this answer alone, the goroutine reads the
// network itself until the answer arrives.
func (v *vm) Access(_ *vfiouser.Conn, a *vfiouser.Access) {
	g := v.slot.host.group
	e := g.Enter()
	more := a.More // Reply recycles the access
	run := v.start(e, a)
	for v.step(e, &run) != nil {
		e = v.slot.yield(e)
	}
	switch {
	case more && run.kind == memWrite:
		g.LeaveSoon(e) // writes that came together leave together
	case more || run.kind == memWrite || run.kind == answered:
		g.Leave(e)
		v.slot.host.waiter.Attend()
	default:
		g.Leave(e)
		v.slot.host.waiter.Await(&v.answered)
	}
}

// accessRun is an access during its conversion into requests.
type accessRun struct {
	access *vfiouser.Access
	kind   accessKind
	addr   uint64 // bus address, or offset in configuration space
	at     int    // bytes covered by the requests sent
	op     int    // operation of the non-posted requests
	reset  bool   // the access resets the function: restore its BARs
	bar    int    // BARs restored so far
}

type accessKind uint8

const (
	answered  accessKind = iota // done
	memRead                     // of a BAR
	memWrite                    // to a BAR
	configAny                   // to or from configuration space
	resetAll                    // a function level reset, or without one the end of the device's DMA
)

// start classifies an access. It answers the read of the whole configuration
// space, by which a VMM identifies the device, from the result of the probe: QEMU
// does not survive an error there.
func (v *vm) start(e engine.Entry, a *vfiouser.Access) accessRun {
	run := accessRun{access: a, addr: a.Offset}
	switch {
	case a.Region == vfiouser.RegionConfig && !a.Write && len(a.Data) > 2*pcie.DW:
		copy(a.Data, v.device.config[a.Offset:])
		a.Reply()
		return run
	case v.lost && a.Region == vfiouser.RegionConfig:
		v.answerGone(a)
		return run
	case v.lost, a.Region != vfiouser.RegionConfig && int(a.Region) >= pcie.MaxBARs:
		a.Fail(nil) // all ones, as from a root complex that gets no answer (section 2.3.2)
		return run
	case a.Region == vfiouser.RegionConfig:
		run.kind = configAny
	case a.Write:
		run.kind = memWrite
	default:
		run.kind = memRead
	}
	if run.kind != configAny {
		entry, _ := v.slot.host.table.Entry(v.slot.index)
		run.addr += entry.BARAddress(int(a.Region))
	}
	if run.kind != memWrite {
		v.open.Add(1)
		run.op = v.root.begin(e, op{access: a, open: &v.open})
	}
	return run
}

// answerGone answers for the configuration space of a lost device, until the
// guest removes it, with its values after a reset. With all ones, Linux would wait
// a minute for the device to return from the reset at a driver's close, and the
// removal would wait too. Memory reads as all ones, which tells the drivers.
func (v *vm) answerGone(a *vfiouser.Access) {
	if !a.Write {
		copy(a.Data, v.device.config[a.Offset:])
	}
	a.Reply()
}

// step sends requests until all are sent, or errBusy. A write to a BAR is
// posted: step answers it when the link has taken it.
func (v *vm) step(e engine.Entry, run *accessRun) error {
	root, a := v.root, run.access
	switch run.kind {
	case memWrite:
		if err := root.write(e, run.addr, a.Data, v.device.payload, &run.at); err != nil {
			return err
		}
		a.Reply()
	case memRead:
		if err := root.read(e, run.op, run.addr, a.Data, &run.at); err != nil {
			return err
		}
		root.release(e, run.op)
	case configAny:
		for run.at < len(a.Data) {
			off := uint16(run.addr) + uint16(run.at)
			n := min(len(a.Data)-run.at, pcie.DW-int(off%pcie.DW))
			if err := v.configRequest(e, run, off, a.Data[run.at:run.at+n], a.Write); err != nil {
				return err
			}
			run.at += n
		}
		return v.restore(e, run)
	case resetAll:
		if run.at == 0 {
			off, value := uint16(cfgspace.OffCommand), []byte{0, 0}
			if v.device.flr {
				off, value[1] = uint16(v.device.express+cfgspace.OffDevCtl), cfgspace.DevCtlFLR>>8
			}
			if err := v.configRequest(e, run, off, value, true); err != nil {
				return err
			}
			run.at = 2
		}
		return v.restore(e, run)
	}
	return nil
}

// restore restores the BARs after a reset of the function, and ends the
// operation. VMMs and guests rely on it: QEMU answers reads of BARs itself, so
// a guest that reads them after the reset finds them unchanged and does not write
// them again, and vfio restores them on real hardware.
func (v *vm) restore(e engine.Entry, run *accessRun) error {
	root := v.root
	for run.reset && run.bar < pcie.MaxBARs {
		entry, _ := v.slot.host.table.Entry(v.slot.index)
		p := root.config(tlp.CfgWr0, uint16(cfgspace.OffBAR0+pcie.DW*run.bar), pcie.DW)
		p.Data = binary.LittleEndian.AppendUint32(root.pad[:0], entry.Register(run.bar))
		if err := root.request(e, run.op, p, nil); err != nil {
			return err
		}
		run.bar++
	}
	root.release(e, run.op)
	return nil
}

// configRequest sends the request for up to a double word of configuration space.
func (v *vm) configRequest(e engine.Entry, run *accessRun, off uint16, data []byte, write bool) error {
	root := v.root
	if !write {
		return root.request(e, run.op, root.config(tlp.CfgRd0, off, len(data)), data)
	}
	p := root.config(tlp.CfgWr0, off, len(data))
	p.Data = root.pad[:pcie.DW]
	clear(p.Data)
	copy(p.Data[off%pcie.DW:], data)
	if err := root.request(e, run.op, p, nil); err != nil {
		return err
	}
	run.reset = run.reset || v.note(e, p)
	return nil
}

// note snoops a configuration write on its way to the device, and reports whether
// it resets the function.
func (v *vm) note(_ engine.Entry, p *tlp.Packet) (reset bool) {
	v.slot.host.table.Snoop(v.slot.index, p)
	if to, ok := v.device.powerTo(p); ok {
		reset = v.power == d3hot && to == 0 // section 5.3.1.4
		v.power = to
	}
	if !reset && !v.device.startsFLR(p) {
		return false
	}
	v.power = 0
	v.slot.host.table.Disable(v.slot.index)
	return true
}

// Reset does a function level reset (DEVICE_RESET of the VMM).
func (v *vm) Reset(_ *vfiouser.Conn, done func(error)) {
	g := v.slot.host.group
	e := g.Enter()
	defer func() { g.Leave(e) }() // yield leaves and enters again
	if v.lost || !v.device.flr {
		done(nil)
		return
	}
	run := accessRun{kind: resetAll, op: v.root.begin(e, op{done: func(e engine.Entry, ok bool, status pcie.CplStatus) {
		if v.bus != v.conn {
			v.rested(e, ok, status)
		}
		done(nil)
	}})}
	for v.step(e, &run) != nil {
		e = v.slot.yield(e)
	}
}

// DeviceLost drops the DMA under way and the interrupt, which the device cannot
// take back any more. The slot has already cancelled the VM's requests.
func (v *vm) DeviceLost(engine.Entry) {
	v.lost = true
	v.reads.drop()
	if v.conn != nil {
		_ = v.conn.SetINTx(false) // an error: the device has none
	}
}

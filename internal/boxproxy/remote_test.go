package boxproxy_test

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

const (
	rigBAR    = 0xfe000000
	rigMSI    = 0xfee00000
	rigMemory = 0x100000
)

// rig is a host for one device of another process, TLP by TLP.
type rig struct {
	t       *testing.T
	dev     device.Device
	start   time.Time
	news    chan struct{}
	tag     pcie.Tag
	memory  []byte
	replies []tlp.Packet
	msis    []uint32 // data of interrupt messages
	wires   []uint8  // codes of INTx messages
	asked   []int    // bytes of each read of the device
	late    []tlp.Packet
	closed  bool // a full link: nothing is taken
}

func newRig(t *testing.T, d *toy) *rig {
	t.Helper()
	slot, stop, err := boxproxy.NewVFIOUserSlot(t.Context(), d.path, boxproxy.VFIOUserOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	r := &rig{t: t, dev: slot.Device, start: time.Now(), news: make(chan struct{}, 1), memory: make([]byte, 64<<10)}
	r.dev.(device.Notifier).SetNotify(func() {
		select {
		case r.news <- struct{}{}:
		default:
		}
	})
	r.configWrite(cfgspace.OffBAR0, 4, rigBAR)
	r.configWrite(cfgspace.OffCommand, 2, cfgspace.CmdMemory|cfgspace.CmdBusMaster)
	return r
}

func (r *rig) now() time.Duration { return time.Since(r.start) }

// take is the emit function.
func (r *rig) take(p *tlp.Packet) bool {
	if r.closed {
		return false
	}
	if err := p.Validate(); err != nil {
		r.t.Errorf("%v: %v", p.Type, err)
	}
	c := *p
	c.Data = bytes.Clone(p.Data)
	switch {
	case p.Type.Completion():
		r.replies = append(r.replies, c)
	case p.Type == tlp.Msg:
		r.wires = append(r.wires, p.Code)
	case p.Type == tlp.MWr && p.Addr >= rigMSI:
		r.msis = append(r.msis, binary.LittleEndian.Uint32(p.Data))
	case p.Type == tlp.MWr:
		transaction.WriteBytes(p, func(addr uint64, src []byte) pcie.CplStatus {
			copy(r.memory[addr-rigMemory:], src)
			return pcie.SuccessfulCompletion
		})
	case p.Type == tlp.MRd:
		r.asked = append(r.asked, int(p.Length)*4)
		r.answer(&c)
	}
	return true
}

// answer completes a read of the device, later: a device is not called while it transmits.
func (r *rig) answer(p *tlp.Packet) {
	var out tlp.Packet
	var job transaction.ReadJob
	job.Start(p, 0, 64, 128)
	var all []tlp.Packet
	job.Emit(&out, make([]byte, 256), func(addr uint64, dst []byte) pcie.CplStatus {
		if addr < rigMemory || addr+uint64(len(dst)) > rigMemory+uint64(len(r.memory)) {
			return pcie.UnsupportedRequest
		}
		copy(dst, r.memory[addr-rigMemory:])
		return pcie.SuccessfulCompletion
	}, func(p *tlp.Packet) bool {
		c := *p
		c.Data = bytes.Clone(p.Data)
		all = append(all, c)
		return true
	})
	r.late = append(r.late, all...)
}

// until pumps until cond holds.
func (r *rig) until(what string, cond func() bool) {
	r.t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	again := time.NewTicker(time.Millisecond) // for what happens in the toy
	defer again.Stop()
	for {
		r.dev.Transmit(r.now(), r.take)
		if late := r.late; len(late) > 0 {
			r.late = nil
			for i := range late {
				r.dev.Receive(r.now(), &late[i])
			}
			continue
		}
		if cond() {
			return
		}
		select {
		case <-r.news:
		case <-again.C:
		case <-deadline.C:
			r.t.Fatalf("%s does not happen", what)
		}
	}
}

// request sends a request and returns the data of its completions.
func (r *rig) request(p *tlp.Packet) ([]byte, pcie.CplStatus) {
	r.t.Helper()
	r.tag = (r.tag + 1) % 256
	p.Tag, r.replies = r.tag, nil
	r.dev.Receive(r.now(), p)
	var data []byte
	var status pcie.CplStatus
	r.until(p.Type.String(), func() bool {
		data = nil
		for _, c := range r.replies {
			data, status = append(data, c.Data...), c.Status
			if !c.Type.HasData() || int(c.ByteCount) <= len(c.Data) {
				return true
			}
		}
		return false
	})
	return data, status
}

func (r *rig) configRead(off int) uint32 {
	r.t.Helper()
	data, status := r.request(&tlp.Packet{Type: tlp.CfgRd0, Length: 1, Target: 0x100, Register: uint16(off), FirstBE: 0xf})
	if status != pcie.SuccessfulCompletion || len(data) != 4 {
		r.t.Fatalf("configuration read at %#x: %v, %x", off, status, data)
	}
	return binary.LittleEndian.Uint32(data)
}

func (r *rig) configWrite(off, width int, v uint32) {
	r.t.Helper()
	be := uint8(1<<width-1) << (off % 4)
	p := tlp.Packet{
		Type: tlp.CfgWr0, Length: 1, Target: 0x100, Register: uint16(off &^ 3), FirstBE: be,
		Data: binary.LittleEndian.AppendUint32(nil, v<<(off%4*8)),
	}
	if _, status := r.request(&p); status != pcie.SuccessfulCompletion {
		r.t.Fatalf("configuration write at %#x: %v", off, status)
	}
}

func (r *rig) read(off uint64, n int) ([]byte, pcie.CplStatus) {
	r.t.Helper()
	p := tlp.Packet{Type: tlp.MRd}
	p.SetMemory(rigBAR+off, n)
	return r.request(&p)
}

func (r *rig) read32(off uint64) uint32 {
	r.t.Helper()
	data, status := r.read(off, 4)
	if status != pcie.SuccessfulCompletion {
		r.t.Fatalf("read at %#x: %v", off, status)
	}
	return binary.LittleEndian.Uint32(data)
}

func (r *rig) write32(off uint64, v uint32) {
	p := tlp.Packet{Type: tlp.MWr, Data: binary.LittleEndian.AppendUint32(nil, v)}
	p.SetMemory(rigBAR+off, 4)
	r.dev.Receive(r.now(), &p)
}

func TestDeviceServerRefused(t *testing.T) {
	for _, c := range []struct {
		name, want string
		change     func(*toy)
		options    boxproxy.VFIOUserOptions
	}{
		{"fine", "", nil, boxproxy.VFIOUserOptions{}},
		{"no mapping without a descriptor", "no DMA by messages", func(d *toy) { d.noDMA = true }, boxproxy.VFIOUserOptions{}},
		{"small mappings only", "", func(d *toy) { d.most = 8 << 40 }, boxproxy.VFIOUserOptions{}},
		{"as QEMU's", "x-vfio-user-server", func(d *toy) { d.strict, d.table = true, true }, boxproxy.VFIOUserOptions{}},
		{"strict, but known", "", func(d *toy) { d.strict, d.table = true, true }, boxproxy.VFIOUserOptions{MessageDMA: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newToy(t, c.change)
			slot, stop, err := boxproxy.NewVFIOUserSlot(t.Context(), d.path, c.options)
			if c.want != "" {
				if err == nil || !strings.Contains(err.Error(), c.want) {
					t.Fatalf("error %v, want one with %q", err, c.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			want := device.Info{Model: "vfio-user device 1234:70f0", Serial: "0000000000abcdef", Vendor: toyVendor, Device: toyDevice}
			want.BARs[0] = pcie.BAR{Size: toyBAR}
			if got := slot.Device.(device.Describer).Info(); got != want {
				t.Errorf("info %+v, want %+v", got, want)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
		})
	}
	if _, _, err := boxproxy.NewVFIOUserSlot(t.Context(), "/nowhere", boxproxy.VFIOUserOptions{}); err == nil {
		t.Error("a slot without a server")
	}
}

func TestDeviceServerConfig(t *testing.T) {
	r := newRig(t, newToy(t, func(d *toy) { d.fixed = true }))
	if id := r.configRead(0); id != toyDevice<<16|toyVendor {
		t.Errorf("ID %#x", id)
	}
	r.configWrite(cfgspace.OffBAR0, 4, 0xffffffff)
	if v := r.configRead(cfgspace.OffBAR0); v != 1<<32-toyBAR {
		t.Errorf("BAR 0 sizes as %#x", v)
	}
	r.configWrite(cfgspace.OffBAR0, 4, rigBAR)
	r.configWrite(cfgspace.OffBAR0+4, 4, 0xffffffff)
	r.configWrite(cfgspace.OffROM, 4, 0xfffff800)
	for off, want := range map[int]uint32{cfgspace.OffBAR0: rigBAR, cfgspace.OffBAR0 + 4: 0, cfgspace.OffROM: 0} {
		if v := r.configRead(off); v != want {
			t.Errorf("register %#x is %#x, want %#x", off, v, want)
		}
	}
	r.configWrite(cfgspace.OffIntLine, 1, 0x5a)
	if v := r.configRead(cfgspace.OffIntLine); v != 0x15a {
		t.Errorf("interrupt line and pin %#x, want 0x15a", v)
	}
}

func TestDeviceServerMemory(t *testing.T) {
	r := newRig(t, newToy(t, nil))
	p := tlp.Packet{Type: tlp.MWr, Data: []byte{1, 2, 3, 4, 5, 6, 7, 8}, Length: 2, FirstBE: 0b1001, LastBE: 0b0110}
	p.SetAddr(rigBAR)
	r.dev.Receive(0, &p)
	data, status := r.read(0, 8)
	if want := []byte{1, 0, 0, 4, 0, 6, 7, 0}; status != pcie.SuccessfulCompletion || !bytes.Equal(data, want) {
		t.Errorf("byte enables: %v %x, want %x", status, data, want)
	}
	if data, status = r.read(3, 3); status != pcie.SuccessfulCompletion || !bytes.Equal(data, []byte{0, 0, 0, 4, 0, 6, 0, 0}) {
		t.Errorf("three bytes: %v %x", status, data)
	}
	if data, status := r.read(0, 0); status != pcie.SuccessfulCompletion || len(data) != 4 {
		t.Errorf("zero-length read: %v %x", status, data)
	}
	if data, status := r.read(0, 1024); status != pcie.SuccessfulCompletion || len(data) != 1024 {
		t.Errorf("long read: %v, %d bytes", status, len(data))
	}
	if _, status := r.read(toyTable+16*toyVectors, 4); status != pcie.UnsupportedRequest {
		t.Errorf("what the server refuses: %v", status)
	}
	if _, status := r.read(toyBAR, 4); status != pcie.UnsupportedRequest {
		t.Errorf("outside the BAR: %v", status)
	}
	for _, typ := range []tlp.Type{tlp.IORd, tlp.MRdLk} {
		p := tlp.Packet{Type: typ, Length: 1, FirstBE: 0xf, Addr: rigBAR}
		if _, status := r.request(&p); status != pcie.UnsupportedRequest {
			t.Errorf("%v: %v", typ, status)
		}
	}
}

// DMA goes by the sizes of Device Control, and waits for a link that is full.
func TestDeviceServerDMA(t *testing.T) {
	d := newToy(t, nil)
	r := newRig(t, d)
	const express = 0x40
	r.configWrite(express+cfgspace.OffDevCtl, 2, cfgspace.DevCtlExtTag|1<<12) // MRRS 256
	copy(r.memory, bytes.Repeat([]byte{7}, 4096))
	r.write32(toyAddr, rigMemory+8)
	r.write32(toyLen, 4000)
	r.closed = true
	r.write32(toyCommand, toyRead)
	r.dev.Transmit(r.now(), r.take)
	r.closed = false
	r.until("the read", func() bool { return d.get(toyDone) == 1 })
	for _, n := range r.asked {
		if n > 256 {
			t.Errorf("asked for %d bytes", n)
		}
	}
	if len(r.asked) < 4000/256 || d.get(toyFailed) != 0 {
		t.Errorf("%d requests, %d failed", len(r.asked), d.get(toyFailed))
	}
	r.write32(toyAddr, rigMemory+8193)
	r.write32(toyCommand, toyWrite)
	r.until("the write", func() bool { return d.get(toyDone) == 2 })
	if want := bytes.Repeat([]byte{8}, 4000); !bytes.Equal(r.memory[8193:8193+4000], want) {
		t.Error("other bytes arrived")
	}
	r.write32(toyAddr, 0x1000) // refused by the host
	r.write32(toyCommand, toyRead)
	r.until("the refused read", func() bool { return d.get(toyDone) == 3 })
	if d.get(toyFailed) != 1 {
		t.Error("a read that the host refused worked")
	}
}

func (r *rig) enableMSIX() (control int) {
	const msixCap = 0x94
	if id := r.configRead(msixCap) & 0xff; id != cfgspace.CapMSIX {
		r.t.Fatalf("capability %#x at %#x", id, msixCap)
	}
	for v := range uint64(toyVectors) {
		r.write32(toyTable+16*v, rigMSI)
		r.write32(toyTable+16*v+8, 0x40+uint32(v))
	}
	r.configWrite(msixCap+2, 2, cfgspace.MSIXEnable)
	return msixCap + 2
}

func (r *rig) fire(vector uint32) {
	r.write32(toyVector, vector)
	r.write32(toyCommand, toyFire)
}

func TestDeviceServerMSIX(t *testing.T) {
	r := newRig(t, newToy(t, nil))
	control := r.enableMSIX()
	mask := func(v uint64, bit uint32) { r.write32(toyTable+16*v+12, bit) }
	for v := range uint64(toyVectors) {
		mask(v, 0)
	}
	if got := r.read32(toyTable + 16*2 + 8); got != 0x42 {
		t.Errorf("table says %#x", got)
	}
	r.fire(2)
	r.until("vector 2", func() bool { return len(r.msis) == 1 && r.msis[0] == 0x42 })

	mask(1, 1)
	r.fire(1)
	r.until("pending bit 1", func() bool { return r.read32(toyPBA) == 1<<1 })
	r.fire(3)
	r.until("vector 3", func() bool { return len(r.msis) == 2 && r.msis[1] == 0x43 })
	mask(1, 0)
	r.until("vector 1 after its mask", func() bool { return len(r.msis) == 3 && r.msis[2] == 0x41 })

	r.configWrite(control, 2, cfgspace.MSIXEnable|cfgspace.MSIXMask)
	r.fire(0)
	r.until("pending bit 0", func() bool { return r.read32(toyPBA) == 1 })
	r.configWrite(control, 2, cfgspace.MSIXEnable)
	r.until("vector 0 after the function's mask", func() bool { return len(r.msis) == 4 && r.msis[3] == 0x40 })

	r.configWrite(control, 2, 0)
	r.fire(2)
	_ = r.read32(toyScratch) // behind the command
	r.configWrite(control, 2, cfgspace.MSIXEnable)
	r.fire(1)
	r.until("vector 1 after enabling again", func() bool { return len(r.msis) == 5 })
	if r.msis[4] != 0x41 {
		t.Errorf("interrupts %#x: one was sent while MSI-X was off", r.msis)
	}
}

func TestDeviceServerMSI(t *testing.T) {
	r := newRig(t, newToy(t, nil))
	const msiCap = 0x7c
	if id := r.configRead(msiCap) & 0xff; id != cfgspace.CapMSI {
		t.Fatalf("capability %#x at %#x", id, msiCap)
	}
	r.configWrite(msiCap+4, 4, rigMSI)
	r.configWrite(msiCap+12, 2, 0x50)
	r.configWrite(msiCap+2, 2, cfgspace.MSIEnable|2<<4) // 4 vectors
	r.fire(3)
	r.until("vector 3", func() bool { return len(r.msis) == 1 && r.msis[0] == 0x53 })
	r.configWrite(msiCap+16, 4, 1<<1)
	r.fire(1)
	r.fire(2)
	r.until("vector 2", func() bool { return len(r.msis) == 2 && r.msis[1] == 0x52 })
	r.configWrite(msiCap+16, 4, 0)
	r.until("vector 1 after its mask", func() bool { return len(r.msis) == 3 && r.msis[2] == 0x51 })
}

func TestDeviceServerINTx(t *testing.T) {
	d := newToy(t, nil)
	r := newRig(t, d)
	r.write32(toyCommand, toyRaise)
	r.until("INTA", func() bool { return len(r.wires) == 1 && r.wires[0] == tlp.CodeAssertINTA })
	// The handler looks at the device: taken for the end, and the level raises it again.
	_ = r.read32(toyScratch)
	r.until("INTA again", func() bool { return len(r.wires) == 3 })
	if r.wires[1] != tlp.CodeDeassertINTA || r.wires[2] != tlp.CodeAssertINTA {
		t.Errorf("messages %#x", r.wires)
	}
	acks := d.get(toyAcks)
	r.write32(toyCommand, toyLower)
	r.until("the end of INTA", func() bool { return d.get(toyAcks) > acks && r.wires[len(r.wires)-1] == tlp.CodeDeassertINTA })
	r.configWrite(cfgspace.OffCommand, 2, cfgspace.CmdMemory|cfgspace.CmdBusMaster|cfgspace.CmdINTxDisable)
	n := len(r.wires)
	r.write32(toyCommand, toyRaise)
	r.write32(toyCommand, toyLower)
	_ = r.read32(toyScratch)
	if len(r.wires) != n {
		t.Errorf("INTx while it is disabled: %#x", r.wires[n:])
	}
}

func TestDeviceServerFunctionLevelReset(t *testing.T) {
	d := newToy(t, nil)
	r := newRig(t, d)
	r.enableMSIX()
	r.write32(toyScratch, 5)
	before := d.get(toyResets)
	r.configWrite(0x40+cfgspace.OffDevCtl, 2, cfgspace.DevCtlFLR)
	if got := d.get(toyResets); got != before+1 {
		t.Errorf("answered after %d resets", got-before)
	}
	if v := r.configRead(cfgspace.OffBAR0); v != 0 {
		t.Errorf("BAR 0 is %#x after the reset", v)
	}
	if _, status := r.read(toyScratch, 4); status != pcie.UnsupportedRequest {
		t.Errorf("memory decode after the reset: %v", status)
	}
	r.configWrite(cfgspace.OffBAR0, 4, rigBAR)
	r.configWrite(cfgspace.OffCommand, 2, cfgspace.CmdMemory)
	if v := r.read32(toyTable + 12); v != 1 {
		t.Errorf("vector control %#x after the reset, want masked", v)
	}
}

// What was under way when the slot resets the device is not seen any more, and
// the server's requests are answered.
func TestDeviceServerResetUnderWay(t *testing.T) {
	d := newToy(t, nil)
	r := newRig(t, d)
	r.closed = true
	r.write32(toyAddr, rigMemory)
	r.write32(toyLen, 65536)
	r.write32(toyCommand, toyRead)
	p := tlp.Packet{Type: tlp.MRd}
	p.SetMemory(rigBAR, 4)
	r.dev.Receive(r.now(), &p)
	r.until("the request", func() bool { return d.server.Stats().DMAMessages > 0 })
	r.dev.Reset(r.now(), device.ConventionalReset)
	r.closed, r.replies, r.asked = false, nil, nil
	r.until("the end of the DMA", func() bool { return d.get(toyDone) == 1 || d.get(toyResets) > 1 })
	if len(r.asked) != 0 || len(r.replies) != 0 {
		t.Errorf("%d reads and %d completions of before the reset", len(r.asked), len(r.replies))
	}
}

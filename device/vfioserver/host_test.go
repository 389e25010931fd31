package vfioserver_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/vfioserver"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

const (
	barBase    = 0xfe000000
	msiBase    = 0xfee00000
	memoryBase = 0x100000
)

// tlpHost drives the device of a server TLP by TLP, as its host.
type tlpHost struct {
	t       *testing.T
	dev     *vfioserver.Device
	start   time.Time
	news    chan struct{}
	tag     pcie.Tag
	memory  []byte
	replies []tlp.Packet
	msis    []uint32 // data of interrupt messages
	wires   []uint8  // codes of INTx messages
	asked   []int    // bytes of each read of the device
	wrote   []int    // bytes of each write
	late    []tlp.Packet
	closed  bool // a full link: nothing is taken
}

func newTLPHost(t *testing.T, d *toy) *tlpHost {
	t.Helper()
	dev := startDevice(t, vfioserver.Spec{Socket: d.path})
	if ok, why := dev.Check(); !ok {
		t.Fatal(why)
	}
	h := &tlpHost{t: t, dev: dev, start: time.Now(), news: make(chan struct{}, 1), memory: make([]byte, 64<<10)}
	dev.SetNotify(func() {
		select {
		case h.news <- struct{}{}:
		default:
		}
	})
	h.configWrite(cfgspace.OffBAR0, 4, barBase)
	h.configWrite(cfgspace.OffCommand, 2, cfgspace.CmdMemory|cfgspace.CmdBusMaster)
	return h
}

func (h *tlpHost) now() time.Duration { return time.Since(h.start) }

// take is the emit function.
func (h *tlpHost) take(p *tlp.Packet) bool {
	if h.closed {
		return false
	}
	if err := p.Validate(); err != nil {
		h.t.Errorf("%v: %v", p.Type, err)
	}
	c := *p
	c.Data = bytes.Clone(p.Data)
	switch {
	case p.Type.Completion():
		h.replies = append(h.replies, c)
	case p.Type == tlp.Msg:
		h.wires = append(h.wires, p.Code)
	case p.Type == tlp.MWr && p.Addr >= msiBase:
		h.msis = append(h.msis, binary.LittleEndian.Uint32(p.Data))
	case p.Type == tlp.MWr:
		h.wrote = append(h.wrote, len(p.Data))
		transaction.WriteBytes(p, func(addr uint64, src []byte) pcie.CplStatus {
			copy(h.memory[addr-memoryBase:], src)
			return pcie.SuccessfulCompletion
		})
	case p.Type == tlp.MRd:
		h.asked = append(h.asked, int(p.Length)*4)
		h.answer(&c)
	}
	return true
}

// answer completes a read of the device, later: a device is not called while it transmits.
func (h *tlpHost) answer(p *tlp.Packet) {
	var out tlp.Packet
	var job transaction.ReadJob
	job.Start(p, 0, 64, 128)
	var all []tlp.Packet
	job.Emit(&out, make([]byte, 256), func(addr uint64, dst []byte) pcie.CplStatus {
		if addr < memoryBase || addr+uint64(len(dst)) > memoryBase+uint64(len(h.memory)) {
			return pcie.UnsupportedRequest
		}
		copy(dst, h.memory[addr-memoryBase:])
		return pcie.SuccessfulCompletion
	}, func(p *tlp.Packet) bool {
		c := *p
		c.Data = bytes.Clone(p.Data)
		all = append(all, c)
		return true
	})
	h.late = append(h.late, all...)
}

// until pumps until cond holds.
func (h *tlpHost) until(what string, cond func() bool) {
	h.t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	again := time.NewTicker(time.Millisecond) // for what happens in the toy
	defer again.Stop()
	for {
		h.dev.Transmit(h.now(), h.take)
		if late := h.late; len(late) > 0 {
			h.late = nil
			for i := range late {
				h.dev.Receive(h.now(), &late[i])
			}
			continue
		}
		if cond() {
			return
		}
		select {
		case <-h.news:
		case <-again.C:
		case <-deadline.C:
			h.t.Fatalf("%s does not happen", what)
		}
	}
}

// request sends a request and returns the data of its completions.
func (h *tlpHost) request(p *tlp.Packet) ([]byte, pcie.CplStatus) {
	h.t.Helper()
	h.tag = (h.tag + 1) % 256
	p.Tag, h.replies = h.tag, nil
	h.dev.Receive(h.now(), p)
	var data []byte
	var status pcie.CplStatus
	h.until(p.Type.String(), func() bool {
		data = nil
		for _, c := range h.replies {
			data, status = append(data, c.Data...), c.Status
			if !c.Type.HasData() || int(c.ByteCount) <= len(c.Data) {
				return true
			}
		}
		return false
	})
	return data, status
}

func (h *tlpHost) configRead(off int) uint32 {
	h.t.Helper()
	data, status := h.request(&tlp.Packet{Type: tlp.CfgRd0, Length: 1, Target: 0x100, Register: uint16(off), FirstBE: 0xf})
	if status != pcie.SuccessfulCompletion || len(data) != 4 {
		h.t.Fatalf("configuration read at %#x: %v, %x", off, status, data)
	}
	return binary.LittleEndian.Uint32(data)
}

func (h *tlpHost) configWrite(off, width int, v uint32) {
	h.t.Helper()
	be := uint8(1<<width-1) << (off % 4)
	p := tlp.Packet{
		Type: tlp.CfgWr0, Length: 1, Target: 0x100, Register: uint16(off &^ 3), FirstBE: be,
		Data: binary.LittleEndian.AppendUint32(nil, v<<(off%4*8)),
	}
	if _, status := h.request(&p); status != pcie.SuccessfulCompletion {
		h.t.Fatalf("configuration write at %#x: %v", off, status)
	}
}

func (h *tlpHost) read(off uint64, n int) ([]byte, pcie.CplStatus) {
	h.t.Helper()
	p := tlp.Packet{Type: tlp.MRd}
	p.SetMemory(barBase+off, n)
	return h.request(&p)
}

func (h *tlpHost) read32(off uint64) uint32 {
	h.t.Helper()
	data, status := h.read(off, 4)
	if status != pcie.SuccessfulCompletion {
		h.t.Fatalf("read at %#x: %v", off, status)
	}
	return binary.LittleEndian.Uint32(data)
}

func (h *tlpHost) write32(off uint64, v uint32) {
	p := tlp.Packet{Type: tlp.MWr, Data: binary.LittleEndian.AppendUint32(nil, v)}
	p.SetMemory(barBase+off, 4)
	h.dev.Receive(h.now(), &p)
}

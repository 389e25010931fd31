// Package devicetest tests devices: it has a conformance suite for every
// device.Device, and a small host in memory and virtual time.
package devicetest

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Interrupt is one MSI or MSI-X message: a write to InterruptBase.
type Interrupt struct {
	At   time.Duration
	Addr uint64
	Data uint32
}

// InterruptBase is where the host takes interrupts, 1 MiB as on a PC.
const (
	InterruptBase = 0xfee00000
	interruptSize = 1 << 20
	// First addresses that Enumerate gives to BARs.
	lowBARs  = 0x80000000
	highBARs = 0x4000000000
)

// TestHost is a root complex with memory for one device. Time is virtual:
// it passes in Run and RunUntil only. Requests of the host take no time, unless
// UpRate delays their completions; those of the device take Latency. Use NewHost to
// make one.
type TestHost struct {
	Device device.Device
	BDF    pcie.BDF
	Now    time.Duration
	// Latency is the round-trip time of a memory read of the device.
	Latency time.Duration
	// UpRate is the rate at which the link takes posted writes, in bytes of
	// payload per second; 0 is without limit.
	UpRate float64
	// Completion is Max_Payload_Size of the host's completions; 0 means 256.
	Completion int
	// OnRead may change the completion of a memory read of the device. It returns
	// the status, a delay beyond Latency, and false to never answer. nil: no
	// change.
	OnRead func(p *tlp.Packet) (status pcie.CplStatus, late time.Duration, answer bool)
	// OnJob runs a job's Run, for a test that acts beside it. nil: Run is called.
	OnJob func(run func())
	// OnWrite sees each posted write of the device before it takes effect.
	OnWrite func(p *tlp.Packet)

	Interrupts []Interrupt
	Messages   []tlp.Packet // messages of the device
	Refused    int          // requests of the device outside of memory

	memory   []region
	events   machine.Queue[func()]
	tag      pcie.Tag
	replies  map[pcie.Tag]*reply
	linkFree time.Duration // when the link is free again
	pumping  bool
	buf      [pcie.MaxPayload + 2*pcie.DW]byte
}

type region struct {
	base uint64
	data []byte
}

// reply collects the completions of one request of the host.
type reply struct {
	data   []byte
	status pcie.CplStatus
	left   int
	done   bool
	count  int
}

// NewHost makes a host for a device at 01:00.0, without memory.
func NewHost(d device.Device) *TestHost {
	return &TestHost{Device: d, BDF: pcie.NewBDF(1, 0, 0), replies: map[pcie.Tag]*reply{}}
}

// AddMemory gives the host memory at base and returns it; the slice aliases
// the memory that the device accesses.
func (h *TestHost) AddMemory(base uint64, size int) []byte {
	m := region{base: base, data: make([]byte, size)}
	h.memory = append(h.memory, m)
	return m.data
}

func (h *TestHost) find(addr uint64, n int) []byte {
	for _, m := range h.memory {
		if addr >= m.base && addr-m.base <= uint64(len(m.data)) && n <= len(m.data)-int(addr-m.base) {
			return m.data[addr-m.base:][:n]
		}
	}
	return nil
}

// After calls fn after d.
func (h *TestHost) After(d time.Duration, fn func()) {
	h.events.Push(h.Now+d, fn)
}

// Pump lets the device transmit and runs its jobs.
func (h *TestHost) Pump() {
	if h.pumping {
		return
	}
	h.pumping = true
	defer func() { h.pumping = false }()
	for {
		h.Device.Transmit(h.Now, h.take)
		job, ok := h.Device.NextJob()
		if !ok {
			return
		}
		if h.OnJob != nil {
			h.pumping = false // the test may use the host meanwhile
			h.OnJob(func() { finish(job) })
			h.pumping = true
		} else {
			finish(job)
		}
		h.After(job.Cost(), func() { h.Device.FinishJob(h.Now, job) })
	}
}

// finish runs a job to its end.
func finish(job device.Job) {
	for job.Run() {
	}
}

// take is the emit function.
func (h *TestHost) take(p *tlp.Packet) bool {
	switch {
	case p.Type.Completion():
		h.completion(p)
	case p.Type == tlp.MWr:
		if h.UpRate > 0 && h.linkFree > h.Now {
			return false
		}
		if h.UpRate > 0 {
			h.linkFree = h.Now + time.Duration(float64(len(p.Data))/h.UpRate*1e9)
			h.After(h.linkFree-h.Now, func() {})
		}
		h.write(p)
	case p.Type == tlp.MRd:
		h.read(p)
	case p.Type.Message():
		m := *p
		m.Data = append([]byte(nil), p.Data...)
		h.Messages = append(h.Messages, m)
	default:
		h.Refused++
	}
	return true
}

func (h *TestHost) write(p *tlp.Packet) {
	if h.OnWrite != nil {
		h.OnWrite(p)
	}
	if p.Addr >= InterruptBase && p.Addr < InterruptBase+interruptSize && len(p.Data) == 4 {
		h.Interrupts = append(h.Interrupts, Interrupt{h.Now, p.Addr, binary.LittleEndian.Uint32(p.Data)})
		return
	}
	if transaction.WriteBytes(p, func(addr uint64, src []byte) pcie.CplStatus {
		m := h.find(addr, len(src))
		if m == nil {
			return pcie.UnsupportedRequest
		}
		copy(m, src)
		return pcie.SuccessfulCompletion
	}) != pcie.SuccessfulCompletion {
		h.Refused++
	}
}

// read answers a read of the device one latency later, with the content of memory
// at that time.
func (h *TestHost) read(p *tlp.Packet) {
	req := *p
	status, late, answer := pcie.SuccessfulCompletion, time.Duration(0), true
	if h.OnRead != nil {
		status, late, answer = h.OnRead(p)
	}
	if !answer {
		return
	}
	h.After(h.Latency+late, func() {
		var out tlp.Packet
		if status != pcie.SuccessfulCompletion {
			transaction.Respond(&out, &req, 0, status)
			h.Device.Receive(h.Now, &out)
			return
		}
		mps := h.Completion
		if mps == 0 {
			mps = 256
		}
		var job transaction.ReadJob
		job.Start(&req, 0, pcie.DefaultRCB, mps)
		job.Emit(&out, h.buf[:], func(addr uint64, dst []byte) pcie.CplStatus {
			m := h.find(addr, len(dst))
			if m == nil {
				h.Refused++
				return pcie.UnsupportedRequest
			}
			copy(dst, m)
			return pcie.SuccessfulCompletion
		}, func(p *tlp.Packet) bool {
			h.Device.Receive(h.Now, p)
			return true
		})
	})
}

func (h *TestHost) completion(p *tlp.Packet) {
	r := h.replies[p.Tag]
	if r == nil {
		r = &reply{}
		h.replies[p.Tag] = r
	}
	r.count++
	r.status = p.Status
	skip := int(p.LowerAddr % pcie.DW)
	if p.Type.HasData() && len(p.Data) >= skip {
		n := min(len(p.Data)-skip, int(p.ByteCount))
		r.data = append(r.data, p.Data[skip:skip+n]...)
		r.left = int(p.ByteCount) - n
	}
	r.done = p.Status != pcie.SuccessfulCompletion || r.left == 0
}

// Run advances virtual time by d.
func (h *TestHost) Run(d time.Duration) {
	end := h.Now + d
	h.RunUntil(end, func() bool { return false })
	h.Now = max(h.Now, end)
}

// RunUntil advances virtual time until cond holds, which it reports, or until no
// event is left before the time end.
func (h *TestHost) RunUntil(end time.Duration, cond func() bool) bool {
	h.Pump()
	for !cond() {
		at := min(h.Device.Wake(), h.events.Wake())
		if at > end || at == machine.Never {
			return false
		}
		h.Now = max(h.Now, at)
		for do, ok := h.events.Pop(h.Now); ok; do, ok = h.events.Pop(h.Now) {
			do()
		}
		h.Pump()
	}
	return true
}

// Request sends one request to the device and returns its completions' data
// and status. ok is false when there is no completion, or one that does not match
// the request. Request sets p.Requester and p.Tag.
func (h *TestHost) Request(p *tlp.Packet) (data []byte, status pcie.CplStatus, ok bool) {
	p.Requester = 0
	h.tag = (h.tag + 1) % pcie.MaxTags
	p.Tag = h.tag
	delete(h.replies, p.Tag)
	h.Device.Receive(h.Now, p)
	h.Pump()
	// The completion may be behind posted writes that wait for the link.
	for h.replies[p.Tag] == nil && h.linkFree > h.Now {
		h.RunUntil(h.linkFree, func() bool { return h.replies[p.Tag] != nil })
	}
	r := h.replies[p.Tag]
	delete(h.replies, p.Tag)
	if r == nil {
		return nil, 0, false
	}
	return r.data, r.status, r.done
}

// ConfigRead reads width (1, 2 or 4) bytes of configuration space. It returns ones
// when the device does not answer, as a root complex does.
func (h *TestHost) ConfigRead(off, width int) uint32 {
	ones := uint32(1<<(8*width) - 1)
	p := tlp.Packet{Type: tlp.CfgRd0, Length: 1, Target: h.BDF, Register: uint16(off &^ 3), FirstBE: byteEnables(off, width)}
	data, status, ok := h.Request(&p)
	if !ok || status != pcie.SuccessfulCompletion || len(data) < 4 {
		return ones
	}
	return binary.LittleEndian.Uint32(data) >> (off % 4 * 8) & ones
}

// ConfigWrite writes width (1, 2 or 4) bytes of configuration space.
func (h *TestHost) ConfigWrite(off, width int, v uint32) {
	p := tlp.Packet{
		Type: tlp.CfgWr0, Length: 1, Target: h.BDF, Register: uint16(off &^ 3), FirstBE: byteEnables(off, width),
		Data: binary.LittleEndian.AppendUint32(nil, v<<(off%4*8)),
	}
	h.Request(&p)
}

func byteEnables(off, width int) uint8 { return uint8(1<<width-1) << (off % 4) & 0xf }

// ReadConfigSpace reads all of configuration space.
func (h *TestHost) ReadConfigSpace() []byte {
	var b []byte
	for off := 0; off < pcie.ConfigSize; off += 4 {
		b = binary.LittleEndian.AppendUint32(b, h.ConfigRead(off, 4))
	}
	return b
}

// Enumerate sizes the BARs, gives them addresses and turns on memory decoding and
// bus mastering, as firmware does. It returns the BARs.
func (h *TestHost) Enumerate() [pcie.MaxBARs]cfgspace.BAR {
	h.ConfigWrite(cfgspace.OffCommand, 2, 0)
	h.ConfigWrite(cfgspace.OffStatus, 2, 0) // tells the device its address
	kinds := cfgspace.DecodeBARs(h.allOnes())
	low, high := uint64(lowBARs), uint64(highBARs)
	for i := range kinds {
		b := &kinds[i]
		at := cfgspace.OffBAR0 + 4*i
		lo, hi := h.ConfigRead(at, 4), uint32(0)
		if b.Kind == cfgspace.Memory64 {
			hi = h.ConfigRead(at+4, 4)
		}
		b.Addr, b.Size = 0, cfgspace.SizeBAR(b.Kind, lo, hi)
		next := &low
		if b.Kind == cfgspace.Memory64 {
			next = &high
		}
		if b.Kind == cfgspace.NoBAR || b.Kind == cfgspace.IO || b.Size == 0 {
			continue
		}
		b.Addr = (*next + b.Size - 1) &^ (b.Size - 1)
		*next = b.Addr + b.Size
	}
	for i, b := range kinds {
		if b.Kind == cfgspace.NoBAR {
			continue
		}
		h.ConfigWrite(cfgspace.OffBAR0+4*i, 4, uint32(b.Addr))
		if b.Kind == cfgspace.Memory64 {
			h.ConfigWrite(cfgspace.OffBAR0+4*i+4, 4, uint32(b.Addr>>32))
		}
	}
	h.ConfigWrite(cfgspace.OffCommand, 2, cfgspace.CmdMemory|cfgspace.CmdBusMaster)
	return kinds
}

// allOnes writes ones to the BARs and reads the header back.
func (h *TestHost) allOnes() []byte {
	var header []byte
	for off := 0; off < 0x40; off += 4 {
		if off >= cfgspace.OffBAR0 && off < cfgspace.OffBAR0+4*pcie.MaxBARs {
			h.ConfigWrite(off, 4, 0xffffffff)
		}
	}
	for off := 0; off < 0x40; off += 4 {
		header = binary.LittleEndian.AppendUint32(header, h.ConfigRead(off, 4))
	}
	return header
}

// Read reads n bytes of the device's memory at a bus address, in requests that
// the specification allows.
func (h *TestHost) Read(addr uint64, n int) ([]byte, error) {
	var out []byte
	for c := range tlp.SplitRead(addr, n, pcie.MaxPayload) {
		p := tlp.Packet{Type: tlp.MRd}
		p.SetMemory(c.Addr, c.Len)
		data, status, ok := h.Request(&p)
		if !ok || status != pcie.SuccessfulCompletion || len(data) != c.Len {
			return nil, fmt.Errorf("devicetest: read of %d at %#x: %d bytes, %v, complete %v", c.Len, c.Addr, len(data), status, ok)
		}
		out = append(out, data...)
	}
	return out, nil
}

// Write writes bytes to the device's memory at a bus address.
func (h *TestHost) Write(addr uint64, b []byte) {
	for c := range tlp.SplitWrite(addr, len(b), 128) {
		pad := int(c.Addr % pcie.DW)
		data := make([]byte, (pad+c.Len+pcie.DW-1)&^(pcie.DW-1))
		copy(data[pad:], b[c.Addr-addr:][:c.Len])
		p := tlp.Packet{Type: tlp.MWr, Data: data}
		p.SetMemory(c.Addr, c.Len)
		h.Device.Receive(h.Now, &p)
	}
	h.Pump()
}

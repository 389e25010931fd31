package gpu_test

import (
	"encoding/binary"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// loop plays a host that answers reads at once, without allocating.
type loop struct {
	g    *gpu.GPU
	mem  []byte
	reqs []tlp.Packet
	buf  [pcie.MaxPayload]byte
	out  tlp.Packet
	job  transaction.ReadJob
}

func (l *loop) take(p *tlp.Packet) bool {
	if p.Type == tlp.MRd {
		l.reqs = append(l.reqs, *p)
	}
	return true
}

// round lets the GPU send all the reads that it has tags for, and answers them.
func (l *loop) round() {
	l.g.Transmit(0, l.take)
	for i := range l.reqs {
		l.job.Start(&l.reqs[i], 0, pcie.DefaultRCB, 256)
		for !l.job.Done() {
			addr, n := l.job.Chunk()
			copy(l.buf[:n], l.mem[addr-memBase:])
			l.job.Build(&l.out, l.buf[:n])
			l.g.Receive(0, &l.out)
			l.job.Advance()
		}
	}
	l.reqs = l.reqs[:0]
}

// newLoop is a GPU in the middle of a long upload, to 32 MiB of VRAM that have been
// written before.
func newLoop(tb testing.TB) *loop {
	tb.Helper()
	const n = 32 << 20
	r := newGPUHost(tb, gpu.Spec{MaxReadRequest: 512})
	r.do(0, reg.Fill(1, 0, 1, n))
	at := ringsAt - memBase + reg.CommandSize
	reg.CopyToVRAM(1, 0, dataAt, n).Append(r.mem[at:at])
	l := &loop{g: r.gpu, mem: r.mem}
	l.doorbell(r, 2)
	for range 3 {
		l.round()
	}
	return l
}

func (l *loop) doorbell(r *gpuHost, tail uint32) {
	p := tlp.Packet{Type: tlp.MWr, Data: binary.LittleEndian.AppendUint32(nil, tail)}
	p.SetMemory(r.bars[0].Addr+reg.Queue+reg.QDoorbell, 4)
	l.g.Receive(0, &p)
}

func TestUploadDoesNotAllocate(t *testing.T) {
	l := newLoop(t)
	reads := 0
	if n := testing.AllocsPerRun(200, func() {
		l.g.Transmit(0, l.take)
		reads += len(l.reqs)
		l.round()
	}); n != 0 {
		t.Errorf("%v allocations per round", n)
	}
	if reads < 200*140 {
		t.Errorf("%d reads in 200 rounds: the upload does not run", reads)
	}
}

func TestRegisterAccessDoesNotAllocate(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	l := &loop{g: r.gpu}
	read := tlp.Packet{Type: tlp.MRd}
	read.SetMemory(r.bars[0].Addr+reg.Status, 4)
	write := tlp.Packet{Type: tlp.MWr, Data: []byte{1, 2, 3, 4}}
	write.SetMemory(r.bars[0].Addr+reg.Scratch, 4)
	take := l.take
	if n := testing.AllocsPerRun(200, func() {
		l.g.Receive(0, &write)
		l.g.Receive(0, &read)
		l.g.Transmit(0, take)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A guest resets the engines or the function, and enables a queue, with each write: the
// box does not make and erase the memory of a queue each time.
func TestResetsDoNotAllocate(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	l := &loop{g: r.gpu}
	write := func(off uint64, v uint32) *tlp.Packet {
		p := &tlp.Packet{Type: tlp.MWr, Data: binary.LittleEndian.AppendUint32(nil, v)}
		p.SetMemory(r.bars[0].Addr+off, 4)
		return p
	}
	flr := &tlp.Packet{Type: tlp.CfgWr0, Register: uint16(r.gpu.Config().ExpressOffset() + cfgspace.OffDevCtl), Length: 1, FirstBE: 2}
	flr.Data = []byte{0, cfgspace.DevCtlFLR >> 8, 0, 0}
	memory := &tlp.Packet{Type: tlp.CfgWr0, Register: cfgspace.OffCommand, Length: 1, FirstBE: 1, Data: []byte{cfgspace.CmdMemory, 0, 0, 0}}
	bar := &tlp.Packet{Type: tlp.CfgWr0, Register: cfgspace.OffBAR0, Length: 1, FirstBE: 15}
	bar.Data = binary.LittleEndian.AppendUint32(nil, uint32(r.bars[0].Addr))
	requests := []*tlp.Packet{write(reg.Control, reg.ControlReset), write(reg.Queue+reg.QControl, reg.QControlEnable), flr, bar, memory}
	take := l.take
	if n := testing.AllocsPerRun(200, func() {
		for _, p := range requests {
			l.g.Receive(0, p)
			l.g.Transmit(0, take)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if s := r.queue32(0, reg.QState); s != uint32(reg.QueueDisabled) {
		t.Errorf("queue 0 is in state %d after a reset", s)
	}
}

// BenchmarkReset is a reset of the engines, and the next queue.
func BenchmarkReset(b *testing.B) {
	r := newGPUHost(b, gpu.Spec{})
	var requests []*tlp.Packet
	for _, w := range [][2]uint64{{reg.Control, reg.ControlReset}, {reg.Queue + reg.QControl, reg.QControlEnable}} {
		p := &tlp.Packet{Type: tlp.MWr, Data: binary.LittleEndian.AppendUint32(nil, uint32(w[1]))}
		p.SetMemory(r.bars[0].Addr+w[0], 4)
		requests = append(requests, p)
	}
	b.ReportAllocs()
	for b.Loop() {
		for _, p := range requests {
			r.gpu.Receive(0, p)
		}
	}
}

func BenchmarkUpload(b *testing.B) {
	const n = 32 << 20
	b.SetBytes(n)
	b.ReportAllocs()
	r := newGPUHost(b, gpu.Spec{})
	r.do(0, reg.Fill(1, 0, 1, n))
	for i := range ringSize {
		at := ringsAt - memBase + i*reg.CommandSize
		reg.CopyToVRAM(1, 0, dataAt, n).Append(r.mem[at:at])
	}
	l := &loop{g: r.gpu, mem: r.mem}
	tail := uint32(1)
	for b.Loop() {
		tail++
		l.doorbell(r, tail)
		for busy := true; busy; busy = len(l.reqs) > 0 {
			l.round()
			l.g.Transmit(0, l.take)
		}
	}
}

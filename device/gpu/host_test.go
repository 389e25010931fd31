package gpu_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/devicetest"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
)

// Host memory: rings, fences and lists low, data above.
const (
	memBase   = 0x10000000
	memSize   = 64 << 20
	ringsAt   = memBase            // 64 KiB per queue
	fencesAt  = memBase + 0x80000  // 8 bytes each
	statusAt  = memBase + 0x90000  // a status block per queue
	listsAt   = memBase + 0x100000 // scatter-gather lists
	dataAt    = memBase + 0x1000000
	ringSize  = 256
	deadlines = time.Second
)

// gpuHost is a GPU in a host with all queues set up, as a driver would.
type gpuHost struct {
	t    testing.TB
	gpu  *gpu.GPU
	host *devicetest.TestHost
	mem  []byte
	bars [pcie.MaxBARs]cfgspace.BAR
	tail [reg.DefaultQueues]uint32
}

func newGPUHost(t testing.TB, spec gpu.Spec) *gpuHost {
	t.Helper()
	g, err := gpu.New(spec)
	if err != nil {
		t.Fatal(err)
	}
	r := &gpuHost{t: t, gpu: g, host: devicetest.NewHost(g)}
	r.host.Latency = time.Microsecond
	r.mem = r.host.AddMemory(memBase, memSize)
	r.setup()
	return r
}

// setup enumerates, programs MSI-X and enables the queues.
func (r *gpuHost) setup() {
	r.t.Helper()
	r.bars = r.host.Enumerate()
	exp := r.gpu.Config().ExpressOffset()
	r.host.ConfigWrite(exp+cfgspace.OffDevCtl, 2, cfgspace.DevCtlExtTag|5<<12|2<<5) // MRRS 4096, MPS 512
	r.host.ConfigWrite(exp+cfgspace.OffDevCtl2, 2, cfgspace.DevCtl2TenBitTag)
	r.host.ConfigWrite(r.gpu.Config().MSIXOffset()+2, 2, cfgspace.MSIXEnable)
	for v := range uint64(r.gpu.Spec().Vectors) {
		entry := binary.LittleEndian.AppendUint64(nil, devicetest.InterruptBase+v<<12)
		entry = binary.LittleEndian.AppendUint32(entry, 0x40+uint32(v))
		entry = binary.LittleEndian.AppendUint32(entry, 0)
		r.host.Write(r.bars[reg.BARMSIX].Addr+16*v, entry)
	}
	r.write32(reg.IntMask, 0)
	for q := range r.gpu.Spec().Queues {
		r.tail[q] = 0
		at := uint64(reg.Queue + q*reg.QueueStride)
		r.write64(at+reg.QRingBase, ringsAt+uint64(q)*0x10000)
		r.write32(at+reg.QRingSize, ringSize)
		r.write64(at+reg.QStatusAddr, statusAt+uint64(q)*16)
		r.write32(at+reg.QVector, uint32(8+q))
		r.write32(at+reg.QControl, reg.QControlEnable)
	}
}

func (r *gpuHost) write32(off uint64, v uint32) {
	r.host.Write(r.bars[0].Addr+off, binary.LittleEndian.AppendUint32(nil, v))
}

func (r *gpuHost) write64(off, v uint64) {
	r.host.Write(r.bars[0].Addr+off, binary.LittleEndian.AppendUint64(nil, v))
}

func (r *gpuHost) read32(off uint64) uint32 {
	r.t.Helper()
	b, err := r.host.Read(r.bars[0].Addr+off, 4)
	if err != nil {
		r.t.Fatal(err)
	}
	return binary.LittleEndian.Uint32(b)
}

func (r *gpuHost) read64(off uint64) uint64 {
	r.t.Helper()
	b, err := r.host.Read(r.bars[0].Addr+off, 8)
	if err != nil {
		r.t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(b)
}

func (r *gpuHost) queue32(q int, off uint64) uint32 {
	r.t.Helper()
	return r.read32(reg.Queue + uint64(q)*reg.QueueStride + off)
}

// submit puts commands into the ring of a queue and rings its doorbell.
func (r *gpuHost) submit(q int, cmds ...reg.Command) {
	for _, c := range cmds {
		at := ringsAt - memBase + q*0x10000 + int(r.tail[q]%ringSize)*reg.CommandSize
		c.Append(r.mem[at:at])
		r.tail[q]++
	}
	r.write32(reg.Queue+uint64(q)*reg.QueueStride+reg.QDoorbell, r.tail[q])
}

// drain runs until the queue has retired everything or halted, and returns its error.
func (r *gpuHost) drain(q int) reg.Error {
	r.t.Helper()
	done := func() bool {
		s := reg.QueueState(r.queue32(q, reg.QState))
		return s != reg.QueueBusy
	}
	if !r.host.RunUntil(r.host.Now+20*deadlines, done) {
		r.t.Fatalf("queue %d stays busy: head %d of %d", q, r.queue32(q, reg.QHead), r.tail[q])
	}
	return reg.Error(r.queue32(q, reg.QError))
}

// do submits and drains, and expects success.
func (r *gpuHost) do(q int, cmds ...reg.Command) {
	r.t.Helper()
	r.submit(q, cmds...)
	if e := r.drain(q); e != reg.NoError {
		r.t.Fatalf("queue %d: %v", q, e)
	}
}

// host64 reads host memory.
func (r *gpuHost) host64(addr uint64) uint64 { return binary.LittleEndian.Uint64(r.mem[addr-memBase:]) }

// data is n bytes of host memory at a bus address.
func (r *gpuHost) data(addr uint64, n int) []byte { return r.mem[addr-memBase:][:n] }

// fillPattern makes bytes that differ from page to page.
func fillPattern(b []byte, seed int) {
	for i := range b {
		b[i] = byte(i*7 + i>>8*13 + i>>16*29 + seed)
	}
}

// pages writes a scatter-gather list to host memory for n bytes in pages of size bytes that
// stand in reverse order from addr on, the first one starting at skip; it returns the list's entries.
func (r *gpuHost) pages(list, addr uint64, n, size, skip int) (segments []reg.Segment) {
	count := (skip + n + size - 1) / size
	at := int(list - memBase)
	for i := range count {
		s := reg.Segment{Addr: addr + uint64((count-1-i)*size), Length: uint32(size)}
		if i == 0 {
			s.Addr += uint64(skip)
			s.Length -= uint32(skip)
		}
		s.Append(r.mem[at+i*reg.SegmentSize : at+i*reg.SegmentSize])
		segments = append(segments, s)
	}
	return segments
}

// gather reads n bytes of host memory through segments.
func (r *gpuHost) gather(segments []reg.Segment, n int) (out []byte) {
	for _, s := range segments {
		out = append(out, r.data(s.Addr, min(int(s.Length), n-len(out)))...)
	}
	return out
}

// scatter writes b to host memory through segments.
func (r *gpuHost) scatter(segments []reg.Segment, b []byte) {
	for _, s := range segments {
		n := copy(r.data(s.Addr, min(int(s.Length), len(b))), b)
		b = b[n:]
	}
}

package gpu_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/devicetest"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

func TestCommandErrors(t *testing.T) {
	const vram = 16 << 20
	kernel := func(l reg.Launch) reg.Command { return reg.Kernel(9, l) }
	withFlags := func(c reg.Command, f uint8) reg.Command { c.Flags |= f; return c }
	segments := func(n uint32, at uint64) reg.Command {
		c := reg.CopyToVRAM(9, 0, at, 8192)
		return c.WithSegments(n)
	}
	tests := []struct {
		name string
		cmd  reg.Command
		want reg.Error
	}{
		{"opcode", reg.Command{Op: 200, ID: 9}, reg.ErrOpcode},
		{"nop flags", withFlags(reg.Nop(9), 1), reg.ErrParameter},
		{"bus to bus", withFlags(reg.CopyToVRAM(9, 0, 0, 4), reg.CopyDstBus), reg.ErrParameter},
		{"empty copy", reg.CopyToVRAM(9, 0, dataAt, 0), reg.ErrParameter},
		{"copy too long", reg.CopyToVRAM(9, 0, dataAt, 1<<41), reg.ErrParameter},
		{"copy past VRAM", reg.CopyToVRAM(9, vram-1, dataAt, 2), reg.ErrRange},
		{"copy wraps VRAM", reg.CopyToVRAM(9, math.MaxUint64, dataAt, 2), reg.ErrRange},
		{"copy wraps the bus", reg.CopyToVRAM(9, 0, math.MaxUint64, 2), reg.ErrParameter},
		{"inner copy", reg.CopyVRAM(9, 0, vram, 1), reg.ErrRange},
		{"inner copy with list", withFlags(reg.CopyVRAM(9, 0, 0, 1), reg.CopySegment), reg.ErrParameter},
		{"no segments", segments(0, listsAt), reg.ErrSegments},
		{"list unaligned", segments(1, listsAt+8), reg.ErrSegments},
		{"list wraps", segments(4, math.MaxUint64&^15), reg.ErrSegments},
		{"list too short", segments(1, listsAt), reg.ErrSegments},
		{"list with hole", segments(4, listsAt+0x1000), reg.ErrSegments},
		{"list unreachable", segments(4, 0x10), reg.ErrDMARefused},
		{"source unreachable", reg.CopyToVRAM(9, 0, 0x10, 4096), reg.ErrDMARefused},
		{"fill length", reg.Fill(9, 0, 0, 6), reg.ErrParameter},
		{"fill range", reg.Fill(9, vram, 0, 4), reg.ErrRange},
		{"fence alignment", reg.Fence(9, fencesAt+4, 0), reg.ErrParameter},
		{"fence vector", reg.Fence(9, fencesAt, 0).WithInterrupt(16), reg.ErrVector},
		{"semaphore", reg.Signal(9, 32, 0), reg.ErrVector},
		{"wait", reg.Wait(9, math.MaxUint32, 0), reg.ErrVector},
		{"timestamp", reg.StampTime(9, 1), reg.ErrParameter},
		{"kernel", kernel(reg.Launch{Kernel: 99, Type: reg.FP32, M: 1}), reg.ErrKernel},
		{"type", kernel(reg.Launch{Kernel: reg.KernelCopy, Type: 3, M: 1}), reg.ErrKernel},
		{"no elements", kernel(reg.Launch{Kernel: reg.KernelCopy, Type: reg.FP32}), reg.ErrKernel},
		{"kernel flag", kernel(reg.Launch{Kernel: reg.KernelCopy, Type: reg.FP32, M: 1, Flags: 0x80}), reg.ErrKernel},
		{"alignment", kernel(reg.Launch{Kernel: reg.KernelCopy, Type: reg.FP32, M: 1, A: 2}), reg.ErrParameter},
		{"range", kernel(reg.Launch{Kernel: reg.KernelCopy, Type: reg.FP32, M: 2, C: vram - 4}), reg.ErrRange},
		{"huge", kernel(reg.Launch{Kernel: reg.KernelAdd, Type: reg.FP64, M: math.MaxUint32, N: math.MaxUint32}), reg.ErrKernel},
		{"gemm of nothing", kernel(reg.Launch{Kernel: reg.KernelGEMM, Type: reg.FP32, M: 1, N: 1}), reg.ErrKernel},
		{"gemm too large", kernel(reg.Launch{Kernel: reg.KernelGEMM, Type: reg.FP32, M: math.MaxUint32, N: math.MaxUint32, K: math.MaxUint32}), reg.ErrKernel},
		{"fft of a prime", kernel(reg.Launch{Kernel: reg.KernelFFT, Type: reg.FP32, M: 7919, N: 1}), reg.ErrKernel},
		{"fft of nothing", kernel(reg.Launch{Kernel: reg.KernelFFT, Type: reg.FP32, M: 0, N: 1}), reg.ErrKernel},
		{"fft range", kernel(reg.Launch{Kernel: reg.KernelFFT, Type: reg.FP64, M: 1 << 20, N: 2}), reg.ErrRange},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newGPUHost(t, gpu.Spec{VRAM: vram})
			r.pages(listsAt, dataAt, 4096, 4096, 0)
			r.pages(listsAt+0x1000, dataAt, 4096, 4096, 0) // the second entry is empty
			r.submit(4, reg.Fence(8, fencesAt, 1), tt.cmd, reg.Fence(10, fencesAt, 2))
			if e := r.drain(4); e != tt.want {
				t.Fatalf("error %v, want %v", e, tt.want)
			}
			r.host.Run(time.Millisecond)
			if r.host64(fencesAt) != 1 {
				t.Errorf("fence %d: the command before the failed one retires, the one after it does not", r.host64(fencesAt))
			}
			block, _, err := reg.ParseStatusBlock(r.data(statusAt+4*16, 16))
			if want := (reg.StatusBlock{State: reg.QueueHalted, Error: tt.want, ID: 9, Head: 1}); err != nil || block != want {
				t.Errorf("status block %+v", block)
			}
			if r.read32(reg.IntStatus)&(reg.IntQueueFault<<4) == 0 || len(r.host.Interrupts) != 1 || r.host.Interrupts[0].Data != 0x40+8+4 {
				t.Errorf("interrupts %+v", r.host.Interrupts)
			}
			if r.read32(reg.ErrorCode) != uint32(tt.want) || r.read32(reg.ErrorInfo) != 4 || r.read32(reg.ErrorCount) != 1 || r.read32(reg.XID) == 0 {
				t.Error("error registers")
			}
			// Other queues go on; this one too after a restart.
			r.do(5, reg.Fence(1, fencesAt, 5))
			at := uint64(reg.Queue + 4*reg.QueueStride + reg.QControl)
			r.write32(at, 0)
			r.write32(at, reg.QControlEnable)
			r.tail[4] = 0
			r.do(4, reg.Fence(1, fencesAt, 6))
			if r.host64(fencesAt) != 6 {
				t.Error("restarted queue")
			}
		})
	}
}

func TestRingErrors(t *testing.T) {
	for name, set := range map[string]func(r *gpuHost, q uint64){
		"doorbell":  func(r *gpuHost, q uint64) { r.write32(q+reg.QControl, 1); r.write32(q+reg.QDoorbell, ringSize+1) },
		"alignment": func(r *gpuHost, q uint64) { r.write64(q+reg.QRingBase, ringsAt+4); r.write32(q+reg.QControl, 1) },
		"size 0":    func(r *gpuHost, q uint64) { r.write32(q+reg.QRingSize, 0); r.write32(q+reg.QControl, 1) },
		"size 3":    func(r *gpuHost, q uint64) { r.write32(q+reg.QRingSize, 3); r.write32(q+reg.QControl, 1) },
		"too large": func(r *gpuHost, q uint64) { r.write32(q+reg.QRingSize, 1<<17); r.write32(q+reg.QControl, 1) },
		"wraps": func(r *gpuHost, q uint64) {
			r.write64(q+reg.QRingBase, math.MaxUint64&^63)
			r.write32(q+reg.QControl, 1)
		},
	} {
		r := newGPUHost(t, gpu.Spec{})
		q := uint64(reg.Queue)
		r.write32(q+reg.QControl, 0)
		set(r, q)
		if got := reg.Error(r.queue32(0, reg.QError)); got != reg.ErrRing {
			t.Errorf("%s: %v", name, got)
		}
	}
	r := newGPUHost(t, gpu.Spec{})
	r.write32(reg.Queue+reg.QControl, 0)
	r.write64(reg.Queue+reg.QRingBase, 0x40) // no memory there
	r.write32(reg.Queue+reg.QControl, 1)
	r.write32(reg.Queue+reg.QDoorbell, 3)
	if e := r.drain(0); e != reg.ErrDMARefused {
		t.Errorf("unreachable ring: %v", e)
	}
}

func TestDMAErrors(t *testing.T) {
	for _, tt := range []struct {
		name   string
		read   func(p *tlp.Packet) (pcie.CplStatus, time.Duration, bool)
		want   reg.Error
		aer    uint32
		status uint32
	}{
		{"abort", func(*tlp.Packet) (pcie.CplStatus, time.Duration, bool) { return pcie.CompleterAbort, 0, true }, reg.ErrDMAAborted, 0, cfgspace.StaRcvAbort},
		{"refused", func(*tlp.Packet) (pcie.CplStatus, time.Duration, bool) { return pcie.UnsupportedRequest, 0, true }, reg.ErrDMARefused, 0, cfgspace.StaMasterAbort},
		{"timeout", func(*tlp.Packet) (pcie.CplStatus, time.Duration, bool) { return 0, 0, false }, reg.ErrDMATimeout, cfgspace.AERTimeout, 0},
		{"late", func(*tlp.Packet) (pcie.CplStatus, time.Duration, bool) { return 0, 12 * time.Second, true }, reg.ErrDMATimeout, cfgspace.AERTimeout, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newGPUHost(t, gpu.Spec{MaxReadRequest: 512})
			r.submit(0, reg.CopyToVRAM(7, 0, dataAt, 1<<20))
			r.host.Run(2 * time.Microsecond) // the ring entry has come
			n := 0
			r.host.OnRead = func(p *tlp.Packet) (pcie.CplStatus, time.Duration, bool) {
				if n++; n == 50 { // one in the middle
					return tt.read(p)
				}
				return pcie.SuccessfulCompletion, 0, true
			}
			if e := r.drain(0); e != tt.want {
				t.Fatalf("%v, want %v", e, tt.want)
			}
			if tt.want == reg.ErrDMATimeout && r.host.Now < 10*time.Second {
				t.Errorf("timed out after %v", r.host.Now)
			}
			r.host.Run(10 * time.Second)
			if got := r.host.ConfigRead(r.gpu.Config().AEROffset()+cfgspace.OffAERUncorrectable, 4); got&tt.aer != tt.aer {
				t.Errorf("AER status %#x", got)
			}
			if got := r.host.ConfigRead(cfgspace.OffStatus, 2); got&tt.status != tt.status {
				t.Errorf("status %#x", got)
			}
			if r.read32(reg.TagsInUse) != 0 {
				t.Error("tags are lost")
			}
			r.do(1, reg.CopyToVRAM(8, 0, dataAt, 1<<20))
		})
	}
}

// A TLP whose ECRC does not match is discarded and logged.
func TestBadDigest(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	aer := r.gpu.Config().AEROffset() + cfgspace.OffAERUncorrectable
	p := tlp.Packet{Type: tlp.MWr, Data: []byte{1, 2, 3, 4}}
	p.SetMemory(r.bars[0].Addr+reg.Scratch, 4)
	p.SetECRC()
	p.Digest++
	r.gpu.Receive(r.host.Now, &p)
	if r.read32(reg.Scratch) != 0 || r.host.ConfigRead(aer, 4) != cfgspace.AERECRC {
		t.Errorf("scratch %#x, AER %#x", r.read32(reg.Scratch), r.host.ConfigRead(aer, 4))
	}
	p.Digest--
	if r.gpu.Receive(r.host.Now, &p); r.read32(reg.Scratch) != 0x04030201 {
		t.Error("a write with the right digest is lost")
	}
}

func TestPoison(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	aer := r.gpu.Config().AEROffset() + cfgspace.OffAERUncorrectable
	p := tlp.Packet{Type: tlp.MWr, EP: true, Data: []byte{1, 2, 3, 4}}
	p.SetMemory(r.bars[0].Addr+reg.Scratch, 4)
	r.gpu.Receive(r.host.Now, &p)
	if r.read32(reg.Scratch) != 0 || r.host.ConfigRead(aer, 4) != cfgspace.AERPoisoned {
		t.Error("a poisoned write took effect, or was not logged")
	}
}

func TestUnsupportedRequests(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	exp := r.gpu.Config().ExpressOffset()
	r.host.ConfigWrite(exp+cfgspace.OffDevCtl, 2, 0xf)
	for _, p := range []tlp.Packet{
		{Type: tlp.MRd, Length: 1, FirstBE: 0xf, Addr: 0x100},
		{Type: tlp.MRdLk, Length: 1, FirstBE: 0xf, Addr: r.bars[0].Addr},
		{Type: tlp.IORd, Length: 1, FirstBE: 0xf, Addr: 0x100},
		{Type: tlp.CfgRd1, Length: 1, FirstBE: 0xf},
		{Type: tlp.FetchAdd, Length: 1, Addr: r.bars[2].Addr, Data: make([]byte, 4)},
	} {
		if _, status, ok := r.host.Request(&p); !ok || status != pcie.UnsupportedRequest {
			t.Errorf("%v: %v, %v", p.Type, status, ok)
		}
	}
	r.host.Write(0x100, []byte{1})
	if got := r.read64(reg.CountUnsupported); got != 6 {
		t.Errorf("%d counted", got)
	}
	if got := r.host.ConfigRead(exp+cfgspace.OffDevSta, 2); got&(cfgspace.DevStaUnsupported|cfgspace.DevStaNonFatal|cfgspace.DevStaCorrectable) != cfgspace.DevStaUnsupported|cfgspace.DevStaNonFatal|cfgspace.DevStaCorrectable {
		t.Errorf("device status %#x", got)
	}
	if len(r.host.Messages) == 0 || r.host.Messages[len(r.host.Messages)-1].Code != tlp.CodeErrNonFatal {
		t.Errorf("messages %+v", r.host.Messages)
	}
}

// Nothing leaves without Bus Master Enable, and everything does afterwards.
func TestBusMasterOff(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	r.host.ConfigWrite(cfgspace.OffCommand, 2, cfgspace.CmdMemory)
	r.submit(0, reg.Fence(1, fencesAt, 1).WithInterrupt(0))
	r.host.Run(10 * time.Second)
	if r.host64(fencesAt) != 0 || r.read64(reg.CountReadTLPs) != 0 {
		t.Error("a bus master that is off sends")
	}
	r.host.ConfigWrite(cfgspace.OffCommand, 2, cfgspace.CmdMemory|cfgspace.CmdBusMaster)
	if e := r.drain(0); e != reg.NoError || r.host64(fencesAt) != 1 || len(r.host.Interrupts) != 1 {
		t.Error(e)
	}
}

// The tag enables of Device Control bound what is outstanding.
func TestTagEnables(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{Tags: 1024})
	exp := r.gpu.Config().ExpressOffset()
	for _, tt := range []struct {
		ctl, ctl2 uint32
		want      uint32
	}{{0, 0, 32}, {cfgspace.DevCtlExtTag, 0, 256}, {cfgspace.DevCtlExtTag, cfgspace.DevCtl2TenBitTag, 1024}} {
		r.host.ConfigWrite(exp+cfgspace.OffDevCtl, 2, tt.ctl)
		r.host.ConfigWrite(exp+cfgspace.OffDevCtl2, 2, tt.ctl2)
		most := pcie.Tag(0)
		r.host.OnRead = func(p *tlp.Packet) (pcie.CplStatus, time.Duration, bool) {
			most = max(most, p.Tag)
			return 0, 0, true
		}
		r.do(0, reg.CopyToVRAM(1, 0, dataAt, 4<<20))
		if r.read32(reg.Tags) != tt.want || uint32(most) != tt.want-1 {
			t.Errorf("%d tags, highest %d, want %d", r.read32(reg.Tags), most, tt.want)
		}
	}
}

// The limits of the owner replace those of Device Control, over resets, up to the
// GPU's own.
func TestLimitsOfTheOwner(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{Tags: 200, MaxPayload: 1024, MaxReadRequest: 2048})
	exp := r.gpu.Config().ExpressOffset()
	want := func(state string, tags, read, write uint32) {
		t.Helper()
		got := [3]uint32{r.read32(reg.Tags), r.read32(reg.ReadSize), r.read32(reg.WriteSize)}
		if got != [3]uint32{tags, read, write} {
			t.Errorf("%s: tags, read and write size %d, want %d %d %d", state, got, tags, read, write)
		}
	}
	r.host.ConfigWrite(exp+cfgspace.OffDevCtl, 2, 0)
	r.host.ConfigWrite(exp+cfgspace.OffDevCtl2, 2, 0)
	want("Device Control", 32, 128, 128)
	r.gpu.SetLimits(device.Limits{MaxPayload: 512, MaxReadRequest: 4096, Tags: 1024})
	want("the owner", 200, 2048, 512)
	r.do(0, reg.CopyToVRAM(1, 0, dataAt, 4<<20))
	r.host.ConfigWrite(exp+cfgspace.OffDevCtl, 2, cfgspace.DevCtlFLR)
	r.host.ConfigWrite(cfgspace.OffCommand, 2, cfgspace.CmdMemory|cfgspace.CmdBusMaster)
	r.bars = r.host.Enumerate()
	want("after a reset", 200, 2048, 512)
	if got := r.host.ConfigRead(exp+cfgspace.OffDevCtl, 2) & cfgspace.DevCtlMRRS; got != 2<<12 {
		t.Errorf("Max_Read_Request_Size after a reset is %#x, want 512 bytes", got)
	}
}

// No sequence of random commands, in rings that the host changes, hurts.
func TestRandomCommands(t *testing.T) {
	for seed := range uint64(30) {
		rnd := rand.New(rand.NewPCG(seed, 5))
		r := newGPUHost(t, gpu.Spec{VRAM: 1 << 20, Tags: 1 + rnd.IntN(64), CompletionTimeout: time.Millisecond})
		r.host.OnRead = func(*tlp.Packet) (pcie.CplStatus, time.Duration, bool) {
			return pcie.CplStatus(rnd.IntN(40) / 38), time.Duration(rnd.IntN(3000)), rnd.IntN(100) != 0
		}
		for range 60 {
			q := rnd.IntN(reg.DefaultQueues)
			for range 1 + rnd.IntN(20) {
				r.submit(q, randomCommand(rnd))
			}
			r.host.Run(time.Duration(rnd.IntN(100)) * time.Microsecond)
			if rnd.IntN(3) == 0 {
				at := uint64(reg.Queue + rnd.IntN(reg.DefaultQueues)*reg.QueueStride)
				r.write32(at+reg.QControl, 0)
				r.write32(at+reg.QControl, 1)
			}
		}
		r.setup()
		r.host.Run(10 * time.Second)
		if got := r.read32(reg.TagsInUse); got != 0 {
			t.Fatalf("seed %d: %d tags in use at rest", seed, got)
		}
	}
}

func randomCommand(rnd *rand.Rand) reg.Command {
	addr := func() uint64 {
		if rnd.IntN(20) == 0 {
			return rnd.Uint64()
		}
		return memBase + rnd.Uint64N(memSize)&^uint64(rnd.IntN(2)*15)
	}
	vram := func() uint64 { return rnd.Uint64N(1<<20) &^ uint64(rnd.IntN(2)*7) }
	n := rnd.Uint64N(1 << uint(rnd.IntN(20)))
	var c reg.Command
	switch rnd.IntN(8) {
	case 0:
		c = reg.CopyFromVRAM(1, addr(), vram(), n)
	case 1:
		c = reg.CopyVRAM(1, vram(), vram(), n)
	case 2:
		c = reg.Fill(1, vram()&^3, rnd.Uint32(), n&^3)
	case 3:
		c = reg.Kernel(1, reg.Launch{
			Kernel: reg.KernelID(rnd.IntN(10)), Type: reg.ElementType(rnd.IntN(4)), A: vram(), B: vram(), C: vram(),
			M: rnd.Uint32N(100), N: rnd.Uint32N(2), K: rnd.Uint32N(100), Alpha: 1, Beta: 1,
		})
	case 4:
		c = reg.Fence(1, fencesAt+rnd.Uint64N(100)*8, 1).WithInterrupt(uint16(rnd.IntN(20)))
	default:
		c = reg.CopyToVRAM(1, vram(), addr(), n)
	}
	if c.Op == reg.OpCopy && rnd.IntN(4) == 0 {
		c = c.WithSegments(rnd.Uint32N(1000))
	}
	return c
}

func FuzzGPU(f *testing.F) {
	for seed := range uint64(4) {
		f.Add(seed, seed+1, uint16(500))
	}
	f.Add(uint64(52), uint64(266), uint16(295)) // a Function Level Reset while a completion waits
	f.Fuzz(func(t *testing.T, a, b uint64, n uint16) {
		g, err := gpu.New(gpu.Spec{VRAM: 1 << 20, Tags: int(a%1024) + 1, INTx: b%2 == 0, CompletionTimeout: time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		devicetest.Soup(t, g, rand.New(rand.NewPCG(a, b)), int(n%4000))
	})
}

// A host that never takes completions cannot make the device grow.
func TestAnswersAreBounded(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	p := tlp.Packet{Type: tlp.MRd}
	p.SetMemory(r.bars[0].Addr, 4)
	for range 10_000 {
		r.gpu.Receive(r.host.Now, &p)
	}
	n := 0
	r.gpu.Transmit(r.host.Now, func(p *tlp.Packet) bool {
		if p.Type.Completion() {
			n++
		}
		return true
	})
	if n != 2048 {
		t.Errorf("%d completions, want 2048", n)
	}
	if got := r.host.ConfigRead(r.gpu.Config().AEROffset()+cfgspace.OffAERUncorrectable, 4); got != cfgspace.AEROverflow {
		t.Errorf("AER status %#x", got)
	}
}

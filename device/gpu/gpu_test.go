package gpu_test

import (
	"bytes"
	"fmt"
	"slices"
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

func TestConformance(t *testing.T) {
	devicetest.Conform(t, func(t testing.TB) device.Device {
		g, err := gpu.New(gpu.Spec{VRAM: 1 << 20, Tags: 32})
		if err != nil {
			t.Fatal(err)
		}
		return g
	})
}

func TestIdentity(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{Model: "Test", VRAM: 1 << 30, Serial: 0x1122334455667788})
	if r.read32(reg.ID) != reg.Magic || r.read64(reg.VRAMSize) != 1<<30 || r.read64(reg.Serial) != 0x1122334455667788 {
		t.Error("identity registers")
	}
	if got := r.read32(reg.Layout); got != 8|2<<8|16<<16|32<<24 {
		t.Errorf("layout %#x", got)
	}
	model, err := r.host.Read(r.bars[0].Addr+reg.Model, reg.ModelSize)
	if err != nil || !bytes.HasPrefix(model, []byte("Test\x00")) {
		t.Errorf("model %q, %v", model, err)
	}
	if r.bars[2].Size != 64<<20 || !r.bars[2].Prefetchable || r.bars[0].Size != reg.RegistersSize {
		t.Errorf("BARs %+v", r.bars)
	}
	r.host.Run(5 * time.Second)
	if got := r.read64(reg.Timestamp); got < 5e9 || got > 6e9 {
		t.Errorf("timestamp %d", got)
	}
}

func TestCopies(t *testing.T) {
	tests := []struct {
		name           string
		n              int
		hostOff, vram  uint64
		segment, skip  int
		mrrs, mps, rcb int
	}{
		{name: "one byte", n: 1},
		{name: "three unaligned", n: 3, hostOff: 3, vram: 5},
		{name: "one word", n: 4},
		{name: "a page", n: 4096},
		{name: "page and a byte", n: 4097},
		{name: "across pages", n: 10000, hostOff: 4093, vram: 65530},
		{name: "a megabyte", n: 1 << 20},
		{name: "unaligned megabyte", n: 1<<20 + 13, hostOff: 1, vram: 3},
		{name: "pages", n: 300_000, segment: 4096},
		{name: "pages with offset", n: 300_001, segment: 4096, skip: 1234, vram: 77},
		{name: "many pages", n: 5 << 20, segment: 4096},
		{name: "odd segments", n: 50_000, segment: 1000, skip: 1},
		{name: "tiny segments", n: 2000, segment: 3},
		{name: "larger than the copy", n: 1000, segment: 1 << 16},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for _, tags := range []int{1, 140, 1024} {
				r := newGPUHost(t, gpu.Spec{Tags: tags, VRAM: 16 << 20})
				want := make([]byte, tt.n)
				fillPattern(want, tags)
				src, dst := uint64(dataAt)+tt.hostOff, uint64(dataAt)+16<<20+tt.hostOff
				up := reg.CopyToVRAM(1, tt.vram, src, uint64(tt.n))
				down := reg.CopyFromVRAM(2, dst, tt.vram, uint64(tt.n))
				gather := func() []byte { return r.data(dst, tt.n) }
				if tt.segment == 0 {
					copy(r.data(src, tt.n), want)
				} else {
					in := r.pages(listsAt, src, tt.n, tt.segment, tt.skip)
					out := r.pages(listsAt+0x80000, dst, tt.n, tt.segment, tt.skip)
					r.scatter(in, want)
					up.Arg1, down.Arg0 = listsAt, listsAt+0x80000
					up, down = up.WithSegments(uint32(len(in))), down.WithSegments(uint32(len(out)))
					gather = func() []byte { return r.gather(out, tt.n) }
				}
				r.do(0, up, down, reg.Fence(3, fencesAt, 42))
				if !bytes.Equal(gather(), want) {
					t.Fatalf("%d tags: data differ", tags)
				}
				if r.host64(fencesAt) != 42 || r.host.Refused != 0 {
					t.Errorf("fence %d, refused %d", r.host64(fencesAt), r.host.Refused)
				}
			}
		})
	}
}

// Downloads with odd bounds must not touch the bytes around them.
func TestDownloadKeepsNeighbors(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	area := r.data(dataAt, 64)
	for i := range area {
		area[i] = 0xaa
	}
	r.do(0, reg.Fill(1, 0, 0x55555555, 64), reg.CopyFromVRAM(2, dataAt+5, 1, 7))
	for i, b := range area {
		want := byte(0xaa)
		if i >= 5 && i < 12 {
			want = 0x55
		}
		if b != want {
			t.Fatalf("byte %d is %#x", i, b)
		}
	}
}

func TestAperture(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{VRAM: 1 << 20, Aperture: 1 << 20})
	want := make([]byte, 9001)
	fillPattern(want, 1)
	r.host.Write(r.bars[2].Addr+70_003, want)
	got, err := r.host.Read(r.bars[2].Addr+70_003, len(want))
	if err != nil || !bytes.Equal(got, want) {
		t.Fatalf("aperture: %v", err)
	}
	r.do(0, reg.CopyFromVRAM(1, dataAt, 70_003, uint64(len(want))))
	if !bytes.Equal(r.data(dataAt, len(want)), want) {
		t.Error("a copy does not see what the aperture wrote")
	}
	r.write64(reg.ApertureBase, 0x10000)
	if got, err = r.host.Read(r.bars[2].Addr+70_003-0x10000, len(want)); err != nil || !bytes.Equal(got, want) {
		t.Errorf("moved aperture: %v", err)
	}
	// The upper end now shows what is beyond VRAM: zeros, and writes vanish.
	r.host.Write(r.bars[2].Addr+1<<20-8, []byte{1, 2, 3, 4})
	if got, err = r.host.Read(r.bars[2].Addr+1<<20-0x10004, 16); err != nil || !bytes.Equal(got, make([]byte, 16)) {
		t.Errorf("beyond VRAM: %x, %v", got, err)
	}
}

func TestPeerCopy(t *testing.T) {
	// A peer's aperture is a bus address like any other: here host memory plays it.
	r := newGPUHost(t, gpu.Spec{})
	peer := r.host.AddMemory(0x5000000000, 1<<20)
	fillPattern(peer, 9)
	r.do(0, reg.CopyToVRAM(1, 4096, 0x5000000000, 1<<19), reg.CopyVRAM(2, 1<<20, 4096, 1<<19), reg.CopyFromVRAM(3, 0x5000000000+1<<19, 1<<20, 1<<19))
	if !bytes.Equal(peer[:1<<19], peer[1<<19:]) {
		t.Error("peer copy")
	}
}

func TestVRAMCopyOverlaps(t *testing.T) {
	for _, d := range []struct{ dst, src uint64 }{{100, 0}, {0, 100}, {65536, 0}, {7, 7}} {
		r := newGPUHost(t, gpu.Spec{})
		in := r.data(dataAt, 200_000)
		fillPattern(in, 3)
		r.do(0, reg.CopyToVRAM(1, d.src, dataAt, 200_000), reg.CopyVRAM(2, d.dst, d.src, 200_000), reg.CopyFromVRAM(3, dataAt+1<<20, d.dst, 200_000))
		if !bytes.Equal(in, r.data(dataAt+1<<20, 200_000)) {
			t.Errorf("copy from %d to %d", d.src, d.dst)
		}
	}
}

// Every write of a command before a fence leaves before the fence, and its
// interrupt after it.
func TestFenceOrder(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	r.host.UpRate = 1e9
	var log []string
	r.host.OnWrite = func(p *tlp.Packet) {
		switch {
		case p.Addr >= devicetest.InterruptBase && p.Addr < devicetest.InterruptBase+1<<20:
			log = append(log, "interrupt")
		case p.Addr == fencesAt:
			log = append(log, "fence")
		default:
			if len(log) == 0 || log[len(log)-1] != "data" {
				log = append(log, "data")
			}
		}
	}
	r.do(2, reg.CopyFromVRAM(1, dataAt, 0, 10_000), reg.Fence(2, fencesAt, 1).WithInterrupt(3),
		reg.CopyFromVRAM(3, dataAt, 0, 10_000), reg.Fence(4, fencesAt, 2).WithInterrupt(3))
	if got := fmt.Sprint(log); got != "[data fence interrupt data fence interrupt]" {
		t.Error(got)
	}
	if i := r.host.Interrupts; len(i) != 2 || i[0].Data != 0x43 || i[0].Addr != devicetest.InterruptBase+3<<12 {
		t.Errorf("interrupts %+v", i)
	}
	if got := r.read32(reg.IntStatus); got != reg.IntQueue<<2 {
		t.Errorf("interrupt status %#x", got)
	}
	r.write32(reg.IntStatus, 0xffffffff)
	if got := r.read32(reg.IntStatus); got != 0 {
		t.Errorf("interrupt status %#x after clearing", got)
	}
}

func TestMSIXMask(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	entry := r.bars[reg.BARMSIX].Addr + 5*16
	r.host.Write(entry+12, []byte{1, 0, 0, 0})
	r.do(0, reg.Fence(1, fencesAt, 1).WithInterrupt(5), reg.Fence(2, fencesAt, 2).WithInterrupt(5))
	if len(r.host.Interrupts) != 0 {
		t.Fatal("a masked vector was sent")
	}
	if pba, err := r.host.Read(r.bars[reg.BARMSIX].Addr+reg.MSIXPBA, 8); err != nil || pba[0] != 1<<5 {
		t.Errorf("pending bits %x, %v", pba, err)
	}
	r.host.Write(entry+12, []byte{0, 0, 0, 0})
	if len(r.host.Interrupts) != 1 {
		t.Errorf("%d interrupts after unmasking, want 1", len(r.host.Interrupts))
	}
	ctl := r.gpu.Config().MSIXOffset() + 2
	r.host.ConfigWrite(ctl, 2, cfgspace.MSIXEnable|cfgspace.MSIXMask)
	r.do(0, reg.Fence(3, fencesAt, 3).WithInterrupt(1))
	if len(r.host.Interrupts) != 1 {
		t.Error("function mask does not hold")
	}
	r.host.ConfigWrite(ctl, 2, cfgspace.MSIXEnable)
	if len(r.host.Interrupts) != 2 {
		t.Error("function mask does not let go")
	}
}

func TestINTx(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{INTx: true})
	r.host.ConfigWrite(r.gpu.Config().MSIXOffset()+2, 2, 0)
	r.do(0, reg.Fence(1, fencesAt, 1).WithInterrupt(0))
	r.write32(reg.IntStatus, 0xffffffff)
	if m := r.host.Messages; len(m) != 2 || m[0].Code != tlp.CodeAssertINTA || m[1].Code != tlp.CodeDeassertINTA {
		t.Errorf("messages %+v", m)
	}
}

func TestSemaphoresOrderQueues(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	r.submit(1, reg.Wait(1, 7, 5), reg.Fence(2, fencesAt, 1))
	r.host.Run(time.Millisecond)
	if r.host64(fencesAt) != 0 {
		t.Fatal("WAIT did not wait")
	}
	r.do(0, reg.Signal(1, 7, 5))
	r.drain(1)
	if r.host64(fencesAt) != 1 {
		t.Error("WAIT did not end")
	}
	r.submit(1, reg.Wait(3, 8, 1))
	r.write64(reg.Semaphore+8*8, 9)
	if e := r.drain(1); e != reg.NoError {
		t.Error(e)
	}
}

func TestTimestampCommand(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	r.host.Run(time.Second)
	r.do(0, reg.StampTime(1, fencesAt))
	if got := r.host64(fencesAt); got < 1e9 || got > 2e9 {
		t.Errorf("timestamp %d", got)
	}
}

func TestRingWrapsAndWindow(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{Tags: 3})
	for round := range 20 {
		var cmds []reg.Command
		for i := range ringSize - 1 {
			cmds = append(cmds, reg.Fence(uint32(i), fencesAt, uint64(round*1000+i)))
		}
		r.do(3, cmds...)
		if got := r.host64(fencesAt); got != uint64(round*1000+ringSize-2) {
			t.Fatalf("round %d: fence %d", round, got)
		}
	}
	if got := r.queue32(3, reg.QHead); got != 20*(ringSize-1) {
		t.Errorf("head %d", got)
	}
}

// Uploads to the same VRAM must not overtake each other, however the
// completions are delayed.
func TestOverlappingUploadsKeepOrder(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	fillPattern(r.data(dataAt, 8192), 1)
	fillPattern(r.data(dataAt+8192, 8192), 2)
	n := 0
	r.host.OnRead = func(*tlp.Packet) (pcie.CplStatus, time.Duration, bool) {
		n++
		return pcie.SuccessfulCompletion, time.Duration(100-n%100) * time.Microsecond, true
	}
	r.do(0, reg.CopyToVRAM(1, 0, dataAt, 8192), reg.CopyToVRAM(2, 100, dataAt+8192, 4096), reg.CopyFromVRAM(3, dataAt+1<<20, 0, 8192))
	want := append([]byte(nil), r.data(dataAt, 8192)...)
	copy(want[100:], r.data(dataAt+8192, 4096))
	if !bytes.Equal(want, r.data(dataAt+1<<20, 8192)) {
		t.Error("an upload overtook another one to the same place")
	}
}

func TestResets(t *testing.T) {
	resets := map[string]func(r *gpuHost){
		"register": func(r *gpuHost) { r.write32(reg.Control, reg.ControlReset) },
		"FLR": func(r *gpuHost) {
			r.host.ConfigWrite(r.gpu.Config().ExpressOffset()+cfgspace.OffDevCtl, 2, cfgspace.DevCtlFLR)
		},
		"D3hot": func(r *gpuHost) {
			pm := r.gpu.Config().PMOffset() + cfgspace.OffPMStatus
			r.host.ConfigWrite(pm, 2, 3)
			if _, err := r.host.Read(r.bars[0].Addr, 4); err == nil {
				r.t.Error("registers answer in D3hot")
			}
			r.host.ConfigWrite(pm, 2, 0)
		},
		"conventional": func(r *gpuHost) { r.gpu.Reset(r.host.Now, device.ConventionalReset) },
	}
	for name, reset := range resets {
		t.Run(name, func(t *testing.T) {
			r := newGPUHost(t, gpu.Spec{VRAM: 8 << 20})
			fillPattern(r.data(dataAt, 4<<20), 5)
			r.do(1, reg.CopyToVRAM(1, 0, dataAt, 4096))
			// In the middle of an upload and of a job.
			r.submit(0, reg.CopyToVRAM(1, 4096, dataAt, 4<<20))
			r.submit(1, reg.Fill(2, 6<<20, 1, 1<<20))
			r.host.Run(2 * time.Microsecond)
			reset(r)
			r.setup()
			r.host.Run(3 * time.Second) // late completions, the job, quarantine
			if got := r.queue32(0, reg.QState); reg.QueueState(got) != reg.QueueIdle {
				t.Errorf("state %d", got)
			}
			r.do(0, reg.CopyFromVRAM(1, dataAt+1<<23, 0, 4096), reg.Fence(2, fencesAt, 77))
			if !bytes.Equal(r.data(dataAt, 4096), r.data(dataAt+1<<23, 4096)) || r.host64(fencesAt) != 77 {
				t.Error("VRAM or queue after reset")
			}
			r.gpu.Scrub()
			r.do(0, reg.CopyFromVRAM(1, dataAt+1<<23, 0, 4096))
			if !bytes.Equal(make([]byte, 4096), r.data(dataAt+1<<23, 4096)) {
				t.Error("VRAM after scrubbing")
			}
		})
	}
}

func TestFaults(t *testing.T) {
	t.Run("kill", func(t *testing.T) {
		r := newGPUHost(t, gpu.Spec{})
		r.submit(0, reg.CopyToVRAM(1, 0, dataAt, 1<<20))
		r.gpu.Inject(gpu.Kill)
		r.host.Run(time.Second)
		if r.host.ConfigRead(0, 4) != 0xffffffff || r.gpu.Health().Alive {
			t.Error("a dead device answers")
		}
		r.gpu.Reset(r.host.Now, device.ConventionalReset)
		if r.host.ConfigRead(0, 4) != 0xffffffff {
			t.Error("a reset revived it")
		}
		if ok, why := r.gpu.Check(); ok || why != "the GPU has fallen off the bus (XID 79)" {
			t.Errorf("after a reset: works %v, %q", ok, why)
		}
	})
	t.Run("hang", func(t *testing.T) {
		r := newGPUHost(t, gpu.Spec{})
		r.gpu.Inject(gpu.Hang)
		r.submit(0, reg.Nop(1))
		r.host.Run(time.Second)
		if reg.QueueState(r.queue32(0, reg.QState)) != reg.QueueBusy {
			t.Error("not hung")
		}
		r.write32(reg.Control, reg.ControlReset)
		r.setup()
		r.do(0, reg.Nop(1))
	})
	t.Run("ecc", func(t *testing.T) {
		r := newGPUHost(t, gpu.Spec{})
		r.submit(0, reg.Wait(9, 0, 1))
		r.host.Run(time.Microsecond)
		r.gpu.Inject(gpu.ECCCorrected)
		r.gpu.Inject(gpu.ECCUncorrectable)
		r.host.Pump()
		if e := r.drain(0); e != reg.ErrECC {
			t.Errorf("error %v", e)
		}
		if h := r.gpu.Health(); h.XID != reg.XIDDoubleBit || h.ECCCorrected != 1 || h.ECCUncorrectable != 1 || r.read32(reg.XID) != reg.XIDDoubleBit {
			t.Errorf("health %+v", h)
		}
	})
}

func TestXIDsAreCounted(t *testing.T) {
	r := newGPUHost(t, gpu.Spec{})
	if n := r.gpu.Errors(); n != nil {
		t.Errorf("a new GPU has counted %v", n)
	}
	r.gpu.InjectXID(31)
	r.gpu.InjectXID(31)
	r.gpu.InjectXID(reg.XIDDoubleBit)
	r.gpu.Reset(time.Second, device.ConventionalReset)
	r.gpu.InjectXID(reg.XIDLost)
	want := []device.ErrorCount{{Code: 31, Count: 2}, {Code: reg.XIDDoubleBit, Count: 1}, {Code: reg.XIDLost, Count: 1}}
	if n := r.gpu.Errors(); !slices.Equal(n, want) {
		t.Errorf("it has counted %v, want %v", n, want)
	}
	if r.host.ConfigRead(0, 4) != 0xffffffff {
		t.Error("fallen off the bus, and it answers")
	}
	for code := range uint32(1000) {
		r.gpu.InjectXID(code)
	}
	if n := len(r.gpu.Errors()); n > 64 {
		t.Errorf("%d numbers are counted", n)
	}
}

func TestParseFault(t *testing.T) {
	for f := gpu.Kill; f <= gpu.ECCUncorrectable; f++ {
		if got, err := gpu.ParseFault(f.String()); err != nil || got != f {
			t.Errorf("%v: %v, %v", f, got, err)
		}
	}
	if _, err := gpu.ParseFault(""); err == nil {
		t.Error("empty name accepted")
	}
}

func TestSpecBounds(t *testing.T) {
	bad := map[string]gpu.Spec{
		"tags":         {Tags: 1025},
		"negative":     {Tags: -1},
		"vram":         {VRAM: 1000},
		"vram sign":    {VRAM: -65536},
		"aperture":     {Aperture: 3 << 16},
		"mrrs":         {MaxReadRequest: 100},
		"mps":          {MaxPayload: 8192},
		"generation":   {Generation: 9},
		"width":        {Width: 5},
		"engines":      {CopyEngines: 9},
		"queues":       {Queues: 9},
		"vectors":      {Vectors: 65},
		"model":        {Model: string(make([]byte, 64))},
		"model length": {Model: "0123456789012345678901234567890123456789012345678901234567890123"},
		"rate":         {FP32: -1},
		"timeout":      {CompletionTimeout: -1},
	}
	for name, s := range bad {
		if g, err := gpu.New(s); err == nil || g != nil {
			t.Errorf("%s: accepted", name)
		}
	}
	for name, s := range map[string]gpu.Spec{"zero": {}, "tiny": {VRAM: 64 << 10}, "odd": {VRAM: 192 << 10}, "huge": {VRAM: 1 << 40, Tags: 1024}} {
		if _, err := gpu.New(s); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

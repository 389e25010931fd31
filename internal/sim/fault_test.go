package sim_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/internal/sim"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

const (
	transfer   = 256 << 10
	hostMemory = 4 << 20
)

func random(seed uint64, n int) []byte {
	b := make([]byte, 0, n)
	for r := rand.New(rand.NewPCG(seed, 1)); len(b) < n; {
		b = binary.LittleEndian.AppendUint64(b, r.Uint64())
	}
	return b[:n]
}

func bad(delay time.Duration, share float64) sim.Duplex {
	if share == 0 {
		return sim.Delayed(delay) // jitter reorders too
	}
	plan := fault.Plan{Delay: delay, Loss: share, Dup: share, Reorder: share, Corrupt: share, Jitter: us}
	return sim.Duplex{Down: plan, Up: plan}
}

// badWorld is a host and a GPU with a path that loses, repeats, reorders and corrupts.
func badWorld(t *testing.T, share float64, seed uint64) *sim.Pair {
	t.Helper()
	w, err := sim.NewPair(sim.PairSpec{
		GPU:    gpu.Spec{VRAM: 1 << 20},
		Paths:  []sim.Duplex{bad(3*us, share)},
		Memory: hostMemory,
		Link:   link.Config{Cipher: link.CipherAES256GCM},
		MTU:    1500 - 48, Seed: seed,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	return w
}

// copyBothWays uploads and downloads with nothing aligned, and compares.
func copyBothWays(t *testing.T, w *sim.Pair) {
	t.Helper()
	dev, err := w.OpenGPU(t.Context(), driver.Options{Polling: true})
	if err != nil {
		t.Fatal(err)
	}
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	memory, err := dev.AllocDMA(2 * transfer)
	if err != nil {
		t.Fatal(err)
	}
	const n = transfer - 64
	in := memory.Bytes()[3:][:n]
	out := memory.Bytes()[transfer+5:][:n]
	copy(in, random(7, n))
	before := w.Counters()
	if err := stream.CopyToDevice(t.Context(), 1, memory, 3, n); err != nil {
		t.Fatal(err)
	}
	if err := stream.CopyToHost(t.Context(), memory, transfer+5, 1, n); err != nil {
		t.Fatal(err)
	}
	if err := stream.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	// The fence came behind the data, so all of it is here.
	if !bytes.Equal(in, out) {
		t.Fatal("the data that came back differ")
	}
	c := w.Counters()
	sent := dev.Registers().Read64(reg.CountWriteTLPs)
	const fences = 1
	if got := c.WriteRequests - before.WriteRequests; got != sent+fences {
		t.Errorf("%d writes arrived, the GPU sent %d", got, sent+fences)
	}
	if c.Unexpected != 0 || c.Refused != 0 || c.Timeouts != 0 || c.Failed != before.Failed {
		t.Errorf("%+v", c)
	}
}

func TestBadPath(t *testing.T) {
	for _, c := range []struct {
		name  string
		share float64
	}{{"perfect", 0}, {"1 %", 0.01}, {"5 %", 0.05}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			w := badWorld(t, c.share, 1)
			copyBothWays(t, w)
			host, box, err := w.LinkReports()
			if err != nil {
				t.Fatal(err)
			}
			lost := host.Lost + box.Lost
			duplicates := host.Duplicates + box.Duplicates
			if (lost > 0) != (c.share > 0) || (duplicates > 0) != (c.share > 0) {
				t.Errorf("%d datagrams lost, %d came twice", lost, duplicates)
			}
		})
	}
}

// The same seed gives the same datagrams at the same times; another does not.
func TestRunsAreRepeatable(t *testing.T) {
	run := func(seed uint64) uint64 {
		w := badWorld(t, 0.02, seed)
		h := fnv.New64a()
		w.OnDatagram = func(at time.Duration, from, _ netip.AddrPort, datagram []byte) {
			_, _ = h.Write(binary.LittleEndian.AppendUint64([]byte(from.String()), uint64(at)))
			_, _ = h.Write(datagram)
		}
		dev, err := w.OpenGPU(t.Context(), driver.Options{})
		if err != nil {
			t.Fatal(err)
		}
		stream, err := dev.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.Upload(t.Context(), 0, make([]byte, 64<<10)); err != nil {
			t.Fatal(err)
		}
		return h.Sum64()
	}
	if a, b := run(1), run(1); a != b {
		t.Error("two runs with one seed differ")
	}
	if run(1) == run(2) {
		t.Error("another seed makes no difference")
	}
}

// A path that is cut in mid-transfer costs time and nothing else.
func TestPathCut(t *testing.T) {
	w, err := sim.NewPair(sim.PairSpec{
		GPU:    gpu.Spec{VRAM: 1 << 20, Tags: 16, MaxReadRequest: 512},
		Paths:  []sim.Duplex{sim.Delayed(3 * us), sim.Delayed(4 * us)},
		Memory: hostMemory, Link: link.Config{Cipher: link.CipherAES256GCM},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	sent := 0
	w.OnDatagram = func(time.Duration, netip.AddrPort, netip.AddrPort, []byte) {
		const middle = 150
		if sent++; sent == middle {
			cut := fault.Plan{Partitions: []fault.Window{{To: time.Hour}}}
			if err := errors.Join(w.HostNode.Disturb(0, cut), w.BoxNode.Disturb(0, cut)); err != nil {
				t.Error(err)
			}
		}
	}
	copyBothWays(t, w)
	w.Run(w.Now() + 20*time.Millisecond) // the copy does not wait until the path has failed
	host, _, err := w.LinkReports()
	if err != nil {
		t.Fatal(err)
	}
	if host.Paths[0].Failures == 0 || host.Paths[1].Failures != 0 {
		t.Errorf("paths %+v", host.Paths)
	}
}

// recorder is a device with one BAR that notes every write and answers reads
// with the number of writes that came before.
type recorder struct {
	cfg     *cfgspace.Space
	written []uint32
	out     []tlp.Packet
}

func newRecorder(t *testing.T) *recorder {
	t.Helper()
	cfg, err := cfgspace.NewEndpoint(cfgspace.Identity{Vendor: 0x1234, Device: 1}).
		BAR(0, cfgspace.BAR{Kind: cfgspace.Memory32, Size: 4096}).
		Express(cfgspace.Express{Type: cfgspace.Endpoint, Generation: pcie.Gen3, Width: 1, MaxPayload: 256}).Build()
	if err != nil {
		t.Fatal(err)
	}
	return &recorder{cfg: cfg}
}

func (r *recorder) Receive(_ time.Duration, p *tlp.Packet) bool {
	var out tlp.Packet
	switch p.Type {
	case tlp.MWr:
		r.written = append(r.written, binary.LittleEndian.Uint32(p.Data))
		return true
	case tlp.CfgWr0:
		r.cfg.WriteBE(p.Register, p.FirstBE, binary.LittleEndian.Uint32(p.Data))
		transaction.Respond(&out, p, 0, pcie.SuccessfulCompletion)
	default:
		v := uint32(len(r.written))
		if p.Type == tlp.CfgRd0 {
			v = r.cfg.Read(int(p.Register), 4)
		}
		var job transaction.ReadJob
		job.Start(p, 0, 64, 128)
		job.Build(&out, binary.LittleEndian.AppendUint32(nil, v))
	}
	r.out = append(r.out, out)
	return true
}

func (r *recorder) Transmit(_ time.Duration, emit func(p *tlp.Packet) bool) {
	for len(r.out) > 0 && emit(&r.out[0]) {
		r.out = r.out[1:]
	}
}

func (r *recorder) Wake() time.Duration                   { return machine.Never }
func (r *recorder) NextJob() (device.Job, bool)           { return nil, false }
func (r *recorder) FinishJob(time.Duration, device.Job)   {}
func (r *recorder) Reset(time.Duration, device.ResetKind) {}

// Every posted write arrives once and in order, and before the read behind it.
func TestPostedWritesOnceAndInOrder(t *testing.T) {
	const writes = 5000
	r := newRecorder(t)
	w, err := sim.NewPair(sim.PairSpec{
		Device: r, Paths: []sim.Duplex{bad(2*us, 0.01), bad(30*us, 0.01)},
		Memory: 1 << 20, Link: link.Config{Cipher: link.CipherAES256GCM}, MTU: 1500 - 48, Seed: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	bus, err := w.Open()
	if err != nil {
		t.Fatal(err)
	}
	bar, err := bus.BAR(0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range uint32(writes) {
		bar.Write32(uint64(i%1024)*4, i)
	}
	if seen := bar.Read32(0); seen != writes {
		t.Errorf("the read behind %d writes came after %d", writes, seen)
	}
	for i, v := range r.written {
		if v != uint32(i) {
			t.Fatalf("write %d is number %d", i, v)
		}
	}
	if len(r.written) != writes {
		t.Errorf("%d writes arrived, want %d", len(r.written), writes)
	}
}

func TestPairWithoutDevice(t *testing.T) {
	g, err := gpu.New(gpu.Spec{VRAM: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	g.Inject(gpu.Kill)
	if _, err := sim.NewPair(sim.PairSpec{Device: g, Memory: hostMemory}); err == nil {
		t.Error("a dead GPU was attached")
	}
}

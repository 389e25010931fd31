package network_test

import (
	"fmt"
	"math"
	"syscall"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/network"
	"github.com/dxpu-project/dxpu/internal/model/perf"
)

// paper is the paper's system: a round trip of 6.8 µs with the parts of Table 7 (17.7,
// 27.9 and 54.4 %), each TLP in a packet of its own, two links of 100 Gb/s to each proxy.
func paper(gpus int) network.Spec {
	return network.Spec{
		Requester: perf.V100, MPS: 128, TLPs: 1, Header: 32,
		GPUs: gpus, Hosts: 1, Boxes: 1, Racks: 1, Paths: 1,
		Memory: 1204, Wire: 1896, Conversion: 925,
		GPULink: float64(perf.Gen3x16.Write()), HostLink: 25e9, BoxLink: 25e9,
		In: 1 << 20, Time: 200 * time.Microsecond, Seed: 1,
	}
}

func measure(t *testing.T, s network.Spec) network.Result {
	t.Helper()
	r, err := s.Measure(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// One GPU reads at Equation 1, whatever its tags and the round trip, and the packets take
// the sum of the parts.
func TestEquation1(t *testing.T) {
	for _, tags := range []int{16, 140, 256} {
		for _, far := range []time.Duration{0, 10 * time.Microsecond, 100 * time.Microsecond} {
			s := paper(1)
			s.Tags, s.Wire = tags, s.Wire+far
			s.GPULink, s.HostLink, s.BoxLink = 0, 0, 0
			s.Time = 100 * s.RTT()
			r := measure(t, s)
			want := s.ReadThroughput(s.RTT())
			if off := float64(r.Total.In/want) - 1; math.Abs(off) > 0.02 || r.P50 != s.RTT() || r.P99 != s.RTT() {
				t.Errorf("%d tags, round trip %v: %v, %v and %v; Equation 1 says %v", tags, s.RTT(), r.Total.In, r.P50, r.P99, want)
			}
		}
	}
}

// Table 12 of the paper. The bytes of a step, of which the GPUs share a part, are chosen for
// its rows of one and two GPUs, and the number of packets in process for what the host sends
// to eight. The other rows follow.
func TestTable12(t *testing.T) {
	for _, row := range []struct {
		gpus          int
		toGPU, toHost [2]float64 // batch 64 and 128, GB/s
	}{
		{1, [2]float64{1.5, 1.4}, [2]float64{0.8, 0.7}},
		{2, [2]float64{2.6, 2.6}, [2]float64{1.3, 1.3}},
		{4, [2]float64{4.9, 5.0}, [2]float64{2.3, 2.3}},
		{8, [2]float64{8.4, 8.3}, [2]float64{3.6, 3.6}},
	} {
		s := paper(row.gpus)
		s.InProcess = 180
		s.In, s.SharedIn, s.Out, s.SharedOut = 308<<10, 112<<10, 132<<10, 90<<10
		s.Compute, s.Time = 132*time.Microsecond, 8*time.Millisecond
		r := measure(t, s)
		for name, c := range map[string]struct {
			ours  perf.BytesPerSecond
			paper [2]float64
		}{"host to GPUs": {r.Total.In, row.toGPU}, "GPUs to host": {r.Total.Out, row.toHost}} {
			off := [2]float64{100 * (c.ours.GB()/c.paper[0] - 1), 100 * (c.ours.GB()/c.paper[1] - 1)}
			t.Logf("%d GPUs, %s: %v, paper %v (%+.1f %%)", row.gpus, name, c.ours, c.paper, off)
			if min(math.Abs(off[0]), math.Abs(off[1])) > 5 {
				t.Errorf("%d GPUs, %s: %v, paper %v", row.gpus, name, c.ours, c.paper)
			}
		}
	}
}

// The GPUs of each host share its shared bytes, whatever their number; a host of one GPU
// gives it all of them.
func TestSharedCopies(t *testing.T) {
	for _, c := range []struct{ gpus, hosts int }{{1, 1}, {4, 1}, {3, 2}, {8, 2}} {
		s := paper(c.gpus)
		s.Hosts, s.Boxes = c.hosts, 1
		s.In, s.Out, s.SharedIn, s.SharedOut = 0, 0, 120*128, 60*128
		s.Tags = 1 // no GPU is slower for the others
		s.GPULink, s.HostLink, s.BoxLink = 0, 0, 0
		s.Compute, s.Time = 10*time.Millisecond, time.Second
		r := measure(t, s)
		for i, rates := range r.PerGPU {
			ofHost := 0
			for j := range c.gpus {
				if j*c.hosts/c.gpus == i*c.hosts/c.gpus {
					ofHost++
				}
			}
			// A step ends with the reads, one after the other, and the computing.
			reads := 120 / ofHost
			step := s.Compute + time.Duration(reads)*s.RTT()
			want := float64(reads*128) / step.Seconds()
			if off := float64(rates.In)/want - 1; math.Abs(off) > 0.1 || math.Abs(float64(rates.In/rates.Out)-2) > 0.1 {
				t.Errorf("%d GPUs of %d hosts, GPU %d: %v in, %v out, want about %v", c.gpus, c.hosts, i, rates.In, rates.Out, perf.BytesPerSecond(want))
			}
		}
	}
}

// Many boxes that write to one host fill its link and share it evenly. A small buffer
// loses packets; marks keep it from that, and keep the delay short.
func TestIncast(t *testing.T) {
	s := paper(16)
	s.In, s.Out, s.Boxes, s.Header, s.TLPs = 0, 1<<20, 16, 32, 8
	s.Buffer, s.Time = 256<<10, 4*time.Millisecond
	drops := measure(t, s)
	s.Mark = 64 << 10
	marks := measure(t, s)
	t.Logf("without marks %v, %v at 99 %%, %d dropped; with %v, %v, %d dropped, %d marked", drops.Total.Out, drops.P99, drops.Dropped, marks.Total.Out, marks.P99, marks.Dropped, marks.Marked)
	full := s.HostLink * float64(s.TLPs*s.MPS) / float64(s.TLPs*s.MPS+s.Header)
	for name, r := range map[string]network.Result{"drops": drops, "marks": marks} {
		if share := float64(r.Total.Out) / full; share < 0.85 || share > 1.001 {
			t.Errorf("%s: %v, the link carries %v", name, r.Total.Out, perf.BytesPerSecond(full))
		}
	}
	for _, g := range marks.PerGPU {
		if fair := float64(g.Out) * 16 / full; fair < 0.6 || fair > 1.4 {
			t.Errorf("a GPU writes at %v, a sixteenth is %v", g.Out, perf.BytesPerSecond(full/16))
		}
	}
	if drops.Dropped == 0 || drops.Marked > 0 || marks.Marked == 0 || marks.Dropped*10 > drops.Dropped || marks.P99 >= drops.P99 {
		t.Error("marks do not spare the buffer")
	}
}

// Uplinks of racks that carry less than the links below them bound the rate.
func TestUplink(t *testing.T) {
	s := paper(8)
	s.In, s.Out, s.Hosts, s.Boxes, s.Racks, s.TLPs = 0, 1<<20, 2, 8, 2, 8
	s.Uplink, s.Buffer, s.Mark, s.Time = 5e9, 1<<20, 64<<10, 4*time.Millisecond
	r := measure(t, s)
	// GPUs 0 to 3 are host 0's, in rack 0; boxes 1 and 3 are in rack 1.
	near, far := r.PerGPU[0].Out+r.PerGPU[2].Out, r.PerGPU[1].Out+r.PerGPU[3].Out
	full := s.Uplink * float64(s.TLPs*s.MPS) / float64(s.TLPs*s.MPS+s.Header)
	if share := float64(far) / full; share < 0.8 || share > 1.001 {
		t.Errorf("from the other rack %v, the uplink carries %v", far, perf.BytesPerSecond(full))
	}
	if near < far {
		t.Errorf("within the rack %v, across %v", near, far)
	}
}

// A write to a GPU of another box passes the host's proxy twice.
func TestPeer(t *testing.T) {
	s := paper(2)
	s.In, s.Out, s.Peer = 0, 1<<20, true
	near := measure(t, s)
	if share := near.PerGPU[0].Out / perf.Gen3x16.Write(); share < 0.98 || share > 1.001 {
		t.Errorf("within the box %v, the link carries %v", near.PerGPU[0].Out, perf.Gen3x16.Write())
	}
	s.Boxes, s.InProcess, s.Time = 2, 100, 4*time.Millisecond
	s.HostLink, s.BoxLink = 0, 0
	far := measure(t, s)
	// Both GPUs' packets take two conversions each in the host's proxy.
	want := perf.BytesPerSecond(float64(s.InProcess) / s.Conversion.Seconds() / 2 * float64(s.MPS))
	if total := far.Total.Out; math.Abs(float64(total/want)-1) > 0.03 {
		t.Errorf("across boxes %v, the proxy converts %v", total, want)
	}
}

// Figure 7 of the paper has one direction and both. With the packets in process of Table 12
// one GPU that writes has its whole link, and two meet in the host's proxy, if it has one.
func TestFigure7(t *testing.T) {
	s := paper(2)
	s.In, s.Out, s.Peer, s.Boxes, s.InProcess, s.Time = 0, 1<<20, true, 2, 180, 2*time.Millisecond
	link := perf.Gen3x16.Write()
	both := measure(t, s)
	s.OneWay = true
	one := measure(t, s)
	// The paper's "different DxPU_PROXYs": the host has one for each box, and writes to a GPU
	// at the 9.44 GB/s of section 5.1.
	s.RootWrite = 9.44e9
	rootOne := measure(t, s)
	s.OneWay = false
	rootBoth := measure(t, s)
	if got := one.PerGPU[1]; got.Out != 0 {
		t.Errorf("the GPU that receives writes at %v", got.Out)
	}
	for _, r := range []struct {
		name      string
		got, want float64 // of the link
	}{
		{"one direction", float64(one.Total.Out / link), 1},
		{"one direction, two proxies in the host", float64(rootOne.Total.Out / link), s.RootWrite / float64(link)},
		{"both, two proxies in the host", float64(rootBoth.Total.Out / link / 2), s.RootWrite / float64(link)},
		{"both", float64(both.Total.Out / link / 2), float64(s.InProcess) / s.Conversion.Seconds() * float64(s.MPS) / 4 / float64(link)},
	} {
		t.Logf("%s: %.1f %%, the paper 74 %%", r.name, 100*r.got)
		if math.Abs(r.got-r.want) > 0.02 {
			t.Errorf("%s: %.3f of the link, want %.3f", r.name, r.got, r.want)
		}
	}
}

// Lost packets are sent again, and reads of a lossy network go on.
func TestLoss(t *testing.T) {
	clean := measure(t, paper(2))
	s := paper(2)
	s.Loss, s.Out, s.Time = 0.0001, 1<<18, 2*time.Millisecond
	lossy := measure(t, s)
	if lossy.Lost == 0 || lossy.Total.In < clean.Total.In/3 || lossy.Total.In >= clean.Total.In || lossy.Total.Out == 0 {
		t.Errorf("%v in, %v out, %d of %d lost; without losses %v", lossy.Total.In, lossy.Total.Out, lossy.Lost, lossy.Packets, clean.Total.In)
	}
}

// A path that fails stops the GPUs that use it until their senders leave it. Then all share
// the other one.
func TestPathFailure(t *testing.T) {
	s := paper(8)
	s.Paths, s.TLPs, s.Time = 2, 8, 2*time.Millisecond
	s.FailAfter, s.Detect = time.Millisecond, 100*time.Microsecond
	r := measure(t, s)
	t.Logf("before %v, after %v, gap %v, %d lost", r.Before.In, r.After.In, r.Gap, r.Lost)
	rate := func(links float64) float64 { // of the box's links, or of all tags
		return min(links*float64(s.TLPs*s.MPS)/float64(s.TLPs*s.MPS+s.Header), 8*float64(s.ReadThroughput(s.RTT())))
	}
	if before := float64(r.Before.In) / rate(25e9); before < 0.9 || before > 1.001 {
		t.Errorf("before the failure %v, both links carry %v", r.Before.In, perf.BytesPerSecond(rate(25e9)))
	}
	if after := float64(r.After.In) / rate(12.5e9); after < 0.8 || after > 1.001 {
		t.Errorf("after it %v, one link carries %v", r.After.In, perf.BytesPerSecond(rate(12.5e9)))
	}
	if least := s.Detect + s.RTT(); r.Gap < least || r.Gap > least+10*s.RTT() || r.Lost == 0 {
		t.Errorf("%v without data and %d packets lost; noticed after %v", r.Gap, r.Lost, least)
	}
	for i, g := range r.PerGPU {
		if g.In == 0 {
			t.Errorf("GPU %d gets nothing", i)
		}
	}
	s.FailAfter, s.Detect = 0, 0
	if whole := measure(t, s); whole.Gap > 10*s.RTT() || whole.Lost > 0 || whole.After.In > 0 {
		t.Errorf("without a failure %v without data, %d lost, %v after it", whole.Gap, whole.Lost, whole.After.In)
	}
}

// The same spec gives the same result, another seed another one.
func TestSeed(t *testing.T) {
	s := paper(4)
	s.Loss, s.Compute, s.Out = 0.01, time.Microsecond, 4096
	a, b := measure(t, s), measure(t, s)
	s.Seed++
	c := measure(t, s)
	if fmt.Sprint(a) != fmt.Sprint(b) || fmt.Sprint(a) == fmt.Sprint(c) {
		t.Errorf("%v, again %v, with another seed %v", a, b, c)
	}
}

func TestRefuses(t *testing.T) {
	for name, change := range map[string]func(*network.Spec){
		"no GPUs":                      func(s *network.Spec) { s.GPUs = 0 },
		"more hosts than GPUs":         func(s *network.Spec) { s.Hosts = 3 },
		"racks":                        func(s *network.Spec) { s.Racks = 9 },
		"no tags":                      func(s *network.Spec) { s.Tags = 0 },
		"payload":                      func(s *network.Spec) { s.MPS = 1 << 20 },
		"no round trip":                func(s *network.Spec) { s.Memory, s.Wire, s.Conversion = 0, 0, 0 },
		"round trip that wraps":        func(s *network.Spec) { s.Conversion = math.MaxInt64 / 4 },
		"link that is no rate":         func(s *network.Spec) { s.BoxLink = math.NaN() },
		"nothing to copy":              func(s *network.Spec) { s.In = 0 },
		"peers that read":              func(s *network.Spec) { s.Peer = true },
		"peers that share":             func(s *network.Spec) { s.Peer, s.In, s.Out, s.SharedOut = true, 0, 1, 1 },
		"less than nothing shared":     func(s *network.Spec) { s.SharedIn = -1 },
		"much shared":                  func(s *network.Spec) { s.SharedOut = 1<<30 + 1 },
		"a root complex without peers": func(s *network.Spec) { s.RootWrite = 1e9 },
		"root complex that is no rate": func(s *network.Spec) { s.In, s.Out, s.Peer, s.RootWrite = 0, 1, true, math.NaN() },
		"one way without peers":        func(s *network.Spec) { s.OneWay = true },
		"loss of all":                  func(s *network.Spec) { s.Loss = 1 },
		"a path that fails alone":      func(s *network.Spec) { s.FailAfter = time.Microsecond },
		"a failure after the end":      func(s *network.Spec) { s.Paths, s.FailAfter = 2, s.Time },
		"no paths":                     func(s *network.Spec) { s.Paths = 0 },
		"no time":                      func(s *network.Spec) { s.Time = 0 },
	} {
		s := paper(2)
		change(&s)
		if _, err := s.Measure(t.Context()); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func BenchmarkPackets(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := paper(n)
			s.Boxes, s.Hosts = (n+7)/8, (n+7)/8
			s.Time = 20 * time.Microsecond
			var packets uint64
			var before, after syscall.Rusage
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &before)
			for b.Loop() {
				r, err := s.Measure(b.Context())
				if err != nil {
					b.Fatal(err)
				}
				packets += r.Packets
			}
			_ = syscall.Getrusage(syscall.RUSAGE_SELF, &after)
			took := time.Duration(after.Utime.Nano() + after.Stime.Nano() - before.Utime.Nano() - before.Stime.Nano())
			b.ReportMetric(float64(packets)/took.Seconds(), "packets/cpu-s")
		})
	}
}

package perf

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/dxpu-project/dxpu/pcie"
)

const us = time.Microsecond

// "According to Equation 1, [they] are 2.64GB/s and 3.66GB/s" (section 3.5.1).
func TestEquation1(t *testing.T) {
	for _, tc := range []struct {
		name string
		rtt  time.Duration
		want float64
	}{
		{"6.8us", 6800 * time.Nanosecond, 2.64},
		{"4.9us", 4900 * time.Nanosecond, 3.66},
		{"zero", 0, 0},
		{"negative", -us, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := V100.ReadThroughput(tc.rtt).GB()
			if math.Abs(got-tc.want) > 0.005 {
				t.Errorf("got %.4f GB/s, want %.2f", got, tc.want)
			}
		})
	}
}

func TestLinkRates(t *testing.T) {
	for _, tc := range []struct {
		name     string
		link     Link
		raw      float64
		lessThan float64
	}{
		{"gen3 x16", Gen3x16, 15.754, 13.3},
		{"gen4 x16", Link{pcie.Gen4, 16, 256}, 31.508, 29},
		{"gen5 x16", Link{pcie.Gen5, 16, 256}, 63.015, 58},
		{"gen6 x16", Link{pcie.Gen6, 16, 256}, 128, 118},
		{"gen3 x1", Link{pcie.Gen3, 1, 128}, 0.98462, 0.9},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := tc.link.Validate(); err != nil {
				t.Fatal(err)
			}
			if got := tc.link.Raw().GB(); math.Abs(got-tc.raw) > tc.raw*1e-3 {
				t.Errorf("raw %.4f GB/s, want %.4f", got, tc.raw)
			}
			if w := tc.link.Write().GB(); w <= 0 || w >= tc.lessThan {
				t.Errorf("write %.3f GB/s, want below %.3f", w, tc.lessThan)
			}
			if tc.link.Read() <= tc.link.Write() {
				t.Error("completions have the shorter header but are not faster")
			}
		})
	}
}

func TestValidate(t *testing.T) {
	good := Path{Link: Gen3x16, Requester: V100, NativeRTT: NativeRTT, RTT: 7 * us}
	for _, tc := range []struct {
		name string
		edit func(*Path)
		ok   bool
	}{
		{"as in the paper", func(*Path) {}, true},
		{"no tags", func(p *Path) { p.Requester.Tags = 0 }, false},
		{"most tags", func(p *Path) { p.Requester.Tags = Gen6Tags }, true},
		{"too many tags", func(p *Path) { p.Requester.Tags = Gen6Tags + 1 }, false},
		{"odd MRRS", func(p *Path) { p.Requester.MRRS = 100 }, false},
		{"MRRS 4096", func(p *Path) { p.Requester.MRRS = 4096 }, true},
		{"MRRS 8192", func(p *Path) { p.Requester.MRRS = 8192 }, false},
		{"gen 2", func(p *Path) { p.Link.Gen = pcie.Gen2 }, false},
		{"gen 7", func(p *Path) { p.Link.Gen = 7 }, false},
		{"3 lanes", func(p *Path) { p.Link.Lanes = 3 }, false},
		{"MPS 0", func(p *Path) { p.Link.MPS = 0 }, false},
		{"RTT below native", func(p *Path) { p.RTT = us }, false},
		{"RTT is native", func(p *Path) { p.RTT = p.NativeRTT }, true},
		{"native zero", func(p *Path) { p.NativeRTT = 0 }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			p := good
			tc.edit(&p)
			if err := p.Validate(); (err == nil) != tc.ok {
				t.Errorf("Validate: %v, want ok %v", err, tc.ok)
			}
		})
	}
}

func TestMaxTags(t *testing.T) {
	want := map[pcie.Generation]int{pcie.Gen3: 256, pcie.Gen4: 768, pcie.Gen5: 768, pcie.Gen6: 15360}
	for g, n := range want {
		if got := MaxTags(g); got != n {
			t.Errorf("generation %d: %d tags, want %d", g, got, n)
		}
	}
}

func genPath(t *rapid.T) Path {
	native := time.Duration(rapid.Int64Range(100, 5000).Draw(t, "native"))
	return Path{
		Link: Link{
			Gen:   pcie.Generation(rapid.IntRange(3, 6).Draw(t, "gen")),
			Lanes: 1 << rapid.IntRange(0, 4).Draw(t, "lanes"),
			MPS:   128 << rapid.IntRange(0, 5).Draw(t, "mps"),
		},
		Requester: Requester{
			Tags: rapid.IntRange(1, Gen6Tags).Draw(t, "tags"),
			MRRS: 128 << rapid.IntRange(0, 5).Draw(t, "mrrs"),
		},
		NativeRTT: native,
		RTT:       native + time.Duration(rapid.Int64Range(0, 100_000).Draw(t, "delta")),
	}
}

// No rate increases with the round trip, decreases with the tags, or exceeds the link.
func TestThroughputIsMonotoneAndBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := genPath(t)
		if err := p.Validate(); err != nil {
			t.Fatal(err)
		}
		q := p
		q.RTT += time.Duration(rapid.Int64Range(0, 100_000).Draw(t, "more"))
		r := p
		r.Requester.Tags = min(p.Requester.Tags+rapid.IntRange(0, 1000).Draw(t, "moreTags"), Gen6Tags)
		for _, tr := range []Transfer{HtoDByRead, HtoDByWrite, DtoHByWrite} {
			if q.Throughput(tr) > p.Throughput(tr) {
				t.Fatalf("transfer %v: faster over a longer round trip", tr)
			}
			if r.Throughput(tr) < p.Throughput(tr) {
				t.Fatalf("transfer %v: slower with more tags", tr)
			}
			if p.Throughput(tr) > p.NativeThroughput(tr) {
				t.Fatalf("transfer %v: faster with disaggregation", tr)
			}
			if p.Throughput(tr) > p.Link.Raw() {
				t.Fatalf("transfer %v: faster than the link", tr)
			}
			if tr != HtoDByRead && p.Throughput(tr) != p.NativeThroughput(tr) {
				t.Fatalf("transfer %v: posted writes depend on the round trip", tr)
			}
		}
		need := TagsFor(p.Link.Read(), p.Requester.MRRS, p.RTT)
		if got := (Requester{need, p.Requester.MRRS}).ReadThroughput(p.RTT); got < p.Link.Read()*(1-1e-9) {
			t.Fatalf("TagsFor gave %d tags, which carry %v of %v", need, got, p.Link.Read())
		}
	})
}

// With many tags the link is the bound, over a long round trip the window.
func TestThroughputLimits(t *testing.T) {
	p := Path{Link: Gen3x16, Requester: Requester{Gen6Tags, 4096}, NativeRTT: us, RTT: 2 * us}
	if got := p.Throughput(HtoDByRead); got != p.Link.Read() {
		t.Errorf("many tags: %v, want the link's %v", got, p.Link.Read())
	}
	p.Requester, p.RTT = V100, time.Millisecond
	if got, want := p.Throughput(HtoDByRead), V100.ReadThroughput(time.Millisecond); got != want {
		t.Errorf("long round trip: %v, want Equation 1's %v", got, want)
	}
}

func TestTermIsMonotoneFromZero(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		term := Term{
			Slope: rapid.Float64Range(0, 3).Draw(t, "slope"),
			Fixed: time.Duration(rapid.Int64Range(0, 20_000).Draw(t, "fixed")),
			Knee:  time.Duration(rapid.Int64Range(0, 10_000).Draw(t, "knee")),
		}
		if term.At(0) != 0 || term.At(-us) != 0 {
			t.Fatal("a cost without an added round trip")
		}
		a := time.Duration(rapid.Int64Range(0, 50_000).Draw(t, "a"))
		b := a + time.Duration(rapid.Int64Range(0, 50_000).Draw(t, "b"))
		if term.At(a) > term.At(b) || term.At(a) < 0 {
			t.Fatalf("%v at %v is %v, at %v is %v", term, a, term.At(a), b, term.At(b))
		}
	})
}

func TestProxyShare(t *testing.T) {
	proxy := Proxy{HostToGPU: GBps(8.4), GPUToHost: GBps(3.6)}
	for _, tc := range []struct {
		name          string
		gpus, proxies int
		want          BytesPerSecond
		total         float64
	}{
		{"one", 1, 1, GBps(1.25), 1.25},
		{"linear", 4, 1, GBps(1.25), 5},
		{"full", 8, 1, GBps(1.25), 8.4},
		{"second proxy", 8, 2, GBps(1.25), 10},
		{"no GPU", 0, 1, GBps(1.25), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := Share(proxy.HostToGPU, tc.proxies, tc.gpus, tc.want).GB(); math.Abs(got-tc.total) > 1e-9 {
				t.Errorf("got %v, want %v", got, tc.total)
			}
		})
	}
	if got := proxy.ProxiesFor(8, GBps(1.25), GBps(0.6)); got != 2 {
		t.Errorf("ProxiesFor: %d, want 2", got)
	}
	if got := proxy.ProxiesFor(4, GBps(1.25), GBps(0.6)); got != 1 {
		t.Errorf("ProxiesFor: %d, want 1", got)
	}
}

func TestPeerRoutesAreOrdered(t *testing.T) {
	p := Path{Link: Gen3x16, Requester: V100, NativeRTT: NativeRTT, RTT: 6800 * time.Nanosecond}
	for _, posted := range []bool{true, false} {
		nv, same, across := p.PeerThroughput(PeerNVLink, posted), p.PeerThroughput(PeerSameProxy, posted), p.PeerThroughput(PeerAcrossProxy, posted)
		if !(nv > same && same > across && across > 0) {
			t.Errorf("posted %v: %v, %v, %v", posted, nv, same, across)
		}
	}
}

func TestParseRTT(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want time.Duration
	}{
		{"6.8us", 6800},
		{"6.8µs", 6800},
		{"1200ns", 1200},
		{"0.0068ms", 6800},
		{" 1s ", time.Second},
		{"", 0},
		{"6.8", 0},
		{"-1us", 0},
		{"0us", 0},
		{"2s", 0},
		{"us", 0},
	} {
		got, err := ParseRTT(tc.in)
		if got != tc.want || (err == nil) != (tc.want != 0) {
			t.Errorf("%q: %v, %v; want %v", tc.in, got, err, tc.want)
		}
	}
}

func TestStrings(t *testing.T) {
	for got, want := range map[string]string{
		V100.ReadThroughput(6800).String(): "2.64 GB/s",
		GBps(12.34).String():               "12.3 GB/s",
		BytesPerSecond(10).String():        "10.0 B/s",
		GBps(150).String():                 "150 GB/s",
		Bytes(17920).String():              "17.92 kB",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if BytesPerSecond(0).Time(1) != math.MaxInt64 || GBps(1).Time(0) != 0 || GBps(1).Time(1000) != us {
		t.Error("Time of a rate")
	}
}

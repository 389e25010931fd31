package fault_test

import (
	"bytes"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/fault"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       fault.Plan
		again      string
	}{
		{"nothing", "", fault.Plan{}, "none"},
		{"none", "none", fault.Plan{}, "none"},
		{
			"everything", "loss=1%,dup=0.5%,reorder=2%,corrupt=0.1%,delay=10us,jitter=5us,mtu=1400,partition=2s-3s",
			fault.Plan{
				Loss: 0.01, Dup: 0.005, Reorder: 0.02, Corrupt: 0.001, Delay: 10 * time.Microsecond, Jitter: 5 * time.Microsecond,
				MTU: 1400, Partitions: []fault.Window{{2 * time.Second, 3 * time.Second}},
			},
			"loss=0.01,dup=0.005,reorder=0.02,corrupt=0.001,delay=10µs,jitter=5µs,mtu=1400,partition=2s-3s",
		},
		{"spaces and a plain share", "loss=0.25, dup=1", fault.Plan{Loss: 0.25, Dup: 1}, "loss=0.25,dup=1"},
		{
			"two partitions, MTU from a time", "partition=0s-1ms,mtu=9000@2s,partition=2ms-3ms",
			fault.Plan{MTU: 9000, MTUAt: 2 * time.Second, Partitions: []fault.Window{{0, time.Millisecond}, {2 * time.Millisecond, 3 * time.Millisecond}}},
			"mtu=9000@2s,partition=0s-1ms,partition=2ms-3ms",
		},
		{
			"bottleneck, restarts, jumps", "rate=12.5MB/s,queue=256KiB,restart=5s,restart=7s,jump=2s+300ms",
			fault.Plan{
				Rate: 12.5e6, Queue: 256 << 10, Restarts: []time.Duration{5 * time.Second, 7 * time.Second},
				Jumps: []fault.Jump{{2 * time.Second, 300 * time.Millisecond}},
			},
			"rate=1.25e+07B/s,queue=262144,restart=5s,restart=7s,jump=2s+300ms",
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := fault.Parse(tc.text)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Error(diff)
			}
			if got.String() != tc.again {
				t.Errorf("String: %q, want %q", got.String(), tc.again)
			}
			if got.Zero() != (tc.again == "none") {
				t.Errorf("Zero: %v", got.Zero())
			}
		})
	}
}

func TestParseRefuses(t *testing.T) {
	for _, tc := range []struct{ name, text, want string }{
		{"unknown", "lose=1%", "unknown setting"},
		{"twice", "loss=1%,loss=2%", "set twice"},
		{"above one", "loss=101%", "from 0 to 100%"},
		{"negative", "dup=-1%", "from 0 to 100%"},
		{"not a number", "dup=NaN", "from 0 to 100%"},
		{"no share", "corrupt=much", "want a share"},
		{"no unit", "delay=10", "want a time"},
		{"negative delay", "delay=-1s", "want a time from 0"},
		{"too long", "delay=100h", "want a time from 0"},
		{"mtu zero", "mtu=0", "want 1 to 65535"},
		{"mtu large", "mtu=65536", "want 1 to 65535"},
		{"backwards", "partition=3s-2s", "TO after FROM"},
		{"no end", "partition=3s", "want"},
		{"empty item", "loss=1%,", "unknown setting"},
		{"rate without unit", "rate=5", "want a value like"},
		{"rate of 0", "rate=0B/s", "want a value like"},
		{"half a byte of queue", "queue=0.5", "want a value like"},
		{"jump without BY", "jump=3s", "want"},
		{"jump by 0", "jump=3s+0s", "BY above 0"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := fault.Parse(tc.text)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
			if !got.Zero() {
				t.Errorf("plan %+v with an error", got)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	f.Add("loss=1%,dup=0.5%,reorder=2%,corrupt=0.1%,delay=10us,jitter=5us,mtu=1400@1s,partition=2s-3s")
	f.Add("none")
	f.Add("partition=0s-1ms,partition=2ms-3ms")
	f.Add("rate=12.5MB/s,queue=256KiB,restart=5s,jump=2s+300ms")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := fault.Parse(text)
		if err != nil {
			if !p.Zero() {
				t.Fatalf("plan %+v with error %v", p, err)
			}
			return
		}
		again, err := fault.Parse(p.String())
		if err != nil {
			t.Fatalf("%q became %q: %v", text, p.String(), err)
		}
		if diff := cmp.Diff(p.String(), again.String()); diff != "" {
			t.Fatal(diff)
		}
	})
}

// The injected shares match the plan within five standard deviations.
func TestApplyShares(t *testing.T) {
	const count = 100_000
	plan := fault.Plan{Loss: 0.1, Dup: 0.05, Reorder: 0.02, Corrupt: 0.01, Delay: time.Millisecond, Jitter: time.Microsecond}
	in := fault.New(plan, 42)
	data := bytes.Repeat([]byte{0x5a}, 100)
	var copies, changed uint64
	for i := range count {
		now := time.Duration(i)
		for _, d := range in.Apply(now, data) {
			copies++
			if least := now + plan.Delay; d.At < least || d.At > least+plan.Jitter+4*fault.ReorderBy {
				t.Fatalf("sent at %v, arrives at %v", now, d.At)
			}
			if !bytes.Equal(d.Data, data) {
				changed++
			}
		}
	}
	s := in.Stats()
	near := func(name string, got, of uint64, p float64) {
		t.Helper()
		mean := float64(of) * p
		if math.Abs(float64(got)-mean) > 5*math.Sqrt(mean) {
			t.Errorf("%s: %d of %d, want about %.0f", name, got, of, mean)
		}
	}
	near("lost", s.Lost, count, plan.Loss)
	near("duplicated", s.Duplicated, count-s.Lost, plan.Dup)
	near("reordered", s.Reordered, copies, plan.Reorder)
	near("corrupted", s.Corrupted, copies, plan.Corrupt)
	if s.Datagrams != count || copies != count-s.Lost+s.Duplicated || changed > s.Corrupted {
		t.Errorf("%d copies, %d changed: %+v", copies, changed, s)
	}
}

func TestApplyIsRepeatable(t *testing.T) {
	plan := fault.Plan{Loss: 0.3, Dup: 0.3, Reorder: 0.3, Corrupt: 0.3, Jitter: time.Second}
	run := func(seed uint64) (out []fault.Delivery) {
		in := fault.New(plan, seed)
		for range 100 {
			for _, d := range in.Apply(0, []byte("datagram")) {
				out = append(out, fault.Delivery{At: d.At, Data: bytes.Clone(d.Data)})
			}
		}
		return out
	}
	if diff := cmp.Diff(run(1), run(1)); diff != "" {
		t.Error(diff)
	}
	if cmp.Equal(run(1), run(2)) {
		t.Error("another seed gives the same deliveries")
	}
}

func TestApplyWindows(t *testing.T) {
	in := fault.New(fault.Plan{MTU: 100, MTUAt: 10, Partitions: []fault.Window{{20, 30}}}, 1)
	for _, tc := range []struct {
		name string
		now  time.Duration
		size int
		want int
	}{
		{"large before the MTU drop", 9, 101, 1},
		{"large after", 10, 101, 0},
		{"as large as the MTU", 10, 100, 1},
		{"before the partition", 19, 1, 1},
		{"first moment of the partition", 20, 1, 0},
		{"last moment of the partition", 29, 1, 0},
		{"after", 30, 1, 1},
		{"empty datagram", 30, 0, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := len(in.Apply(tc.now, make([]byte, tc.size))); got != tc.want {
				t.Errorf("%d deliveries, want %d", got, tc.want)
			}
		})
	}
	if s := in.Stats(); s.TooLarge != 1 || s.Partitioned != 2 {
		t.Errorf("%+v", s)
	}
}

// A bottleneck delays datagrams and drops those that exceed its queue.
func TestApplyBottleneck(t *testing.T) {
	in := fault.New(fault.Plan{Rate: 1e6, Queue: 300}, 1) // 100 bytes take 100 µs
	for i, want := range []time.Duration{100, 200, 300, -1} {
		got := in.Apply(0, make([]byte, 100))
		switch {
		case want < 0 && len(got) != 0:
			t.Errorf("datagram %d arrives at %v, want it dropped", i, got[0].At)
		case want >= 0 && (len(got) != 1 || got[0].At != want*time.Microsecond):
			t.Errorf("datagram %d: %v, want it at %v", i, got, want*time.Microsecond)
		}
	}
	if got := in.Apply(time.Second, make([]byte, 100)); len(got) != 1 || got[0].At != time.Second+100*time.Microsecond {
		t.Errorf("after a pause: %v", got)
	}
	if s := in.Stats(); s.Overflowed != 1 || s.Lost != 0 {
		t.Errorf("%+v", s)
	}
}

func TestPerfectNetworkAllocatesNothing(t *testing.T) {
	in := fault.New(fault.Plan{}, 1)
	data := make([]byte, 100)
	in.Apply(0, data)
	if n := testing.AllocsPerRun(100, func() { in.Apply(0, data) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

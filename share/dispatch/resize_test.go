package dispatch_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// A slice that is resized again and again keeps to its limit over ten seconds: the policy
// forgets neither what it has used nor what runs.
func TestLimitHoldsAcrossResizes(t *testing.T) {
	p := &program{id: 1, spec: percent(30), kernel: 7 * time.Millisecond}
	w := newWorld(t, "gemini", p)
	for i := range 100 {
		w.run(time.Duration(i) * 100 * time.Millisecond)
		spec := percent(30 - i%2)
		spec.Memory = int64(i%3) << 20
		if !w.d.Resize(w.now, 1, spec) {
			t.Fatal("the share was not changed")
		}
	}
	if got := w.d.Usage(1).Service; got > 3*time.Second || got < 2700*time.Millisecond {
		t.Errorf("%v in ten seconds with a limit of 30 %%", got)
	}
	if n := w.d.Violations(); n != 0 {
		t.Errorf("the policy found %d events wrong", n)
	}
}

// A new share counts at once for a client that launches without an end.
func TestResizeOfAnEndlessBurst(t *testing.T) {
	for _, policy := range []string{"mps", "muxflow"} {
		t.Run(policy, func(t *testing.T) {
			spec := percent(60)
			spec.Class = share.Offline
			p := &program{id: 1, spec: spec, kernel: 7 * time.Millisecond}
			w := newWorld(t, policy, p)
			w.run(5 * time.Second)
			spec.Limit = share.Percent(20)
			w.d.Resize(w.now, 1, spec)
			before := w.d.Usage(1).Service
			w.run(w.now + 10*time.Second)
			if got := (w.d.Usage(1).Service - before).Seconds() / 10; got < 0.2*0.97 || got > 0.2*1.03 {
				t.Errorf("%.2f %% of the GPU after the change to 20 %%", 100*got)
			}
		})
	}
}

// The account of the memory follows each resize, to the byte, with every policy.
func TestResizeAccountsMemory(t *testing.T) {
	for _, info := range share.Policies() {
		t.Run(info.Name, func(t *testing.T) {
			w := newWorld(t, info.Name)
			eighth := small.Memory / 8
			spec := func(n int64) share.ClientSpec {
				return share.ClientSpec{Request: share.Percent(10), Memory: n}
			}
			for id := range share.ClientID(2) {
				if err := w.d.Join(0, id+1, spec(eighth)); err != nil {
					t.Fatal(err)
				}
			}
			// An instance of MIG for 0 bytes is the whole GPU.
			for _, c := range []struct {
				bytes int64
				ok    bool
			}{{7*eighth + 1, false}, {2 * eighth, true}, {-1, false}, {eighth / 2, true}, {0, info.Name != "mig"}, {2 * eighth, true}, {eighth, true}} {
				if got := w.d.Resize(0, 1, spec(c.bytes)); got != c.ok {
					t.Fatalf("resized to %d bytes: %t, want %t", c.bytes, got, c.ok)
				}
			}
			w.d.Leave(0, 2)
			if err := w.d.Join(0, 3, spec(7*eighth+1)); err == nil {
				t.Error("a byte beyond the memory was granted")
			}
			w.d.Leave(0, 1)
			if err := w.d.Join(0, 3, spec(small.Memory)); err != nil {
				t.Errorf("memory is leaked: %v", err)
			}
			if n := w.d.Violations(); n != 0 {
				t.Errorf("the policy found %d events wrong", n)
			}
		})
	}
}

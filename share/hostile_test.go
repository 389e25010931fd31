package share_test

import (
	"math"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// An online client that never ends what a policy wants to measure does not keep the
// offline clients waiting for ever.
func TestMeasurementAloneEnds(t *testing.T) {
	for _, name := range []string{"antman", "orion", "tgs"} {
		t.Run(name, func(t *testing.T) {
			c := newChecker(t, name, share.A100)
			c.join(1, share.ClientSpec{})
			c.join(2, share.ClientSpec{Class: share.Offline})
			c.launch(1, share.Kernel{Blocks: 1, SMs: 1, First: true, Update: true})
			c.decide()
			c.complete(1, time.Microsecond)
			c.launch(2, share.Kernel{Blocks: 1, SMs: 1})
			c.pass(5 * time.Second)
			c.pass(time.Minute) // only the wake-ups of the policy
			if len(c.clients[2].flights) == 0 {
				t.Error("the offline client waits after a minute")
			}
		})
	}
}

// A client cannot report that the GPU was reset.
func TestOnlyTheGPUReportsItsReset(t *testing.T) {
	c := newChecker(t, "muxflow", share.A100)
	c.join(1, share.ClientSpec{})
	c.receive(share.Event{Kind: share.Failed, Fault: share.FaultDevice})
	c.receive(share.Event{Kind: share.Failed, Client: 1, Fault: share.FaultCleared})
	c.launch(1, share.Kernel{Blocks: 1})
	c.decide()
	if len(c.clients[1].flights) != 0 {
		t.Fatal("a launch on a GPU that needs a reset")
	}
	c.receive(share.Event{Kind: share.Failed, Fault: share.FaultCleared})
	c.decide()
	if len(c.clients[1].flights) != 1 {
		t.Error("no launch after the reset")
	}
}

// Offline clients that join while others are held are held too, and each Resume ends a Hold.
func TestHoldsOfClientsThatJoinLater(t *testing.T) {
	c := newChecker(t, "muxflow", share.A100)
	c.join(1, share.ClientSpec{Class: share.Offline, Memory: 1})
	c.decide()
	c.join(2, share.ClientSpec{Class: share.Offline, Memory: 1})
	c.decide()
	if !c.clients[1].held || !c.clients[2].held {
		t.Error("a client is not held on a GPU that was not found healthy")
	}
	c.warm()
	if c.clients[1].held || c.clients[2].held {
		t.Error("a client is held on a healthy GPU")
	}
}

// MIG has room for a client that asks for all memory, however many bytes that are.
func TestMIGHasRoomForAllMemory(t *testing.T) {
	c := newChecker(t, "mig", share.Device{SMs: 108, ThreadsPerSM: 2048, Memory: 1003})
	c.join(1, share.ClientSpec{})
	c.decide()
	if c.clients[1].evicted {
		t.Error("the only client is evicted")
	}
}

// Durations of any length in the settings neither overflow nor wake the caller at each instant.
func TestExtremeSettings(t *testing.T) {
	for _, d := range []time.Duration{1, math.MaxInt64} {
		for _, info := range share.Policies() {
			p, err := info.New(share.A100, share.Settings{Quantum: d, Linger: d, Sample: d})
			if err != nil {
				t.Fatal(err)
			}
			p.Receive(0, share.Event{Kind: share.Join, Client: 1, Spec: share.ClientSpec{Weight: 100}})
			p.Receive(0, share.Event{Kind: share.Launch, Client: 1, Launch: 1})
			now, wakes := time.Duration(0), 0
			for ; now < 100*time.Millisecond; wakes++ {
				for len(p.Transmit(now, nil)) > 0 {
				}
				if wakes > 1000 {
					t.Fatalf("%s, %v: more than 1000 wake-ups in 100 ms", info.Name, d)
				}
				if now = p.Wake(); now < 0 {
					t.Fatalf("%s, %v: wake at %v", info.Name, d, now)
				}
			}
		}
	}
}

// The buckets of gaia fill up while a client is silent.
func TestGaiaFillsBucketsInASilence(t *testing.T) {
	c := newChecker(t, "gaia", share.A100)
	c.join(1, share.ClientSpec{Limit: share.Percent(50)})
	c.receive(share.Event{Kind: share.Sampled, Client: 1})
	total := int64(share.A100.SMs) * int64(share.A100.ThreadsPerSM) * 32
	c.launch(1, share.Kernel{Blocks: total})
	c.decide()
	c.complete(1, time.Millisecond)
	c.pass(c.now + time.Hour) // the bucket is full again
	for i := range 2 {
		c.launch(1, share.Kernel{Blocks: total})
		c.decide()
		if len(c.clients[1].flights) != 1 {
			t.Fatalf("launch %d waits after an hour of silence", i)
		}
		c.complete(1, time.Millisecond)
	}
}

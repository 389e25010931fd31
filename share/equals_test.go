package share_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// Programs of one machine have no profiles, so a policy cannot tell two of them apart. A client
// that launches without a pause and without waiting does not keep others waiting that joined
// after it: those that launch as often have their parts, and one with single requests is
// served soon.
func TestEqualClientsWithoutProfiles(t *testing.T) {
	for _, p := range share.Policies() {
		if p.Name == "mig" {
			continue // parts of its own for each client
		}
		t.Run(p.Name, func(t *testing.T) {
			t.Parallel()
			soon := 40 * time.Millisecond
			if p.Name == "gemini" {
				soon = 600 * time.Millisecond // a token for each of the others
			}
			for _, clients := range []int{2, 5} {
				for _, requests := range []bool{false, true} {
					served, longest := besideBusy(t, p.Name, clients, requests)
					t.Logf("requests %v: launches %v, the last client waits for up to %v", requests, served, longest)
					if requests && longest > soon {
						t.Errorf("%d clients: a request waits for %v", clients, longest)
					}
					if !requests && served[clients-1]*4*clients < 8000 {
						t.Errorf("%d clients: launches %v: the last has less than a quarter of its part", clients, served)
					}
				}
			}
		})
	}
}

// besideBusy runs clients for four seconds, whose launches run for half a millisecond each, in
// turn. The first launches without waiting, as far as the policy lets it; the others wait for
// each launch, and with requests the last one then waits for a millisecond. besideBusy returns
// how many launches each had, and how long one of the last client waited, at most.
func besideBusy(t *testing.T, policy string, clients int, requests bool) (served []int, longest time.Duration) {
	t.Helper()
	c := newChecker(t, policy, share.A100)
	for i := range clients {
		c.join(share.ClientID(i+1), share.ClientSpec{Class: share.Offline, Memory: 1})
	}
	c.warm()
	const run = 500 * time.Microsecond
	last := share.ClientID(clients)
	var since, rest time.Duration
	launch := func(id share.ClientID) {
		x := c.clients[id]
		if x.waiting != 0 || id != 1 && len(x.flights) > 0 || id == last && c.now < rest {
			return
		}
		if id == last {
			since = c.now
		}
		c.launch(id, share.Kernel{Blocks: 1000, SMs: 108})
		c.decide()
	}
	served = make([]int, clients)
	turn := share.ClientID(0)
	for start := c.now; c.now < start+4*time.Second; {
		for i := range clients {
			launch(share.ClientID(i + 1))
		}
		for range clients { // the next one that has a launch on the GPU
			turn = turn%last + 1
			if len(c.clients[turn].flights) > 0 {
				break
			}
		}
		c.pass(c.now + run)
		if len(c.clients[turn].flights) == 0 {
			continue // a wake-up has let one start meanwhile
		}
		c.complete(turn, run)
		served[turn-1]++
		if turn == last {
			longest = max(longest, c.now-since)
			if requests {
				rest = c.now + time.Millisecond
			}
		}
		c.decide()
	}
	return served, longest
}

package share_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// Short programs that come and go do not keep a client waiting that was there before: each of
// them is a client of its own, as with a loop of "dxpu share run".
func TestClientsThatComeAndGoTakeTurns(t *testing.T) {
	for _, p := range share.Policies() {
		if p.Name == "mig" || p.Name == "gaia" {
			continue // has no room for as many clients, or needs readings of each
		}
		t.Run(p.Name, func(t *testing.T) {
			c := newChecker(t, p.Name, share.A100)
			spec := share.ClientSpec{Class: share.Offline, Memory: 1, Request: share.Percent(10)}
			c.join(1, share.ClientSpec{Class: share.Offline, Memory: 1, Request: share.Percent(50)})
			c.warm()
			const run = 500 * time.Microsecond
			k := share.Kernel{Blocks: 1000, SMs: 108, Expected: run}
			next := share.ClientID(2)
			short := []share.ClientID{next, next + 1}
			for _, id := range short {
				c.join(id, spec)
			}
			next += 2
			served, start := 0, c.now
			for c.now < start+4*time.Second {
				for _, id := range append([]share.ClientID{1}, short...) {
					c.launch(id, k)
					c.decide()
				}
				c.pass(c.now + run)
				if x := c.clients[1]; len(x.flights) > 0 {
					c.complete(1, run)
					c.decide()
					served++
				}
				for i, id := range short { // one that has run leaves with its work, and another one comes
					if len(c.clients[id].flights) == 0 {
						continue
					}
					c.complete(id, run)
					c.join(next, spec)
					c.launch(next, k)
					c.leave(id)
					short[i] = next
					next++
					c.decide()
					break
				}
			}
			t.Logf("%d launches of the client that stays, %d others", served, next)
			if served < 2500 {
				t.Errorf("%d launches of the client that stays in 4 s, %d of those that come and go", served, next)
			}
		})
	}
}

package engine

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/link"
)

// A link whose peer is silent lives while another link of its group hears that peer, but not
// for ever.
func TestHeardElsewhere(t *testing.T) {
	for _, c := range []struct {
		name        string
		hears       time.Duration // how long the other link hears it
		least, most time.Duration
	}{
		{"the same peer", time.Hour, 7 * time.Second, 9 * time.Second},
		{"the same peer, which dies then", 2 * time.Second, 2500 * time.Millisecond, 3500 * time.Millisecond},
		{"no other", 0, 500 * time.Millisecond, 1500 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			n := newNetwork(t, 1)
			var a, b [2]end
			host, box := n.side[0].newGroup(), n.side[1].newGroup()
			for i := range a {
				n.join([2]*driver{host, box}, n.configs(uint32(i+1), link.CipherNone), &a[i], &b[i])
			}
			n.up(&a[0], &a[1])
			a[0].with(func(e Entry) {
				if err := a[0].binding.Send(e, write(0, 4)); err != nil {
					t.Fatal(err)
				}
			})
			silent := n.now
			delete(n.side[0].bindings, 1)
			down := func() bool { return a[0].binding.link.State() == link.Down }
			if !n.run(silent+c.hears, down) {
				delete(n.side[0].bindings, 2)
				n.run(silent+20*time.Second, down)
			}
			if took := n.now - silent; took < c.least || took > c.most {
				t.Errorf("the link is down after %v, want %v to %v", took, c.least, c.most)
			}
		})
	}
}

// Only links that are up, and lead to the same peer, tell about it.
func TestHeardOfWhom(t *testing.T) {
	n := newNetwork(t, 1)
	var a, b [2]end
	host, box := n.side[0].newGroup(), n.side[1].newGroup()
	n.join([2]*driver{host, box}, n.configs(1, link.CipherNone), &a[0], &b[0])
	n.attach(host, n.configs(2, link.CipherNone)[0], &a[1]) // the box does not have it yet
	n.up(&a[0])
	if at := host.group.heard(a[0].binding); at != 0 {
		t.Errorf("heard at %v by a link that is not up", at)
	}
	n.attach(box, n.configs(2, link.CipherNone)[1], &b[1])
	n.up(&a[1])
	if at := host.group.heard(a[0].binding); at != a[1].binding.link.Heard() || at == 0 {
		t.Errorf("heard at %v, want %v", at, a[1].binding.link.Heard())
	}
	a[1].binding.peers = n.side[0].addrs
	if at := host.group.heard(a[0].binding); at != 0 {
		t.Errorf("heard at %v by a link to another peer", at)
	}
}

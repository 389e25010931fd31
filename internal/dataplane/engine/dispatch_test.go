package engine

import (
	"net/netip"
	"testing"

	"github.com/dxpu-project/dxpu/link"
)

// A report that a host refuses datagrams enters only the groups with a link to that
// host, once: anybody can forge one.
func TestRefusalsEnterTheGroupsOfTheirPeers(t *testing.T) {
	n := newNetwork(t, 1)
	one, two := n.pairOfGroups(), n.pairOfGroups()
	var a, b, c, d, e, f end
	n.join(one, n.configs(1, link.CipherAES256GCM), &a, &b)
	n.join(one, n.configs(2, link.CipherAES256GCM), &c, &d)
	n.join(two, n.configs(3, link.CipherAES256GCM), &e, &f)
	n.up(&a, &b, &c, &d, &e, &f)
	peer, other, stranger := n.side[1].addrs[0], netip.MustParseAddrPort("192.0.2.9:4000"), netip.MustParseAddrPort("198.51.100.1:53")
	// Of the second group, reports name another address.
	e.binding.door = &Door{peers: []netip.AddrPort{other}, guards: e.binding.door.guards}
	routes := n.side[0].bindings
	routes[3] = Route[*driver]{Gate: two[0], Door: e.binding.door}
	for _, tc := range []struct {
		name     string
		path     uint8
		peers    []netip.AddrPort
		entries  [2]int    // of the two groups
		refusals [3]uint64 // of the three links, in all
	}{
		{"a stranger", 0, []netip.AddrPort{stranger}, [2]int{0, 0}, [3]uint64{0, 0, 0}},
		{"another path", 1, []netip.AddrPort{peer}, [2]int{0, 0}, [3]uint64{0, 0, 0}},
		{"the peer of two links", 0, []netip.AddrPort{stranger, peer}, [2]int{1, 0}, [3]uint64{1, 1, 0}},
		{"the peer of one", 0, []netip.AddrPort{other}, [2]int{0, 1}, [3]uint64{1, 1, 1}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			before := [2]int{one[0].entries, two[0].entries}
			Refused(routes, tc.path, tc.peers)
			if got := [2]int{one[0].entries - before[0], two[0].entries - before[1]}; got != tc.entries {
				t.Errorf("%v entries, want %v", got, tc.entries)
			}
			var refusals [3]uint64
			for i, h := range []*end{&a, &c, &e} {
				h.with(func(at Entry) { refusals[i] = h.binding.Stats(at).Refusals })
			}
			if refusals != tc.refusals {
				t.Errorf("%v refusals, want %v", refusals, tc.refusals)
			}
		})
	}
}

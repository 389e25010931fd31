package network

import (
	"fmt"
	"net"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/dxpu-project/dxpu/test/namespace"
)

// ends of a network.
const (
	hostEnd = 0
	boxEnd  = 1
)

// network is two namespaces, joined by paths: interface "p0" of one is joined to
// "p0" of the other, "p1" to "p1".
type network struct {
	t    *testing.T
	ends [2]*namespace.Namespace
}

const jumbo = 9000 // MTU of the interfaces

func newNetwork(t *testing.T, paths int) network {
	t.Helper()
	n := network{t, [2]*namespace.Namespace{namespace.New(t), namespace.New(t)}}
	for i := range paths {
		n.ends[hostEnd].Join(iface(i), n.ends[boxEnd], iface(i), jumbo)
		for end, ns := range n.ends {
			ns.Address(iface(i), address(end, i))
			ns.Up(iface(i))
		}
	}
	return n
}

func iface(path int) string { return fmt.Sprintf("p%d", path) }

// address returns the address of an end in a path's network, a network for
// documentation and examples (RFC 5737).
func address(end, path int) string {
	return fmt.Sprintf("%s.%d", [...]string{"192.0.2", "198.51.100"}[path], end+1)
}

// down sets the interface of path 0 down.
func (n network) down(end int) {
	n.t.Helper()
	ns := n.ends[end]
	n.check(ns.LinkSetDown(ns.Link(iface(0))))
}

// setMTU changes the MTU of the interface of path 0.
func (n network) setMTU(end, mtu int) {
	n.t.Helper()
	ns := n.ends[end]
	n.check(ns.LinkSetMTU(ns.Link(iface(0)), mtu))
}

// misdirect makes an end send its frames of path 0 to a station that does not
// exist: both interfaces stay up, and nothing from this end arrives any more.
func (n network) misdirect(end int) {
	n.t.Helper()
	ns := n.ends[end]
	n.check(ns.NeighSet(&netlink.Neigh{
		LinkIndex: ns.Link(iface(0)).Attrs().Index, State: netlink.NUD_PERMANENT,
		IP: net.ParseIP(address(1-end, 0)), HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 0x99},
	}))
}

func (n network) check(err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatal(err)
	}
}

package torture

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/test/namespace"
)

// network is a bridge in the test's own namespace and a namespace for each
// manager, joined to the bridge. Each node and client has its own address on the
// bridge.
type network struct {
	subnet     string // "10.213.7"
	namespaces []*namespace.Namespace
}

// newNetwork makes the bridge and the namespaces. It skips the test where they
// are not allowed.
func newNetwork(t *testing.T, index, managers, others int) *network {
	t.Helper()
	id := os.Getpid()
	n := &network{subnet: fmt.Sprintf("10.%d.%d", 200+index, id%250)}
	for range managers {
		n.namespaces = append(n.namespaces, namespace.New(t))
	}
	here, bridge := namespace.Current(t), &netlink.Bridge{LinkAttrs: netlink.NewLinkAttrs()}
	bridge.Name = fmt.Sprintf("dx%d%c", id%100000, 'a'+index)
	here.Add(bridge)
	t.Cleanup(func() { _ = here.LinkDel(bridge) })
	here.Up(bridge.Name)
	for i := range others + 1 { // address 0 is that of the test itself
		here.Address(bridge.Name, n.other(i))
	}
	for i, ns := range n.namespaces {
		veth := fmt.Sprintf("%sv%d", bridge.Name, i)
		here.Join(veth, ns, "eth0", 0)
		must(t, here.LinkSetMaster(here.Link(veth), bridge))
		here.Up(veth)
		ns.Address("eth0", n.manager(i))
		ns.Up("eth0")
	}
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (n *network) manager(i int) string { return fmt.Sprintf("%s.%d", n.subnet, i+1) }

func (n *network) other(i int) string { return fmt.Sprintf("%s.%d", n.subnet, 100+i) }

// cut drops a manager's packets to an address, and with them every answer.
func (n *network) cut(manager int, to string) error {
	return n.namespaces[manager].RouteReplace(blackhole(to))
}

// mend undoes cut.
func (n *network) mend(manager int, to string) error {
	return n.namespaces[manager].RouteDel(blackhole(to))
}

func blackhole(to string) *netlink.Route {
	return &netlink.Route{Dst: &net.IPNet{IP: net.ParseIP(to).To4(), Mask: net.CIDRMask(32, 32)}, Type: unix.RTN_BLACKHOLE}
}

// client returns an HTTP client that calls from one of the addresses on the bridge.
func (n *network) client(i int) *http.Client {
	d := &net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(n.other(i))}}
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return d.DialContext(ctx, network, addr)
		},
		MaxIdleConnsPerHost: 4, IdleConnTimeout: 5 * time.Second,
	}}
}

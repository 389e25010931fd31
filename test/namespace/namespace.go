// Package namespace makes network namespaces for tests.
package namespace

import (
	"errors"
	"net"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace without a name: the kernel removes it after
// the test and the processes in it have ended. The methods of its Handle
// configure it.
type Namespace struct {
	*netlink.Handle
	t  testing.TB
	ns netns.NsHandle
}

// New makes a namespace for the duration of the test, with its loopback
// interface up. It skips the test where namespaces are not allowed.
func New(t testing.TB) *Namespace {
	t.Helper()
	n := &Namespace{t: t}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	n.must("open the test's namespace", err)
	defer own.Close()
	switch n.ns, err = netns.New(); { // also enters it
	case errors.Is(err, unix.EPERM):
		t.Skipf("needs root (CAP_SYS_ADMIN) for network namespaces: %v", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSPC): // unshare(2): not in this kernel; a limit of none
		t.Skipf("no network namespaces here: %v", err)
	}
	n.must("make a network namespace", err)
	t.Cleanup(func() { _ = n.ns.Close() })
	n.Handle, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	leave(own)
	n.must("open a netlink socket", err)
	t.Cleanup(n.Close)
	n.Up("lo")
	return n
}

// leave returns the thread to its own namespace.
func leave(own netns.NsHandle) {
	if err := netns.Set(own); err != nil {
		panic("namespace: a thread cannot return to its namespace: " + err.Error())
	}
}

// Current returns the namespace that the test runs in.
func Current(t testing.TB) *Namespace {
	return &Namespace{Handle: &netlink.Handle{}, t: t, ns: netns.None()} // the zero handle opens a socket for each call
}

// Do calls f in a namespace of New and returns its error. A process that f
// starts stays in the namespace.
func (n *Namespace) Do(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own, err := netns.Get()
	if err != nil {
		return err
	}
	defer own.Close()
	if err := netns.Set(n.ns); err != nil {
		return err
	}
	defer leave(own)
	return f()
}

// Add makes an interface. It skips the test where the kernel lacks this kind of
// interface or forbids it, as in some containers.
func (n *Namespace) Add(l netlink.Link) {
	n.t.Helper()
	err := n.LinkAdd(l)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EOPNOTSUPP) {
		n.t.Skipf("no interfaces of kind %s here: %v", l.Type(), err)
	}
	n.must("add "+l.Attrs().Name, err)
}

// Join makes a pair of virtual Ethernet interfaces, one in each namespace, both
// with the MTU; 0: the kernel's default.
func (n *Namespace) Join(name string, peer *Namespace, peerName string, mtu int) {
	n.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = name, mtu
	n.Add(&netlink.Veth{LinkAttrs: attrs, PeerName: peerName, PeerNamespace: netlink.NsFd(peer.ns), PeerMTU: uint32(mtu)})
}

// Link returns an interface.
func (n *Namespace) Link(name string) netlink.Link {
	n.t.Helper()
	l, err := n.LinkByName(name)
	n.must("find "+name, err)
	return l
}

// Address gives an interface an address in a network of 256.
func (n *Namespace) Address(name, ip string) {
	n.t.Helper()
	a := &net.IPNet{IP: net.ParseIP(ip).To4(), Mask: net.CIDRMask(24, 32)}
	n.must("add "+ip, n.AddrAdd(n.Link(name), &netlink.Addr{IPNet: a}))
}

// Up sets an interface up.
func (n *Namespace) Up(name string) {
	n.t.Helper()
	n.must("set "+name+" up", n.LinkSetUp(n.Link(name)))
}

func (n *Namespace) must(what string, err error) {
	n.t.Helper()
	if err != nil {
		n.t.Fatalf("%s: %v", what, err)
	}
}

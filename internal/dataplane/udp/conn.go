// Package udp moves datagrams in batches: with UDP segmentation offload one
// system call sends up to 64 equal datagrams, and with receive offload one
// call receives them.
//
// Listen probes for the offloads. If a kernel or a network card refuses a batch,
// the writer sends those datagrams one by one, and for a while all others too;
// Stats has the counts. Some kernels corrupt batches without an error. The
// receiver's CRC counters then rise, and Options.NoOffload is the remedy.
//
// Datagrams are never fragmented: one that exceeds the MTU of the interface is
// refused with EMSGSIZE, one that exceeds that of a later network is lost. The
// link searches for the size that passes.
package udp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/fd"
)

// Sizes in bytes.
const (
	// MaxDatagram is the largest UDP payload over IPv4.
	MaxDatagram = 65507
	// MaxSegments is the number of datagrams that Linux takes in one batch
	// (UDP_MAX_SEGMENTS, 64 until Linux 6.9 made it 128).
	MaxSegments = 64
	// ReadBuffer is the size of the largest received batch.
	ReadBuffer = 65536

	// SocketBuffer is the buffer that a socket asks for in each direction. A
	// process without CAP_NET_ADMIN gets at most net.core.rmem_max and wmem_max.
	SocketBuffer = 8 << 20
)

// readTimeout is how long Read waits at most. It bounds how late a reader sees
// other events than datagrams. 20 wake-ups a second cost next to nothing.
const readTimeout = 50 * time.Millisecond

// ErrTimeout is returned by Read when no datagram arrived in 50 ms, and by Poll
// when none had arrived.
var ErrTimeout = errors.New("udp: read: nothing came")

// Options of a socket.
type Options struct {
	NoOffload bool // neither segmentation nor receive offload
}

// Conn is a UDP socket. Its methods may be called from several goroutines.
//
// It is a blocking socket outside the Go runtime's poller: a reader waits in the
// kernel, in a thread of its own. With the poller, an empty read, a wake-up of
// the polling thread and a pass of the scheduler would lie between a datagram
// and its goroutine.
type Conn struct {
	fd    *fd.FD
	local netip.AddrPort
	ip4   bool // an IPv4 socket
	gso   bool // the kernel has segmentation offload
	gro   bool
	room  int // see ReceiveRoom
	stat  counters
	// reported is set when a writer met an error that an earlier datagram caused.
	// The reader reads it from the error queue.
	reported atomic.Bool
}

type counters struct {
	rxBatches, rxDatagrams, rxBytes atomic.Uint64
	txBatches, txDatagrams, txBytes atomic.Uint64
	gsoRefused, txErrors            atomic.Uint64
}

// TxBytes returns Stats().TxBytes alone.
func (c *Conn) TxBytes() uint64 { return c.stat.txBytes.Load() }

// Stats are counts since Listen. They are read one after another, so they are not
// of exactly one moment.
type Stats struct {
	RxBatches, RxDatagrams, RxBytes uint64
	TxBatches, TxDatagrams, TxBytes uint64
	GSORefused                      uint64 // batches whose datagrams were sent one by one
	TxErrors                        uint64 // datagrams that the kernel did not take
	GSO, GRO                        bool   // the kernel has the offload
}

// Listen opens a socket on a local address like "192.0.2.1:4791" or
// "127.0.0.1:0".
func Listen(addr string, o Options) (*Conn, error) {
	var lc net.ListenConfig
	pc, err := lc.ListenPacket(context.Background(), "udp", addr)
	if err != nil {
		return nil, fmt.Errorf("udp: listen: %w", err)
	}
	c, err := adopt(pc.(*net.UDPConn), o)
	if err = errors.Join(err, pc.Close()); err != nil {
		return nil, fmt.Errorf("udp: listen: %w", err)
	}
	return c, nil
}

// adopt makes a Conn with a duplicate of the socket's descriptor.
func adopt(pc *net.UDPConn, o Options) (*Conn, error) {
	d, err := fd.Adopt(pc, readTimeout, nil)
	if err != nil {
		return nil, err
	}
	addr := pc.LocalAddr().(*net.UDPAddr).AddrPort()
	c := &Conn{fd: d, local: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())}
	raw, _ := d.Use() // cannot fail: not closed yet
	defer d.Done()
	fd := int(raw)
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	c.ip4 = err == nil && domain == unix.AF_INET
	setBuffers(fd)
	if c.room, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF); err != nil {
		return nil, errors.Join(os.NewSyscallError("getsockopt SO_RCVBUF", err), d.Close())
	}
	if err := setErrors(fd, c.ip4); err != nil {
		return nil, errors.Join(err, d.Close())
	}
	setMarks(fd, c.ip4)
	if !o.NoOffload {
		c.probe(fd)
	}
	return c, nil
}

// setBuffers asks for socket buffers for the traffic of many bindings. The
// administrator limits what the kernel grants, so errors are ignored.
func setBuffers(fd int) {
	for _, opt := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt[0], SocketBuffer) != nil {
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, opt[1], SocketBuffer)
		}
	}
}

// setErrors makes the kernel refuse to fragment, because the link fits the datagrams
// to the MTU of the path and fragments would hide that it has become smaller. And it
// makes the kernel report the datagrams that a host has refused. An IPv6 socket
// needs the options of IPv4 too, for mapped addresses.
func setErrors(fd int, ip4 bool) error {
	err := errors.Join(
		os.NewSyscallError("setsockopt IP_MTU_DISCOVER", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)),
		os.NewSyscallError("setsockopt IP_RECVERR", unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVERR, 1)))
	if ip4 {
		return err
	}
	return errors.Join(err,
		os.NewSyscallError("setsockopt IPV6_MTU_DISCOVER", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE)),
		os.NewSyscallError("setsockopt IPV6_RECVERR", unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVERR, 1)))
}

// setMarks asks the kernel to report the marks of datagrams. An IPv6 socket needs the option of
// IPv4 too, for mapped addresses. A peer finds out that none are reported, so errors are ignored.
func setMarks(fd int, ip4 bool) {
	_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_RECVTOS, 1)
	if !ip4 {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_RECVTCLASS, 1)
	}
}

// probe detects the offloads of the kernel. udp(7): UDP_SEGMENT since
// Linux 4.18, UDP_GRO since 5.0.
func (c *Conn) probe(fd int) {
	_, err := unix.GetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_SEGMENT)
	c.gso = err == nil
	c.gro = unix.SetsockoptInt(fd, unix.IPPROTO_UDP, unix.UDP_GRO, 1) == nil
}

// LocalAddr returns the address that the socket is bound to.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// ReceiveRoom returns how many bytes of datagrams, with what the kernel adds to each,
// wait at most in the socket.
func (c *Conn) ReceiveRoom() int { return c.room }

// Close closes the socket; a blocked Read returns net.ErrClosed.
func (c *Conn) Close() error { return c.fd.Shutdown() }

// Stats returns the counters.
func (c *Conn) Stats() Stats {
	return Stats{
		RxBatches: c.stat.rxBatches.Load(), RxDatagrams: c.stat.rxDatagrams.Load(), RxBytes: c.stat.rxBytes.Load(),
		TxBatches: c.stat.txBatches.Load(), TxDatagrams: c.stat.txDatagrams.Load(), TxBytes: c.stat.txBytes.Load(),
		GSORefused: c.stat.gsoRefused.Load(), TxErrors: c.stat.txErrors.Load(),
		GSO: c.gso, GRO: c.gro,
	}
}

// MTU returns the largest UDP payload in bytes for the interface that has the
// local address: the interface's MTU less the IP and UDP headers, at most
// MaxDatagram. For an unspecified address it returns that of Ethernet.
func MTU(local netip.Addr) (int, error) {
	const ethernet, udpHeader = 1500, 8
	ipHeader := 20
	if local.Is6() && !local.Is4In6() {
		ipHeader = 40
	}
	if local.IsUnspecified() {
		return ethernet - ipHeader - udpHeader, nil
	}
	ifaces, err := net.Interfaces()
	if err != nil {
		return 0, fmt.Errorf("udp: interfaces: %w", err)
	}
	for _, iface := range ifaces {
		addrs, err := iface.Addrs()
		if err != nil {
			continue // the interface has just been removed
		}
		for _, a := range addrs {
			prefix, err := netip.ParsePrefix(a.String())
			if err != nil {
				continue
			}
			// The loopback interface has all of 127.0.0.0/8, not only the address that it lists.
			if prefix.Addr() == local.Unmap() || prefix.Addr().IsLoopback() && prefix.Contains(local.Unmap()) {
				return min(iface.MTU-ipHeader-udpHeader, MaxDatagram), nil
			}
		}
	}
	return 0, fmt.Errorf("udp: no interface has the address %v", local)
}

package netio

import (
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/link"
)

// Datagrams say that the network may mark them, and the other end sees the marks.
func TestMarkedDatagrams(t *testing.T) {
	r := joinFabrics(t)
	// The network: each end's peer is a socket of it, which sends on what the other one gets.
	var sockets [2]*net.UDPConn
	for i := range sockets {
		sockets[i] = markingSocket(t)
	}
	var markable atomic.Int64
	for i, from := range sockets {
		done := make(chan struct{})
		go func() {
			defer close(done)
			relay(from, sockets[1-i], r.fabric[1-i].Addrs()[0], &markable)
		}()
		t.Cleanup(func() { from.Close(); <-done })
	}
	const writes = 500
	var a, b end
	arrived := b.expect(t, writes)
	for side, e := range []*end{&a, &b} {
		r.attachTo([]netip.AddrPort{sockets[side].LocalAddr().(*net.UDPAddr).AddrPort()}, r.configs(1, link.CipherAES256GCM)[side], side, e)
	}
	a.await(t, link.Up)
	a.sendAll(t, writes)
	wait(t, arrived, "the writes")
	at := b.group.Enter()
	marked := b.binding.Stats(at).MarkedDatagrams
	b.group.Leave(at)
	if marked == 0 || markable.Load() == 0 {
		t.Errorf("%d marked datagrams, %d that may be", marked, markable.Load())
	}
}

// markingSocket returns a socket whose datagrams have the mark of a congested network.
func markingSocket(t *testing.T) *net.UDPConn {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if e := raw.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TOS, 3), unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_RECVTOS, 1))
	}); e != nil || err != nil {
		t.Fatal(e, err)
	}
	return c
}

// relay sends on what a socket gets, and counts the datagrams with ECT(0).
func relay(from, by *net.UDPConn, to netip.AddrPort, markable *atomic.Int64) {
	buf, oob := make([]byte, 1<<16), make([]byte, 64)
	for {
		n, m, _, _, err := from.ReadMsgUDPAddrPort(buf, oob)
		if err != nil {
			return
		}
		if messages, err := unix.ParseSocketControlMessage(oob[:m]); err == nil && len(messages) == 1 && messages[0].Data[0]&3 == 2 {
			markable.Add(1)
		}
		_, _ = by.WriteToUDPAddrPort(buf[:n], to)
	}
}

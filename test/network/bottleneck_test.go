package network

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
)

// limit gives the interface of path 0 at an end a rate in bytes per second and a queue in bytes,
// which drops what does not fit.
func (n network) limit(end int, rate uint64, queue uint32) {
	n.t.Helper()
	ns := n.ends[end]
	n.check(ns.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: ns.Link(iface(0)).Attrs().Index, Parent: netlink.HANDLE_ROOT, Handle: netlink.MakeHandle(1, 0)},
		Rate:       rate, Limit: queue, Buffer: netlink.Xmittime(rate, 128<<10), // which holds a batch of segmentation offload
	}))
}

// dropped returns how many packets the queue of an end has dropped.
func (n network) dropped(end int) (packets uint32) {
	n.t.Helper()
	ns := n.ends[end]
	queues, err := ns.QdiscList(ns.Link(iface(0)))
	n.check(err)
	for _, q := range queues {
		if s := q.Attrs().Statistics; s != nil && q.Type() == "tbf" {
			packets += s.Queue.Drops
		}
	}
	return packets
}

// sendTCP sends from the box to the host by the kernel's TCP until stop is called. got counts
// what has arrived.
func (n network) sendTCP() (got *atomic.Int64, stop func()) {
	n.t.Helper()
	var l *net.TCPListener
	var from *net.TCPConn
	n.check(n.ends[hostEnd].Do(func() (err error) {
		l, err = net.ListenTCP("tcp", &net.TCPAddr{IP: net.ParseIP(address(hostEnd, 0))})
		return err
	}))
	n.check(n.ends[boxEnd].Do(func() (err error) {
		from, err = net.DialTCP("tcp", nil, l.Addr().(*net.TCPAddr))
		return err
	}))
	to, err := l.Accept()
	n.check(err)
	got = new(atomic.Int64)
	var ends sync.WaitGroup
	ends.Go(func() {
		b := make([]byte, 64<<10)
		for {
			if _, err := from.Write(b); err != nil {
				return
			}
		}
	})
	ends.Go(func() {
		b := make([]byte, 64<<10)
		for {
			size, err := to.Read(b)
			if got.Add(int64(size)); err != nil {
				return
			}
		}
	})
	return got, func() {
		for _, c := range []io.Closer{from, to, l} {
			_ = c.Close()
		}
		ends.Wait()
	}
}

// A link shares a real queue that drops with a flow of the kernel's TCP: neither one starves, and
// every byte is right.
func TestBesideTCP(t *testing.T) {
	t.Parallel()
	r := newProxyPair(t, options{})
	r.attach()
	_, dev := r.open()
	r.net.limit(boxEnd, 25e6, 250e3)
	r.transfer(dev, 2, func() {
		got, stop := r.net.sendTCP()
		defer stop()
		box := r.proxies[boxEnd]
		before, _ := box.report()
		const copies, bytes = 40, 8 << 20 // of 64 KiB in each direction; of TCP
		limit := time.NewTimer(2 * patience)
		defer limit.Stop()
		for {
			now, news := box.report()
			if now.Writes-before.Writes >= 50*copies && got.Load() >= bytes && r.net.dropped(boxEnd) > 0 {
				break
			}
			select {
			case <-news:
			case <-box.ended:
				t.Error("the box has ended")
				return
			case <-limit.C:
				t.Errorf("one starves: %d copies, %d KiB by TCP; %d packets were dropped", (now.Writes-before.Writes)/50, got.Load()>>10, r.net.dropped(boxEnd))
				return
			}
		}
		t.Logf("%d packets were dropped, %d KiB sent by TCP", r.net.dropped(boxEnd), got.Load()>>10)
	})
	r.retransmitted()
}

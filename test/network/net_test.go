package network

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// transfer copies both ways and writes numbers to a register, rounds times before
// and after it changes the network, and while it does. Every byte must be right,
// each write must arrive once and in order, and no call may fail.
func (r *proxyPair) transfer(dev *driver.Device, rounds int, change func()) {
	r.t.Helper()
	n := uint32(0)
	work := func() error {
		for range 50 {
			dev.Registers().Write32(reg.Scratch, n)
			n++
		}
		return copyBothWays(r.t.Context(), dev, 64<<10+5)
	}
	for range rounds {
		if err := work(); err != nil {
			r.t.Fatal(err)
		}
	}
	changed, result := make(chan struct{}), make(chan error, 1)
	go func() {
		var err error
		for left := rounds; left > 0 && err == nil; {
			select {
			case <-changed:
				left--
			default:
			}
			err = work()
		}
		result <- err
	}()
	change()
	close(changed)
	if err := <-result; err != nil {
		r.t.Fatal(err)
	}
	if v := dev.Registers().Read32(reg.Scratch); v != n-1 {
		r.t.Errorf("the last write left %d, want %d", v, n-1)
	}
	r.proxies[boxEnd].until("the posted writes to be counted", func(s report) bool { return s.Writes == uint64(n) && s.Wrong == 0 })
	if s, _ := r.proxies[hostEnd].report(); s.State != attached {
		r.t.Errorf("the binding is %v: %s", s.State, s.Detail)
	}
}

// retransmitted waits until an end reports that it sent datagrams again: the
// change of the network had an effect.
func (r *proxyPair) retransmitted() {
	r.t.Helper()
	box := r.proxies[boxEnd]
	r.proxies[hostEnd].until("a datagram to be sent again: did the change have an effect?", func(s report) bool {
		other, _ := box.report()
		return s.Retransmitted+other.Retransmitted > 0
	})
}

// One of two paths is cut during a transfer, which continues on the other.
func TestPathIsCut(t *testing.T) {
	for _, c := range []struct {
		name string
		cut  func(net network)
	}{
		{"interface down at the host", func(net network) { net.down(hostEnd) }},
		{"interface down at the box", func(net network) { net.down(boxEnd) }},
		{"one way, in silence", func(net network) { net.misdirect(boxEnd) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newProxyPair(t, options{paths: 2})
			r.attach()
			_, dev := r.open()
			r.transfer(dev, 15, func() { c.cut(r.net) })
			r.retransmitted()
		})
	}
}

// The MTU of the only path becomes smaller during a transfer, which continues
// with smaller packets.
func TestMTUDrops(t *testing.T) {
	for _, c := range []struct {
		name string
		end  int
	}{{"at the host", hostEnd}, {"at the box", boxEnd}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newProxyPair(t, options{})
			r.attach()
			_, dev := r.open()
			r.transfer(dev, 15, func() { r.net.setMTU(c.end, 1400) })
			r.retransmitted()
		})
	}
}

// A fault plan has the same effects on a real network as in virtual time.
func TestFaultPlan(t *testing.T) {
	r := newProxyPair(t, options{paths: 2, faults: []string{"loss=1%,dup=1%,reorder=1%,corrupt=1%", "loss=10%,delay=100us,jitter=50us,mtu=1400@200ms"}})
	r.attach()
	_, dev := r.open()
	r.transfer(dev, 6, func() {})
	r.retransmitted()
	r.proxies[boxEnd].until("damaged and duplicated datagrams to be refused", func(s report) bool { return s.Refused > 0 })
}

// copyUntilItFails copies both ways in the background and sends the error that ended it.
func copyUntilItFails(t *testing.T, dev *driver.Device) <-chan error {
	ended := make(chan error, 1)
	go func() {
		var err error
		for err == nil {
			err = copyBothWays(t.Context(), dev, 1<<20)
		}
		ended <- err
	}()
	dev.Registers().Read32(reg.ID)
	return ended
}

// removal is the promised limit between the death of a box and the removal of its
// GPU, as the user of the GPU sees it.
const removal = 2 * time.Second

// A box is killed during a transfer: the host continues, the user of the GPU sees
// its removal in time, and another GPU can be attached.
func TestBoxIsKilled(t *testing.T) {
	t.Run("VM", func(t *testing.T) {
		t.Parallel()
		r := newProxyPair(t, options{})
		r.attach()
		_, dev := r.removed(func() time.Duration {
			bus, dev := r.open()
			copying := copyUntilItFails(t, dev)
			r.proxies[boxEnd].kill()
			killed := time.Now()
			if v := dev.Registers().Read32(reg.Scratch); v != 0xffff_ffff {
				t.Errorf("a register of a dead box reads %#x", v)
			}
			<-bus.Lost()
			took := time.Since(killed)
			t.Logf("the copy ended: %v", <-copying)
			return took
		}).open()
		r.transfer(dev, 1, func() {})
	})
	t.Run("embedded host", func(t *testing.T) {
		t.Parallel()
		r := newProxyPair(t, options{kind: embeddedKind})
		r.attach()
		host := r.proxies[hostEnd]
		var copied uint64
		r.removed(func() time.Duration {
			before := copied
			host.until("something is copied", func(s report) bool { return s.Copied > before && s.Failure == "" })
			r.proxies[boxEnd].kill()
			killed := time.Now()
			s := host.until("the work has failed", func(s report) bool { return s.Failure != "" })
			copied = s.Copied
			t.Logf("the copy ended: %s", s.Failure)
			return time.Since(killed)
		})
		host.until("more is copied", func(now report) bool { return now.Copied > copied })
	})
}

// removed checks the time between the death of a box and the removal of its GPU,
// which kill returns, and attaches the GPU of a new box. On a machine whose
// processors are busy with other processes it repeats this until the time is
// within the limit.
func (r *proxyPair) removed(kill func() time.Duration) *proxyPair {
	r.t.Helper()
	limit := removal
	if raceEnabled { // everything takes longer
		limit *= 2
	}
	for deadline := time.Now().Add(patience); ; {
		took := kill()
		r.t.Logf("the removal was seen after %v", took)
		r.replaceBox()
		if took <= limit {
			return r
		}
		if time.Now().After(deadline) {
			r.t.Errorf("the removal was seen after %v, want %v", took, limit)
			return r
		}
	}
}

// replaceBox starts the box again and attaches its GPU.
func (r *proxyPair) replaceBox() {
	r.t.Helper()
	host := r.proxies[hostEnd]
	host.until("lost", func(s report) bool { return s.State == lost })
	r.restart(boxEnd)
	r.detach()
	r.attach()
}

// A host proxy is killed during a transfer and started again: the binding resumes
// or is lost at both ends, and the next binding works.
func TestHostIsKilled(t *testing.T) {
	r := newProxyPair(t, options{})
	r.attach()
	bus, dev := r.open()
	copying := copyUntilItFails(t, dev)
	r.proxies[hostEnd].kill()
	<-bus.Lost() // the VMM's connection is gone
	<-copying
	r.restart(hostEnd)
	r.apply()
	resumed := false
	r.proxies[boxEnd].until("the old session is lost or a new one attached", func(s report) bool {
		h, _ := r.proxies[hostEnd].report()
		resumed = h.State == attached
		return s.State == lost || resumed
	})
	t.Logf("resumed: %v", resumed)
	r.detach()
	r.attach()
	_, dev = r.open()
	r.transfer(dev, 1, func() {})
}

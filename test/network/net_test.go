package network

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// transfer copies both ways and writes numbers to a register, rounds times, and
// does something to the network in the middle of it. No error, every byte right,
// each write once and in order.
func (r *proxyPair) transfer(dev *driver.Device, rounds int, during func()) {
	r.t.Helper()
	n := uint32(0)
	work := func(rounds int) error {
		for range rounds {
			for range 50 {
				dev.Registers().Write32(reg.Scratch, n)
				n++
			}
			if err := copyBothWays(r.t.Context(), dev, 64<<10+5); err != nil {
				return err
			}
		}
		return nil
	}
	if err := work(rounds / 3); err != nil {
		r.t.Fatal(err)
	}
	rest := make(chan error, 1)
	go func() { rest <- work(rounds - rounds/3) }()
	during()
	if err := <-rest; err != nil {
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

// suffered waits until an end says that what was done to the network was felt:
// datagrams were sent again.
func (r *proxyPair) suffered() {
	r.t.Helper()
	box := r.proxies[boxEnd]
	r.proxies[hostEnd].until("a datagram to be sent again: has the test tested nothing?", func(s report) bool {
		other, _ := box.report()
		return s.Again+other.Again > 0
	})
}

// One of two paths is cut in mid-transfer: nobody notices.
func TestPathIsCut(t *testing.T) {
	for _, c := range []struct {
		name string
		cut  func(net network)
	}{
		{"interface down at the host", func(net network) { net[hostEnd].ip("link set p0 down") }},
		{"interface down at the box", func(net network) { net[boxEnd].ip("link set p0 down") }},
		// The box sends its frames to a station that is not there: the interfaces
		// are up, and nothing comes from the box any more.
		{"one way, in silence", func(net network) {
			net[boxEnd].ip("neigh replace %s lladdr 02:00:00:00:00:99 nud permanent dev p0", address(hostEnd, 0))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newProxyPair(t, options{paths: 2})
			r.attach()
			_, dev := r.open()
			r.transfer(dev, 30, func() { c.cut(r.net) })
			r.suffered()
		})
	}
}

// The only path takes smaller packets from one moment on: the transfer goes on
// with smaller ones.
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
			r.transfer(dev, 30, func() { r.net[c.end].ip("link set p0 mtu 1400") })
			r.suffered()
		})
	}
}

// A fault plan does on a real network what it does in virtual time.
func TestFaultPlan(t *testing.T) {
	r := newProxyPair(t, options{paths: 2, faults: []string{"loss=1%,dup=1%,reorder=1%,corrupt=1%", "loss=10%,delay=100us,jitter=50us,mtu=1400@200ms"}})
	r.attach()
	_, dev := r.open()
	r.transfer(dev, 12, func() {})
	r.suffered()
	r.proxies[boxEnd].until("damaged and doubled datagrams to be refused", func(s report) bool { return s.Refused > 0 })
}

// copyUntilItFails copies both ways in the background and tells how that ended.
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

// removal is what is promised: whoever uses a GPU sees that it is gone within so long.
const removal = 2 * time.Second

// A box is killed in mid-transfer: the host goes on, whoever uses the GPU sees
// its removal in time, and the next GPU can come.
func TestBoxIsKilled(t *testing.T) {
	t.Run("VM", func(t *testing.T) {
		t.Parallel()
		r := newProxyPair(t, options{})
		r.attach()
		bus, dev := r.open()
		copying := copyUntilItFails(t, dev)
		r.proxies[boxEnd].kill()
		killed := time.Now()
		if v := dev.Registers().Read32(reg.Scratch); v != 0xffff_ffff {
			t.Errorf("a register of a dead box reads %#x", v)
		}
		<-bus.Lost()
		r.seen(killed)
		t.Logf("the copy ended: %v", <-copying)
		r.again()
		_, dev = r.open()
		r.transfer(dev, 3, func() {})
	})
	t.Run("embedded host", func(t *testing.T) {
		t.Parallel()
		r := newProxyPair(t, options{kind: embeddedKind})
		r.attach()
		host := r.proxies[hostEnd]
		host.until("something is copied", func(s report) bool { return s.Copied > 0 })
		r.proxies[boxEnd].kill()
		killed := time.Now()
		s := host.until("the work has failed", func(s report) bool { return s.Failure != "" })
		r.seen(killed)
		t.Logf("the copy ended: %s", s.Failure)
		r.again()
		host.until("more is copied", func(now report) bool { return now.Copied > s.Copied })
	})
}

func (r *proxyPair) seen(killed time.Time) {
	r.t.Helper()
	took, limit := time.Since(killed), removal
	if raceEnabled { // everything takes longer
		limit *= 2
	}
	r.t.Logf("the removal was seen after %v", took)
	if took > limit {
		r.t.Errorf("want %v", limit)
	}
}

// again starts the box anew and attaches its GPU.
func (r *proxyPair) again() {
	r.t.Helper()
	host := r.proxies[hostEnd]
	host.until("lost", func(s report) bool { return s.State == lost })
	r.restart(boxEnd)
	r.detach()
	r.attach()
}

// A host proxy is killed in mid-transfer and started again: the binding is
// taken up again or is lost at both ends, and the next one works.
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
	r.transfer(dev, 3, func() {})
}

package vm_test

import (
	"flag"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

var (
	rounds = flag.Int("rounds", 1, "rounds of each fault in TestFaults")
	limit  = flag.Duration("limit", 0, "time after which a fault in TestFaults gets no further round; 0: no limit")
)

// TestFaults kills each party under a program of the guest that reads a register without
// end. The guest must get a GPU back each time, and QEMU's monitor must answer.
func TestFaults(t *testing.T) {
	g := boot(t, qemu.Spec{IOMMU: true})
	control := monitorOfNothing(t, g)
	for _, c := range []struct {
		name string
		test func(t *testing.T, g *guest) underFault
	}{
		{"the box is killed", faultBox},
		{"the host proxy is killed", faultHost},
		{"the manager is killed", faultManager},
		{"the network is cut", faultNetwork},
		{"QEMU is killed", faultQEMU},
	} {
		over := false
		t.Run(c.name, func(t *testing.T) {
			f := c.test(t, g)
			began := time.Now()
			var all answers
			n := 0
			for n < *rounds && (n == 0 || *limit == 0 || time.Since(began) < *limit) {
				watched := g.watch(t, control, f.proxy)
				f.round()
				these := watched()
				all = all.and(these)
				if n++; these.late > 0 || n%10 == 0 {
					t.Logf("round %d: the monitor %v; in all rounds %v", n, these, all)
				}
			}
			f.end()
			over = true
			g.healthy(t)
			seen(t, "%d rounds of %v, the monitor %v", n, (time.Since(began) / time.Duration(n)).Round(100*time.Millisecond), all)
			all.check(t)
		})
		if t.Failed() {
			g.tell(t)
		}
		if t.Failed() && !over { // the slots may not be empty
			t.FailNow()
		}
	}
}

// underFault is a pool in which a fault happens again and again.
type underFault struct {
	round func()
	end   func()
	proxy func() *beside // the host proxy
}

// seen reports a result in the log and in the table of docs/conformance.md.
func seen(t *testing.T, format string, args ...any) {
	t.Helper()
	text := fmt.Sprintf(format, args...)
	t.Log(text)
	t.Attr("seen", text)
}

// readRegister starts a program that reads a register of the GPU in slot 0 without end.
func (g *guest) readRegister(t *testing.T) (address string, reading *job) {
	t.Helper()
	address = g.plugged(t, 0)
	reading = g.start(t, "%s poll %s", helper, address)
	reading.says(t, "0x")
	return address, reading
}

// lose waits until a device and its reader have gone after a fault.
func (g *guest) lose(t *testing.T, address string, reading *job, fault func()) {
	t.Helper()
	gone := g.leaves(t, address)
	fault()
	gone.wait(t)
	reading.wait(t)
}

func faultBox(t *testing.T, g *guest) underFault {
	c, host, box := newCluster(t, g)
	round := func() {
		address, reading := g.readRegister(t)
		g.lose(t, address, reading, func() { c.kill(box) })
		box = c.runBox()
		g.sh(t, "%s use %s", helper, g.plugged(t, 0))
	}
	return underFault{round, c.end, host.beside}
}

// newCluster starts a manager, a box and a host, and leases the GPU.
func newCluster(t *testing.T, g *guest) (c *cluster, host, box *process) {
	t.Helper()
	c = &cluster{t: t, g: g}
	c.startManager()
	box, host = c.runBox(), c.runHost(newFDStore(t, g.dir))
	c.says("host +connected", "get", "hosts")
	c.dxpu("lease", "create", "--host", "host", "--wait", "--queue")
	return c, host, box
}

// end ends the only lease.
func (c *cluster) end() {
	c.t.Helper()
	address := c.g.plugged(c.t, 0)
	c.dxpu("lease", "delete", c.lease(), "--wait")
	c.g.unplugged(c.t, address)
}

// faultHost kills the host proxy, whose connections a service manager keeps.
func faultHost(t *testing.T, g *guest) underFault {
	c := &cluster{t: t, g: g}
	c.startManager()
	c.runBox()
	store := newFDStore(t, g.dir)
	host := c.runHost(store)
	var proxy atomic.Pointer[beside]
	proxy.Store(host.beside())
	c.says("host +connected", "get", "hosts")
	c.dxpu("lease", "create", "--host", "host", "--wait", "--queue")
	round := func() {
		address, reading := g.readRegister(t)
		g.lose(t, address, reading, func() { // the proxy asks for the device of the killed one
			killed := time.Now()
			c.kill(host)
			host = c.runHost(store)
			proxy.Store(&beside{host.cmd.Process.Pid, killed, time.Now()})
		})
		g.sh(t, "%s use %s", helper, g.plugged(t, 0))
	}
	return underFault{round: round, proxy: proxy.Load, end: func() {
		c.end()
		store.mu.Lock()
		defer store.mu.Unlock()
		if len(store.files) != 0 {
			t.Errorf("%q are still stored", store.names)
		}
	}}
}

// faultManager kills the manager: the guest must not notice.
func faultManager(t *testing.T, g *guest) underFault {
	c, host, _ := newCluster(t, g)
	_, reading := g.readRegister(t)
	round := func() {
		c.kill(c.manager)
		c.startManager()
		c.says("host +connected", "get", "hosts")
		c.says("attached", "get", "leases")
	}
	return underFault{round: round, proxy: host.beside, end: func() {
		if lines := strings.Count(reading.out.String(), "\n"); lines != 1 {
			t.Errorf("the guest noticed:\n%s", reading.out.String())
		}
		c.end()
		reading.wait(t)
	}}
}

// faultNetwork cuts the network until the device is lost.
func faultNetwork(t *testing.T, g *guest) underFault {
	p := newPool(t, g, poolConfig{})
	round := func() {
		p.attach(t, 0, 0)
		address, reading := g.readRegister(t)
		g.lose(t, address, reading, func() { p.wire.cut.Store(true) })
		p.await(t, 0, dxpuv1.BindingState_BINDING_STATE_LOST)
		p.wire.cut.Store(false)
		p.detach(t, 0)
		g.works(t, p, 0, 0)
	}
	return underFault{round, func() {}, inside}
}

// faultQEMU kills the VMM and starts it again, with the same sockets.
func faultQEMU(t *testing.T, g *guest) underFault {
	p := newPool(t, g, poolConfig{})
	p.attach(t, 0, 0)
	round := func() {
		g.readRegister(t)
		if err := g.Close(); err != nil {
			t.Fatal(err)
		}
		g.powerOn(t)
		g.sh(t, "%s use %s", helper, g.plugged(t, 0))
	}
	return underFault{round, func() { p.detach(t, 0) }, inside}
}

package hostproxy_test

import (
	"errors"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
)

const (
	attached = dxpuv1.BindingState_BINDING_STATE_ATTACHED
	lost     = dxpuv1.BindingState_BINDING_STATE_LOST
)

// newWatched makes a cluster whose first GPU is watched by a spy.
func newWatched(t *testing.T, o options) (*cluster, *spy) {
	t.Helper()
	var first *spy
	o.wrap = func(d device.Device) device.Device {
		s := newSpy(d)
		if first == nil {
			first = s.(*spy)
		}
		return s
	}
	return newCluster(t, o), first
}

func faulty(text string) netio.PathConfig {
	plan, err := fault.Parse(text)
	if err != nil {
		panic("hostproxy_test: " + err.Error())
	}
	return netio.PathConfig{Fault: plan}
}

// On a path that loses, doubles, reorders and damages datagrams every byte of
// DMA is right, and every posted write comes once and in order.
func TestBadNetwork(t *testing.T) {
	const bad = "loss=1%,dup=1%,reorder=1%,corrupt=1%"
	for _, c := range []struct {
		name   string
		cipher dxpuv1.Cipher
		paths  []netio.PathConfig
		inside bool
	}{
		{"sealed", dxpuv1.Cipher_CIPHER_AES_256_GCM, []netio.PathConfig{faulty(bad)}, false},
		{"clear", dxpuv1.Cipher_CIPHER_NONE, []netio.PathConfig{faulty(bad)}, false},
		{"embedded", dxpuv1.Cipher_CIPHER_AES_256_GCM, []netio.PathConfig{faulty(bad)}, true},
		{"two bad paths", dxpuv1.Cipher_CIPHER_AES_256_GCM, []netio.PathConfig{faulty(bad), faulty(bad)}, false},
		{"ten percent", dxpuv1.Cipher_CIPHER_AES_256_GCM, []netio.PathConfig{faulty("loss=10%,dup=10%,reorder=10%,corrupt=10%")}, false},
		{"delay", dxpuv1.Cipher_CIPHER_AES_256_GCM, []netio.PathConfig{faulty("loss=1%,delay=200us,jitter=100us")}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, spy := newWatched(t, options{cipher: c.cipher, paths: c.paths, inside: c.inside})
			r.attach(0, 0, 0, 0)
			bus, dev := r.open1(0, 0)
			const writes = 5000
			var wg sync.WaitGroup
			wg.Go(func() {
				for i := range uint32(writes) {
					dev.Registers().Write32(scratch, i)
				}
			})
			copyBothWays(t, dev, 1<<20+17)
			wg.Wait()
			if v := dev.Registers().Read32(scratch); v != writes-1 {
				t.Errorf("the last write left %d", v)
			}
			if n, wrong := spy.writes.Load(), spy.wrong.Load(); n != writes || wrong != 0 {
				t.Errorf("%d writes came, %d of them out of order; want %d", n, wrong, writes)
			}
			if !raceEnabled && c.name != "delay" {
				selfTest(t, dev, driver.SelfTestOptions{Quick: true})
			}
			closeBoth(t, bus, dev)
		})
	}
}

// One of two paths is cut in mid-transfer, without an effect on the transfer.
func TestOneOfTwoPathsFails(t *testing.T) {
	for _, c := range []struct{ name, plan string }{
		{"for good", "partition=300ms-1h"},
		{"for a while", "partition=300ms-900ms"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, spy := newWatched(t, options{paths: []netio.PathConfig{faulty(c.plan), {}}})
			b := r.attach(0, 0, 0, 0)
			bus, dev := r.open1(0, 0)
			n := uint32(0)
			for end := time.Now().Add(1200 * time.Millisecond); time.Now().Before(end); {
				for range 50 {
					dev.Registers().Write32(scratch, n)
					n++
				}
				copyBothWays(t, dev, 64<<10+5)
			}
			check(t, dev.Flush())
			if writes, wrong := spy.writes.Load(), spy.wrong.Load(); writes != uint64(n) || wrong != 0 {
				t.Errorf("%d writes came, %d of them out of order; want %d", writes, wrong, n)
			}
			if s := r.atHost(b); s.GetState() != attached {
				t.Errorf("the binding is %v: %s", s.GetState(), s.GetDetail())
			}
			closeBoth(t, bus, dev)
		})
	}
}

// A box that dies in mid-transfer: the host goes on, accesses end with all
// ones, the loss is reported within two seconds, and another GPU can come.
func TestBoxKilled(t *testing.T) {
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			r := newCluster(t, options{boxes: 2, inside: c.inside})
			b := r.attach(0, 0, 0, 0)
			bus, dev := r.open1(0, 0)
			s, err := dev.NewStream()
			if err != nil {
				t.Fatal(err)
			}
			m, err := dev.AllocDMA(8 << 20)
			if err != nil {
				t.Fatal(err)
			}
			check(t, s.CopyToDevice(t.Context(), 0, m, 0, 8<<20))
			started := time.Now()
			r.boxes[0].kill()
			if v := dev.Registers().Read32(scratch); v != 0xffff_ffff {
				t.Errorf("a register of a dead box reads %#x", v)
			}
			r.await(b, lost)
			took := time.Since(started)
			if limit := loaded(2 * time.Second); took > limit {
				t.Errorf("lost after %v, want at most %v", took, limit)
			}
			if err := s.Sync(t.Context()); err == nil {
				t.Error("a copy ended without its device")
			}
			select {
			case <-bus.Lost():
			case <-time.After(patience):
				t.Error("the driver is not told")
			}
			closeQuietly(bus, dev)

			r.boxes[0] = r.newBox(0, nil) // the dead one gets no more updates
			b.boxGone = true
			r.detach(b)
			r.attach(0, 0, 1, 0)
			bus, dev = r.open1(0, 0)
			copyBothWays(t, dev, 100<<10)
			closeBoth(t, bus, dev)
		})
	}
}

// A box that falls silent is noticed although a stranger's datagrams keep the socket of the host
// from being empty for long: its links must not take the silence for datagrams that wait there.
func TestSilentBoxInATrickle(t *testing.T) {
	r := newCluster(t, options{})
	b := r.attach(0, 0, 0, 0)
	bus, dev := r.open1(0, 0)
	stranger, err := net.Dial("udp", r.hosts[0].addrs[0])
	check(t, err)
	defer stranger.Close()
	quit := make(chan struct{})
	var trickle sync.WaitGroup
	trickle.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = stranger.Write([]byte{0})
			case <-quit:
				return
			}
		}
	})
	defer trickle.Wait()
	defer close(quit)
	cut := fault.Plan{Partitions: []fault.Window{{To: time.Hour}}}
	check(t, r.hosts[0].fab.SetFault(0, cut, 1)) // or a closed port could refuse its datagrams
	check(t, r.boxes[0].fab.SetFault(0, cut, 1))
	began := time.Now()
	r.await(b, lost)
	t.Logf("lost after %v", time.Since(began))
	if v := dev.Registers().Read32(scratch); v != 0xffff_ffff {
		t.Errorf("a register of a silent box reads %#x", v)
	}
	closeQuietly(bus, dev)
}

// loaded is what a limit becomes where everything takes longer.
func loaded(d time.Duration) time.Duration {
	if raceEnabled {
		return 2 * d
	}
	return d
}

// closeQuietly closes what is lost already.
func closeQuietly(bus driver.Bus, dev *driver.Device) {
	_ = dev.Close()
	_ = bus.Close()
}

// A GPU that falls off the bus is lost at once, with the reason, and the box
// reports it as failed.
func TestGPUKilled(t *testing.T) {
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			r, spy := newWatched(t, options{gpus: 2, inside: c.inside})
			b := r.attach(0, 0, 0, 0)
			bus, dev := r.open1(0, 0)
			started := time.Now()
			check(t, r.boxes[0].With(t.Context(), 0, func(device.Device) { spy.Inject(gpu.Kill) }))
			r.await(b, lost)
			if took, limit := time.Since(started), loaded(time.Second); took > limit {
				t.Errorf("lost after %v, want at most %v", took, limit)
			}
			if have := r.atHost(b); !strings.Contains(have.GetDetail(), "device lost") {
				t.Errorf("the host says %q", have.GetDetail())
			}
			r.until("the box reports the GPU as failed", func() bool {
				slot := r.boxes[0].Observe().Slots[0]
				return slot.Health == dxpuv1.Health_HEALTH_FAILED && strings.Contains(slot.HealthDetail, "fallen off the bus")
			})
			closeQuietly(bus, dev)
			r.detach(b)
			r.attach(0, 0, 0, 1) // the spare takes its place
			bus, dev = r.open1(0, 0)
			copyBothWays(t, dev, 100<<10)
			closeBoth(t, bus, dev)

			refused := r.bind(0, 1, 0, 0)
			r.until("the box refuses to bind a dead GPU", func() bool {
				return r.atBox(refused).GetState() == dxpuv1.BindingState_BINDING_STATE_FAILED
			})
			r.drop(refused)
		})
	}
}

// A host proxy that is killed and started again has a new session: the box
// gives up the old one cleanly, and the next epoch works.
func TestHostRestarted(t *testing.T) {
	r := newCluster(t, options{})
	b := r.attach(0, 0, 0, 0)
	bus, dev := r.open1(0, 0)
	copyBothWays(t, dev, 10000)
	addrs := r.hosts[0].addrs
	r.hosts[0].kill()
	closeQuietly(bus, dev)
	r.hosts[0] = r.newHost(0, addrs)
	r.apply()
	r.until("the old session is lost or the new one attached", func() bool {
		return r.atBox(b).GetState() == lost || r.atHost(b).GetState() == attached
	})
	r.detach(b)
	r.attach(0, 0, 0, 0)
	bus, dev = r.open1(0, 0)
	copyBothWays(t, dev, 10000)
	closeBoth(t, bus, dev)
}

// Datagrams of a host whose binding has been given to another are refused and
// counted: the epoch is the fence.
func TestStaleEpochIsRefused(t *testing.T) {
	for _, c := range []struct {
		name   string
		cipher dxpuv1.Cipher
		metric string
		labels []string
	}{
		{"sealed", dxpuv1.Cipher_CIPHER_AES_256_GCM, "stranger_datagrams_total", nil},
		{"clear", dxpuv1.Cipher_CIPHER_NONE, "stranger_datagrams_total", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newCluster(t, options{hosts: 2, cipher: c.cipher})
			old := r.attach(0, 0, 0, 0)
			bus, dev := r.open1(0, 0)

			// The box is killed, started again and bound to another host, while
			// the first one still believes that the GPU is its own.
			addrs := r.boxes[0].addrs
			r.boxes[0].kill()
			r.boxes[0] = r.newBox(0, addrs)
			old.boxGone = true
			var writing sync.WaitGroup
			stop := make(chan struct{})
			writing.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						dev.Registers().Write32(scratch, 0xbad)
					}
				}
			})
			b := r.attach(1, 0, 0, 0)
			bus2, dev2 := r.open1(1, 0)
			r.until("datagrams of the old host to be refused", func() bool {
				return metric(t, r.boxes[0], c.metric, c.labels...) > 0
			})
			r.await(old, lost)
			close(stop)
			writing.Wait()
			if v := dev2.Registers().Read32(scratch); v != 0 {
				t.Errorf("the old host has written %#x to the device of the new one", v)
			}
			copyBothWays(t, dev2, 10000)
			if s := r.atHost(b); s.GetState() != attached {
				t.Errorf("the new binding is %v: %s", s.GetState(), s.GetDetail())
			}
			closeQuietly(bus, dev)
			closeBoth(t, bus2, dev2)
		})
	}
}

// A driver that opens a device which a VM has lost fails at once: the configuration space
// still answers, with the values after a reset, and memory is all ones.
func TestOpenLost(t *testing.T) {
	r := newCluster(t, options{})
	b := r.attach(0, 0, 0, 0)
	bus := r.bus(0, 0, vfiouserbus.Options{})
	r.boxes[0].kill()
	r.await(b, lost)
	if _, err := driver.Open(t.Context(), bus, driver.Options{}); !errors.Is(err, driver.ErrDeviceLost) {
		t.Errorf("open: %v, want %v", err, driver.ErrDeviceLost)
	}
	check(t, bus.Close())
}

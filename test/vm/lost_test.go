package vm_test

import (
	"strings"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// removal is the promised limit of the time until a guest sees that its GPU is gone.
const removal = 2 * time.Second

// loses removes the GPU while a program of the guest copies: the program must end
// with an error, and the device must disappear from the guest.
func (g *guest) loses(t *testing.T, address, options string, take func()) {
	t.Helper()
	gone := g.leaves(t, address)
	copying := g.start(t, program+" gpu test %s --pci %s", options, address)
	copying.says(t, "registers") // the next check copies 60 MB
	take()
	at := time.Now()
	if exit := copying.wait(t); exit == 0 || exit > 128 {
		t.Errorf("the program ended with status %d\n%s", exit, copying.out.String())
	}
	knows := time.Since(at)
	gone.wait(t)
	took := time.Since(at)
	t.Logf("the program ended after %v, the device was gone after %v: %s",
		knows.Round(time.Millisecond), took.Round(time.Millisecond), tail(strings.TrimSpace(copying.out.String()), 1))
	if thorough() && took > removal {
		t.Errorf("the guest saw the removal after %v, want %v", took, removal)
	}
}

// works attaches a GPU and uses it.
func (g *guest) works(t *testing.T, p *pool, hostSlot, boxSlot int) {
	t.Helper()
	p.attach(t, hostSlot, boxSlot)
	g.sh(t, "%s use %s", helper, g.plugged(t, hostSlot))
	p.detach(t, hostSlot)
}

func testBoxDies(t *testing.T, g *guest, p *pool) {
	p.attach(t, 0, 0)
	address := g.plugged(t, 0)
	g.loses(t, address, "--bind", func() { p.wire.cut.Store(true) })
	p.await(t, 0, dxpuv1.BindingState_BINDING_STATE_LOST)
	p.wire.cut.Store(false) // another box
	p.detach(t, 0)
	g.works(t, p, 0, 1)
}

func testGPUDies(t *testing.T, g *guest, p *pool) {
	p.attach(t, 0, 0)
	p.attach(t, 1, 1)
	address, other := g.plugged(t, 0), g.plugged(t, 1)
	g.loses(t, address, "--bind", func() { p.kill(t, 0) })
	p.await(t, 0, dxpuv1.BindingState_BINDING_STATE_LOST)
	g.sh(t, "%s use %s", helper, other) // the other device still works
	p.detach(t, 0)
	p.detach(t, 1)
	g.works(t, p, 0, 2)
}

// A stopped program does not release its device, and loses it nevertheless. The slot
// can be used again after the guest has released the device.
func testStuckProgram(t *testing.T, g *guest, p *pool) {
	p.attach(t, 0, 0)
	address := g.plugged(t, 0)
	holder := g.start(t, "echo $$; exec %s hold %s", helper, address)
	holder.says(t, "held")
	pid, _, _ := strings.Cut(holder.out.String(), "\n")
	g.sh(t, "kill -STOP %s", pid)
	p.wire.cut.Store(true)
	p.await(t, 0, dxpuv1.BindingState_BINDING_STATE_LOST)
	p.wire.cut.Store(false)
	p.detach(t, 0)
	g.sh(t, "(sleep 1; kill -CONT %s) >/dev/null 2>&1 &", pid)
	p.attach(t, 0, 1) // waits for the slot
	holder.wait(t)
	g.sh(t, "%s use %s", helper, g.plugged(t, 0))
	p.detach(t, 0)
}

// A stopped program keeps the guest from releasing a device: the host proxy reports
// that and waits, and the detach ends as soon as the guest releases the device.
func testHeld(t *testing.T, g *guest, p *pool) {
	p.attach(t, 0, 0)
	address := g.plugged(t, 0)
	holder := g.start(t, "echo $$; exec %s hold %s", helper, address)
	holder.says(t, "held")
	p.awaitThat(t, 0, "in use", func(b *dxpuv1.ObservedBinding) bool { return b.GetUse() > dxpuv1.Use_USE_IDLE })
	pid, _, _ := strings.Cut(holder.out.String(), "\n")
	g.sh(t, "kill -STOP %s", pid)
	delete(p.bindings, 0)
	_, host := p.desired()
	p.host.Apply(host)
	p.awaitThat(t, 0, "the guest holds the device", func(b *dxpuv1.ObservedBinding) bool {
		return b.GetState() == dxpuv1.BindingState_BINDING_STATE_DETACHING && strings.Contains(b.GetDetail(), "the guest still holds the device")
	})
	t.Log(p.host.Observe().Slots[0].Binding.GetDetail())
	p.attach(t, 1, 1) // the other slot does not wait; Linux plugs and unplugs one device after the other
	g.sh(t, "kill -CONT %s", pid)
	p.await(t, 0, dxpuv1.BindingState_BINDING_STATE_UNSPECIFIED)
	if r := p.host.Observe().Slots[0].Removal; r.GetForced() {
		t.Errorf("removed by force: %s", r.Detail)
	}
	holder.wait(t)
	g.sh(t, "%s use %s", helper, g.plugged(t, 1))
	p.detach(t, 1)
}

// The guest removes its device itself, and gets it back when the manager asks for a
// replug.
func testEject(t *testing.T, g *guest, p *pool) {
	p.attach(t, 0, 0)
	address := g.plugged(t, 0)
	g.sh(t, "%s use %s", helper, address)
	g.sh(t, `for s in /sys/bus/pci/slots/*; do
		case %s in $(cat $s/address).*) echo 0 >$s/power; exit;; esac
	done; exit 1`, address)
	g.unplugged(t, address)
	p.awaitThat(t, 0, "ejected", (*dxpuv1.ObservedBinding).GetEjected)
	p.await(t, 0, dxpuv1.BindingState_BINDING_STATE_ATTACHED)
	p.replug(t, 0)
	g.sh(t, "%s use %s", helper, g.plugged(t, 0))
	p.detach(t, 0)
}

// A host proxy that ends removes its devices from the guest, also one in use by a
// program.
func testRestart(t *testing.T, g *guest) {
	var address string
	var holder *job
	began := time.Now()
	t.Run("the first", func(t *testing.T) {
		p := newPool(t, g, poolConfig{})
		p.attach(t, 0, 0)
		address = g.plugged(t, 0)
		holder = g.start(t, "%s hold %s", helper, address)
		holder.says(t, "held")
		began = time.Now()
	})
	g.unplugged(t, address)
	t.Logf("gone %v after the signal to the proxy", time.Since(began).Round(time.Millisecond))
	g.works(t, newPool(t, g, poolConfig{}), 0, 1)
}

// The box does not answer for longer than a Completion Timeout but for less
// than makes a link be given up: reads give all ones, and then all is well.
func testMoment(t *testing.T, g *guest, p *pool) {
	p.attach(t, 0, 0)
	address := g.plugged(t, 0)
	poll := g.start(t, "%s poll %s", helper, address)
	poll.says(t, "0x")
	p.awaitThat(t, 0, "counters", func(b *dxpuv1.ObservedBinding) bool { return b.GetCounters() != nil })
	before := p.host.Observe().Slots[0].Binding.GetCounters().GetCompletionTimeouts()
	p.wire.cut.Store(true)
	// The host notices first: on a busy machine the guest reports too late for the link.
	p.awaitThat(t, 0, "a Completion Timeout", func(b *dxpuv1.ObservedBinding) bool {
		return b.GetCounters().GetCompletionTimeouts() > before
	})
	p.wire.cut.Store(false)
	poll.says(t, "0xffffffff after")
	g.sh(t, "usleep 100000")
	t.Log(poll.out.String())
	if now := p.host.Observe().Slots[0].Binding.GetState(); now != dxpuv1.BindingState_BINDING_STATE_ATTACHED {
		t.Errorf("binding is %v", now)
	}
	p.detach(t, 0) // the program is asked to let go
	poll.wait(t)
	g.works(t, p, 0, 0)
}

// The network is cut for three seconds, and for half a minute: the device is taken away,
// and comes back as if it were new. QEMU's monitor answers meanwhile.
func testSilence(t *testing.T, g *guest, p *pool) {
	cuts := []time.Duration{3 * time.Second}
	if thorough() {
		cuts = append(cuts, 30*time.Second)
	}
	control := monitorOfNothing(t, g)
	for _, cut := range cuts {
		watched := g.watch(t, control, inside)
		p.attach(t, 0, 0)
		poll := g.start(t, "%s poll %s", helper, g.plugged(t, 0))
		poll.says(t, "0x")
		p.wire.cut.Store(true)
		at := time.Now()
		poll.says(t, "0xffffffff after")
		ones := time.Since(at)
		<-time.After(cut - ones)
		p.wire.cut.Store(false)
		poll.wait(t)
		p.await(t, 0, dxpuv1.BindingState_BINDING_STATE_LOST)
		p.detach(t, 0)
		g.works(t, p, 0, 0)
		all := watched()
		seen(t, "%v: ones after %v, the monitor %v", cut, ones.Round(time.Millisecond), all)
		all.check(t)
	}
}

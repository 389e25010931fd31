package sim

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/fault"
	"github.com/dxpu-project/dxpu/internal/agent/agenttest"
	"github.com/dxpu-project/dxpu/internal/boxproxy"
	"github.com/dxpu-project/dxpu/internal/embedded"
	"github.com/dxpu-project/dxpu/internal/embedded/rootcomplex"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
)

// boxMixers is the number of devices in a box; some are spare.
const boxMixers = 3

// ordering is a host with mixers in two boxes.
type ordering struct {
	*World
	seed    uint64
	host    *hostproxy.Proxy
	front   *hostproxy.Embedded
	boxes   [2]*boxproxy.Box
	nodes   [3]*Node
	devices [2 * boxMixers]*mixer
	mixers  [mixers]*mixer // those with a mind
	at      [mixers]int    // which device each is
	next    [mixers]*move  // migrations
	buses   [mixers]*embedded.Bus
	memory  driver.DMA
	targets [mixers][]*target  // of each mixer: host memory, and the other mixers
	tallies [mixers + 1]*tally // of the mixers, and of host memory
	wanted  [mixers]uint64     // epoch; 0: none
	epoch   uint64
	version uint64
	steady  bool // nothing may fail
	err     string
}

func (t *ordering) fail(format string, args ...any) {
	if t.err == "" {
		t.err = fmt.Sprintf("at %v: ", t.Now()) + fmt.Sprintf(format, args...)
	}
}

func newOrdering(seed uint64, plan fault.Plan, paths int) (*ordering, error) {
	t := &ordering{World: NewWorld(seed), seed: seed}
	for i := range t.devices {
		t.devices[i] = newMixer(t, i)
	}
	t.at = [mixers]int{0, 1, boxMixers} // two in one box
	for i, dev := range t.at {
		t.mixers[i] = t.devices[dev]
		t.mixers[i].mind = newMind(i, rand.New(rand.NewPCG(seed, uint64(i))))
	}
	for i := range t.nodes {
		var up []Path
		for p := range paths {
			up = append(up, Path{Addr: address(i+1, p), Plan: plan})
		}
		n, err := t.NewNode(up, nil)
		if err != nil {
			return nil, err
		}
		t.nodes[i] = n
	}
	log := slog.New(slog.DiscardHandler)
	var err error
	for i, devices := range [][]*mixer{t.devices[:boxMixers], t.devices[boxMixers:]} {
		var slots []boxproxy.Slot
		for _, m := range devices {
			slots = append(slots, boxproxy.Slot{Device: m})
		}
		if t.boxes[i], err = boxproxy.New(boxproxy.Config{Slots: slots, Fabric: t.nodes[1+i], Logger: log}); err != nil {
			return nil, err
		}
		start(t.nodes[1+i], t.boxes[i].Controllers())
	}
	enum := rootcomplex.DefaultEnumSpec()
	enum.MaxPayload, enum.TenBitTags = 256, true
	t.front = hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{Memory: 1 << 20, Enum: &enum})
	if t.host, err = hostproxy.New(hostproxy.Config{Slots: mixers, Front: t.front, Fabric: t.nodes[0], Domain: "host/0", Logger: log}); err != nil {
		return nil, err
	}
	start(t.nodes[0], t.host.Controllers())
	for j := range t.tallies {
		t.tallies[j] = &tally{}
		for k := range counters {
			t.tallies[j].seen[k] = map[uint64]bool{}
		}
		for i := range t.targets {
			if i != j {
				t.targets[i] = append(t.targets[i], &target{name: memoryName(j), tally: t.tallies[j]})
			}
		}
	}
	return t, nil
}

// memoryName names a memory by its number, which is that of its mixer.
func memoryName(i int) string {
	if i == mixers {
		return "host memory"
	}
	return fmt.Sprint("mixer ", i)
}

// bytes returns a memory.
func (t *ordering) bytes(i int) []byte {
	if i == mixers {
		return t.memory.Bytes()
	}
	return t.mixers[i].mem[:]
}

// apply tells the proxies what is wanted.
func (t *ordering) apply() {
	var all []agenttest.Binding
	for i, epoch := range t.wanted {
		if epoch > 0 {
			all = append(all, t.binding(i))
		}
	}
	t.version++
	t.host.Apply(agenttest.Desired(1, t.version, all...))
	for i, b := range t.boxes {
		b.Apply(agenttest.Desired(uint32(2+i), t.version, all...))
	}
}

// attach gives the host a mixer, and opens it.
func (t *ordering) attach(tb *testing.T, i int) {
	t.epoch++
	t.wanted[i] = t.epoch
	t.apply()
	var have *dxpuv1.ObservedBinding
	if !t.RunUntil(t.Now()+time.Minute, func() bool {
		have = t.host.Observe().Slots[i].Binding
		return have.GetState() == dxpuv1.BindingState_BINDING_STATE_ATTACHED && have.GetBindingId() == fmt.Sprint("b", t.epoch)
	}) {
		tb.Fatalf("mixer %d is not attached: %v %s", i, have.GetState(), have.GetDetail())
	}
	var err error
	if t.buses[i], err = t.front.Open(i); err != nil {
		tb.Fatal(err)
	}
	if t.memory == nil {
		if t.memory, err = t.buses[i].AllocDMA(mixerBAR); err != nil {
			tb.Fatal(err)
		}
		t.place(mixers, t.memory.Segments()[0].Addr)
	}
	bar, _ := t.buses[i].Function().BAR(0)
	t.place(i, bar.Range.Base)
}

// place sets where a memory is; 0: nowhere.
func (t *ordering) place(memory int, addr uint64) {
	for _, all := range t.targets {
		for _, to := range all {
			if to.name == memoryName(memory) {
				to.addr = addr
			}
		}
	}
}

// unsure notes that writes from and to a mixer may get lost from now on, or no longer.
func (t *ordering) unsure(i int, on bool) {
	for j, all := range t.targets {
		for _, to := range all {
			if j == i || to.name == memoryName(i) {
				to.known, to.unsure = [mixerArea]bool{}, on
			}
		}
	}
}

func (t *ordering) going(on bool) {
	for i, m := range t.mixers {
		m.going = on && t.wanted[i] > 0
		m.notify()
	}
}

// quiet waits until all requests have ended, those to a mixer that is gone by their timeout.
func (t *ordering) quiet() {
	t.going(false)
	if !t.RunUntil(t.Now()+2*mixerTimeout, func() bool {
		for _, m := range t.mixers {
			if len(m.open) > 0 || m.staged != nil {
				return false
			}
		}
		return true
	}) {
		t.fail("requests do not end")
	}
	t.Run(t.Now() + 50*time.Millisecond) // the last writes
}

// compare compares all memories with what they must hold.
func (t *ordering) compare() {
	for i := range t.tallies {
		mem := t.bytes(i)
		for j, all := range t.targets {
			for _, to := range all {
				for k := range mixerArea {
					if got := mem[j*mixerArea+k]; to.name == memoryName(i) && to.known[k] && got != to.shadow[k] {
						t.fail("byte %d of mixer %d in %s is %#x, want %#x", k, j, to.name, got, to.shadow[k])
						return
					}
				}
			}
		}
		for k, issued := range t.tallies[i].issued {
			got, ended := binary.LittleEndian.Uint64(mem[countersAt+8*k:]), len(t.tallies[i].seen[k])
			if got > issued || got < uint64(ended) {
				t.fail("counter %d of %s is %d after %d additions, of which %d have ended", k, memoryName(i), got, issued, ended)
			}
		}
	}
}

// Devices that write, read and add at random to host memory and to each other, in one box and in
// two, find what they wrote, once and in order, with damaged packets left out, over networks that
// lose and reorder. Meanwhile one of them is reset, or attached again: it writes nothing afterwards.
// Or it moves to the other box, and nothing gets lost.
func TestDevicesAgainstReference(t *testing.T) {
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 99))
		plan := fault.Plan{Delay: 5 * time.Microsecond, Jitter: 3 * time.Microsecond}
		if seed%2 == 0 {
			plan.Loss, plan.Dup, plan.Reorder, plan.Corrupt = 0.02, 0.02, 0.05, 0.01
		}
		o, err := newOrdering(seed, plan, 1+r.IntN(2))
		if err != nil {
			t.Fatal(err)
		}
		o.run(t, r)
		o.Close()
		if o.err != "" {
			t.Fatalf("seed %d: %s", seed, o.err)
		}
	}
}

func (t *ordering) run(tb *testing.T, r *rand.Rand) {
	for i := range mixers {
		t.attach(tb, i)
	}
	for step := range 10 {
		t.steady = true
		t.going(true)
		t.Run(t.Now() + time.Duration(r.IntN(400))*time.Microsecond)
		i := r.IntN(mixers)
		switch (step + r.IntN(2)) % 5 {
		case 0:
			t.quiet()
			t.compare()
		case 1:
			t.reset(tb, i)
		case 2:
			t.rebind(tb, i)
		case 3:
			t.access(tb, i, r)
		case 4:
			t.migrate(tb, i, r)
		}
		if t.err != "" {
			return
		}
	}
	t.quiet()
	t.compare()
	for i, m := range t.mixers {
		if m.done < 100 {
			t.fail("mixer %d has had %d answers", i, m.done)
		}
	}
}

// reset is a Function Level Reset in the middle of the traffic.
func (t *ordering) reset(tb *testing.T, i int) {
	t.steady = false
	t.unsure(i, true)
	if err := t.buses[i].Reset(); err != nil {
		tb.Fatal(err)
	}
	t.unsure(i, false)
	t.silent(i)
}

// rebind ends the binding of a mixer in the middle of the traffic, and begins another one.
func (t *ordering) rebind(tb *testing.T, i int) {
	t.steady = false
	t.unsure(i, true)
	t.wanted[i] = 0
	t.place(i, 0)
	t.apply()
	if !t.RunUntil(t.Now()+time.Minute, func() bool {
		return t.host.Observe().Slots[i].Binding == nil && t.atBox(t.at[i]) == nil
	}) {
		tb.Fatalf("mixer %d is not detached", i)
	}
	t.silent(i)
	t.attach(tb, i)
	t.unsure(i, false)
}

// silent waits for the others, and checks that a mixer writes no more to host memory.
func (t *ordering) silent(i int) {
	part := t.memory.Bytes()[i*mixerArea:][:mixerArea]
	before := string(part)
	t.quiet()
	if string(part) != before {
		t.fail("mixer %d still writes", i)
	}
}

// access lets the processor use a mixer.
func (t *ordering) access(tb *testing.T, i int, r *rand.Rand) {
	region, err := t.buses[i].BAR(0)
	if err != nil {
		tb.Fatal(err)
	}
	in := make([]byte, 1+r.IntN(600))
	for k := range in {
		in[k] = byte(r.Uint32())
	}
	out, at := make([]byte, len(in)), int64(mixers*mixerArea+r.IntN(1000))
	_, err = region.WriteAt(in, at)
	if err == nil {
		_, err = region.ReadAt(out, at)
	}
	if err != nil || string(in) != string(out) {
		t.fail("the processor reads other bytes from mixer %d than it wrote: %v", i, err)
	}
}

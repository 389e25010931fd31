package hostproxy_test

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// A device that does not answer: reads end with all ones at the Completion
// Timeout, and answers that come later are dropped.
func TestCompletionTimeout(t *testing.T) {
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			const timeout = 200 * time.Millisecond
			r, spy := newWatched(t, options{inside: c.inside, timeout: timeout})
			b := r.attach(0, 0, 0, 0)
			bus, dev := r.open1(0, 0)
			dev.Registers().Write32(scratch, 0)
			for _, mode := range []struct {
				name string
				set  func(bool)
			}{{"no answer", spy.mute.Store}, {"late answer", spy.delay.Store}} {
				mode.set(true)
				started := time.Now()
				if v := bus.ConfigRead32(0); v != 0xffff_ffff {
					t.Errorf("%s: configuration reads %#x, want all ones", mode.name, v)
				}
				config := time.Since(started)
				if v := dev.Registers().Read32(scratch); v != 0xffff_ffff {
					t.Errorf("%s: read %#x, want all ones", mode.name, v)
				}
				register := time.Since(started) - config
				least := timeout
				if !c.inside {
					least *= 3
				}
				const most = 8 * time.Second // two requests, while acknowledgements are as slow as a busy machine can make them
				if register < timeout || config < least || register+config > most+loaded(time.Second) {
					t.Errorf("%s: a register read ended after %v and a configuration read after %v", mode.name, register, config)
				}
				mode.set(false)
				if v := dev.Registers().Read32(scratch); v != 0 {
					t.Errorf("%s: afterwards the register reads %#x", mode.name, v)
				}
			}
			if n := metric(t, r.hosts[0], "slot_completion_timeouts_total"); n != 4 {
				t.Errorf("%v timeouts are counted, want 4", n)
			}
			if s := r.atHost(b); s.GetState() != attached {
				t.Errorf("the binding is %v: %s", s.GetState(), s.GetDetail())
			}
			copyBothWays(t, dev, 100<<10)
			closeBoth(t, bus, dev)
		})
	}
}

// A function level reset stops the device and leaves it usable.
func TestFunctionLevelReset(t *testing.T) {
	for _, c := range []struct {
		name   string
		inside bool
		reset  func(t *testing.T, bus driver.Bus)
	}{
		{"DEVICE_RESET", false, func(t *testing.T, bus driver.Bus) { check(t, bus.Reset()) }},
		{"configuration write", false, func(t *testing.T, bus driver.Bus) {
			at := express(t, bus) + cfgspace.OffDevCtl
			bus.ConfigWrite32(at, bus.ConfigRead32(at)&0xffff|cfgspace.DevCtlFLR)
		}},
		{"embedded", true, func(t *testing.T, bus driver.Bus) { check(t, bus.Reset()) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newCluster(t, options{inside: c.inside})
			r.attach(0, 0, 0, 0)
			bus := r.bus(0, 0, vfiouserbus.Options{})
			for range 3 {
				dev, err := driver.Open(t.Context(), bus, driver.Options{})
				if err != nil {
					t.Fatal(err)
				}
				copyBothWays(t, dev, 10000)
				dev.Registers().Write32(scratch, 0x1234)
				check(t, dev.Flush())
				bars := bus.ConfigRead32(cfgspace.OffBAR0)
				c.reset(t, bus)
				if v := bus.ConfigRead32(cfgspace.OffBAR0); v != bars {
					t.Errorf("BAR 0 is %#x after the reset, was %#x", v, bars)
				}
				dev, err = driver.Open(t.Context(), bus, driver.Options{})
				if err != nil {
					t.Fatal(err)
				}
				if v := dev.Registers().Read32(scratch); v != 0 {
					t.Errorf("a register keeps %#x over a reset", v)
				}
				check(t, dev.Close())
			}
			check(t, bus.Close())
		})
	}
}

// A guest that writes garbage everywhere does no harm: both proxies continue, and
// the device works after another attach.
func TestGarbage(t *testing.T) {
	accesses := 8000
	if raceEnabled || testing.Short() {
		accesses = 1500
	}
	for _, c := range fronts {
		t.Run(c.name, func(t *testing.T) {
			r := newCluster(t, options{inside: c.inside, timeout: 100 * time.Millisecond})
			b := r.attachSlowly(0, 0, 0, 0)
			for seed := range uint64(3) {
				bus := r.bus(0, 0, vfiouserbus.Options{})
				m, err := bus.AllocDMA(64 << 10)
				if err != nil {
					t.Fatal(err)
				}
				writeGarbage(t, bus, m, rand.New(rand.NewPCG(seed, 1)), accesses)
				_ = bus.Close() // the device may have made it impossible to close well
			}
			r.detach(b)
			r.attachSlowly(0, 0, 0, 0)
			bus, dev := r.open1(0, 0)
			copyBothWays(t, dev, 100<<10)
			closeBoth(t, bus, dev)
		})
	}
}

func writeGarbage(t *testing.T, bus driver.Bus, m driver.DMA, rng *rand.Rand, n int) {
	t.Helper()
	regs, err := bus.BAR(reg.BARRegisters)
	if err != nil {
		t.Fatal(err)
	}
	vram, err := bus.BAR(reg.BARVRAM)
	if err != nil {
		t.Fatal(err)
	}
	address := func() uint64 { // one that leads somewhere, now and then
		switch rng.IntN(4) {
		case 0:
			return m.Segments()[0].Addr + rng.Uint64N(64<<10)&^7
		case 1:
			return 0xfee0_0000 + rng.Uint64N(1<<20)
		}
		return rng.Uint64()
	}
	value := func() uint64 {
		return [...]uint64{0, 1, ^uint64(0), rng.Uint64(), rng.Uint64N(64), address()}[rng.IntN(6)]
	}
	for range n {
		switch rng.IntN(10) {
		case 0: // a command in the ring
			at := rng.IntN(64<<10) &^ 7
			m.Store64(at, value())
		case 1:
			command := reg.Command{}
			raw := command.Append(nil)
			binary.LittleEndian.PutUint64(raw[rng.IntN(len(raw)/8)*8:], value())
			binary.LittleEndian.PutUint32(raw, uint32(rng.IntN(16)))
			for i, w := 0, rng.IntN(512)*64; i+8 <= len(raw); i += 8 {
				m.Store64((w+i)%(64<<10), binary.LittleEndian.Uint64(raw[i:]))
			}
		case 2:
			if rng.IntN(20) == 0 { // rarely: most of it takes the device away
				bus.ConfigWrite32(rng.IntN(4096)&^3, uint32(value()))
			}
		case 3: // doorbells and rings
			regs.Write64(reg.Queue+rng.Uint64N(reg.QueueStride*8)&^7, value())
		case 4, 5:
			regs.Write32(rng.Uint64N(regs.Size())&^3, uint32(value()))
		case 6:
			regs.Write64(rng.Uint64N(regs.Size())&^7, value())
		case 7:
			vram.Write64(rng.Uint64N(vram.Size())&^7, value())
		case 8:
			if rng.IntN(10) == 0 {
				regs.Read32(rng.Uint64N(regs.Size()) &^ 3)
			}
		case 9:
			odd := make([]byte, 1+rng.IntN(70))
			_, _ = vram.WriteAt(odd, rng.Int64N(int64(vram.Size())-100))
		}
	}
	regs.Read32(0)
}

// A VMM's accesses of every size and alignment come through as they are: they
// are cut at page boundaries and filled up to double words on the way.
func TestAccessesOfAnySize(t *testing.T) {
	r := newCluster(t, options{})
	r.attach(0, 0, 0, 0)
	client, err := vfiouser.Dial(t.Context(), r.hosts[0].vm.Socket(0), vfiouser.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	config := func(off uint64, v uint32) {
		check(t, client.RegionWrite(t.Context(), vfiouser.RegionConfig, off, binary.LittleEndian.AppendUint32(nil, v)))
	}
	config(cfgspace.OffBAR0+4*reg.BARVRAM, 0)
	config(cfgspace.OffBAR0+4*reg.BARVRAM+4, 0x80)
	config(cfgspace.OffCommand, cfgspace.CmdMemory)
	rng := rand.New(rand.NewPCG(5, 5))
	shadow := make([]byte, 64<<10)
	for range 300 {
		off := rng.IntN(len(shadow) - 1)
		n := 1 + rng.IntN(min(9000, len(shadow)-off))
		if rng.IntN(2) == 0 {
			n = min(n, 1+rng.IntN(9))
		}
		data := pattern(off, n)
		copy(shadow[off:], data)
		check(t, client.PostWrite(reg.BARVRAM, uint64(off), data))
		at := rng.IntN(len(shadow) - 1)
		got := make([]byte, 1+rng.IntN(min(9000, len(shadow)-at)))
		check(t, client.RegionRead(t.Context(), reg.BARVRAM, uint64(at), got))
		if string(got) != string(shadow[at:at+len(got)]) {
			t.Fatalf("%d bytes at %d differ from what was written", len(got), at)
		}
	}
}

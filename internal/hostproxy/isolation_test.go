package hostproxy_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/frame"
)

// neighbours is two hosts with a GPU each of the same box: the first one is
// hostile, the second must not notice.
type neighbours struct {
	*cluster
	evil, good       *driver.Device
	evilBus          driver.Bus
	evilOnes, theirs *binding
}

func newNeighbours(t *testing.T, o options) *neighbours {
	t.Helper()
	o.hosts = 2
	if o.slices == nil {
		o.gpus = 2
	}
	n := &neighbours{cluster: newCluster(t, o)}
	n.evilOnes = n.attach(0, 0, 0, 0)
	n.theirs = n.attach(1, 1, 0, 1) // another slot: its BARs are elsewhere
	evilBus, evil := n.open1(0, 0)
	goodBus, good := n.open1(1, 1)
	n.evil, n.good, n.evilBus = evil, good, evilBus
	t.Cleanup(func() {
		closeQuietly(evilBus, evil)
		closeBoth(t, goodBus, good)
	})
	return n
}

// bound is the number by which datagrams name a binding of the box.
func (n *neighbours) bound(b *binding) uint32 { return n.boxes[0].number<<8 | uint32(b.boxSlot) }

// eachKind runs a test with two GPUs of a box, and with two slices of one GPU.
func eachKind(t *testing.T, test func(t *testing.T, o options)) {
	t.Run("GPUs", func(t *testing.T) { test(t, options{}) })
	t.Run("slices", func(t *testing.T) { test(t, twoSlices()) })
}

// DMA of one host's GPU reaches only that host's memory, never another host's GPU;
// the same holds for the host's own accesses.
func TestNeighbourCannotReachMemory(t *testing.T) { eachKind(t, testNeighbourCannotReachMemory) }

func testNeighbourCannotReachMemory(t *testing.T, o options) {
	n := newNeighbours(t, o)
	const size = 256 << 10
	secret := pattern(77, size)
	s, err := n.good.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	m, err := n.good.AllocDMA(size)
	if err != nil {
		t.Fatal(err)
	}
	copy(m.Bytes(), secret)
	check(t, s.Upload(t.Context(), 0, secret))
	aperture := uint64(0x80_0000_0000) + 1<<36 // of the good GPU's BAR 2, as the cluster places it

	// The same address names other memory at the other host, or none: the hostile
	// GPU neither reads nor writes the neighbour's.
	for _, c := range []struct {
		name string
		addr uint64
	}{
		{"memory of the neighbour", m.Segments()[0].Addr},
		{"aperture of the neighbour's GPU", aperture},
		{"registers of the neighbour's GPU", 0xc000_0000 + 1<<24},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, cmd := range []reg.Command{
				reg.CopyToVRAM(0, 0, c.addr, 4096),
				reg.CopyFromVRAM(0, c.addr, 64<<10, 4096),
			} {
				e, err := n.evil.NewStream()
				if err != nil {
					t.Fatal(err)
				}
				check(t, e.Submit(t.Context(), reg.Fill(0, 64<<10, 0xdeadbeef, 4096), cmd))
				var q *driver.QueueError
				if err := e.Sync(t.Context()); err != nil && (!errors.As(err, &q) || q.Code != reg.ErrDMARefused) {
					t.Fatal(err)
				}
				check(t, e.Reset())
				got := make([]byte, 4096)
				check(t, e.Download(t.Context(), got, 0))
				if bytes.Contains(secret, got[:64]) && !bytes.Equal(got[:64], make([]byte, 64)) {
					t.Error("the hostile GPU has read what is the neighbour's")
				}
				check(t, e.Close())
			}
			got := make([]byte, size)
			check(t, s.Download(t.Context(), got, 0))
			if !bytes.Equal(m.Bytes(), secret) || !bytes.Equal(got, secret) {
				t.Error("memory of the neighbour has changed")
			}
		})
	}
	// The CPU of the hostile host writes to its own.
	n.evil.Registers().Write32(scratch+12, 0x5ec2e7)
	check(t, n.evil.WriteAperture(0, pattern(1, 4096)))
	check(t, n.evil.Flush())
	got := make([]byte, size)
	check(t, s.Download(t.Context(), got, 0))
	if !bytes.Equal(got, secret) {
		t.Error("memory of the neighbour's GPU has changed")
	}
	if v := n.good.Registers().Read32(scratch + 12); v != 0 {
		t.Errorf("a register of the neighbour's GPU has become %#x", v)
	}
	check(t, s.Close())
}

// The answer to refused DMA does not reveal whether the address exists: the box
// answers for another host's memory as for absent memory.
func TestRefusalsAreAlike(t *testing.T) { eachKind(t, testRefusalsAreAlike) }

func testRefusalsAreAlike(t *testing.T, o options) {
	n := newNeighbours(t, o)
	type answer struct {
		code    reg.Error
		refused float64 // TLPs of the command, counted
		vram    byte    // what it left
	}
	ask := func(addr uint64) answer {
		t.Helper()
		e, err := n.evil.NewStream()
		if err != nil {
			t.Fatal(err)
		}
		before := metric(t, n.hosts[0], "slot_dma_refused_total")
		check(t, e.Submit(t.Context(), reg.Fill(0, 0, 0xdeadbeef, 4096), reg.CopyToVRAM(0, 0, addr, 4096)))
		var q *driver.QueueError
		if err := e.Sync(t.Context()); !errors.As(err, &q) {
			t.Fatalf("DMA of %#x: %v, want that it was refused", addr, err)
		}
		check(t, e.Reset())
		a := answer{code: q.Code, refused: metric(t, n.hosts[0], "slot_dma_refused_total") - before}
		got := make([]byte, 4096)
		check(t, e.Download(t.Context(), got, 0))
		a.vram = got[0]
		check(t, e.Close())
		return a
	}
	nothing := ask(0x000f_dead_0000_0000)
	if nothing.code != reg.ErrDMARefused || nothing.refused == 0 {
		t.Errorf("where nothing is: %+v", nothing)
	}
	// The cluster gives the hosts' slots different places.
	for name, addr := range map[string]uint64{
		"aperture of the neighbour's GPU":  0x80_0000_0000 + 1<<36,
		"registers of the neighbour's GPU": 0xc000_0000 + 1<<24,
		"interrupts of the neighbour":      0xfee0_0000,
	} {
		if got := ask(addr); got != nothing {
			t.Errorf("%s: %+v, where nothing is: %+v", name, got, nothing)
		}
	}
}

// attacker is a socket that knows the addresses of the box and of all bindings,
// and no key.
type attacker struct {
	t    *testing.T
	conn *net.UDPConn
	rand *rand.Rand
}

func newAttacker(t *testing.T, box string) *attacker { return newAttackerFrom(t, "127.0.0.1:0", box) }

// newAttackerFrom makes one at an address that is not in use any more.
func newAttackerFrom(t *testing.T, from, box string) *attacker {
	t.Helper()
	to, err := netip.ParseAddrPort(box)
	if err != nil {
		t.Fatal(err)
	}
	at, err := netip.ParseAddrPort(from)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(at), net.UDPAddrFromAddrPort(to))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return &attacker{t, conn, rand.New(rand.NewPCG(1, 2))}
}

func (a *attacker) send(p []byte) {
	_, _ = a.conn.Write(p) // a full queue is as good
}

// forge makes a datagram with a header of the attacker's choice, and noise.
func (a *attacker) forge(h frame.Header, n int) []byte {
	p := h.Append(nil)
	for range n / 8 {
		p = binary.LittleEndian.AppendUint64(p, a.rand.Uint64())
	}
	return p
}

// silent reports whether nothing has come back.
func (a *attacker) silent() bool {
	_ = a.conn.SetReadDeadline(time.Now().Add(20 * time.Millisecond))
	n, err := a.conn.Read(make([]byte, 2048))
	return n == 0 && err != nil
}

// A sender without the key of a binding gets no answer, even with its correct
// numbers: a wrong key and an unknown binding lead to the same silence.
func TestForgedDatagramsAreDroppedInSilence(t *testing.T) {
	n := newNeighbours(t, options{})
	a := newAttacker(t, n.boxes[0].addrs[0])
	theirs, epoch := n.bound(n.theirs), uint32(n.theirs.epoch)
	traffic := func(binding, epoch uint32, number uint64) frame.Header {
		return frame.Header{Version: frame.Version2, Type: frame.TypeTraffic, Binding: binding, Epoch: epoch, Number: number}
	}
	strangers := func() float64 { return metric(t, n.boxes[0], "stranger_datagrams_total") }
	stray := func() float64 { return metric(t, n.boxes[0], "stray_datagrams_total") }
	for _, c := range []struct {
		name    string
		forged  []byte
		counted func() float64
	}{
		{"unknown binding", a.forge(traffic(0xabcdef, epoch, 1<<20), 256), stray},
		{"no header at all", []byte("hello"), stray},
		{"wrong key", a.forge(traffic(theirs, epoch, 1<<20), 256), strangers},
		{"wrong key, next key phase", a.forge(frame.Header{Version: frame.Version2, Type: frame.TypeTraffic, KeyPhase: 1, Binding: theirs, Epoch: epoch, Number: 1 << 20}, 256), strangers},
		{"old epoch", a.forge(traffic(theirs, epoch-1, 1<<20), 256), strangers},
		{"later epoch", a.forge(traffic(theirs, epoch+1, 1<<20), 256), strangers},
		{"hello with a wrong key", a.forge(frame.Header{Version: frame.Version2, Type: frame.TypeHello, Binding: theirs, Epoch: epoch, Initiator: 5}, 64), strangers},
		{"confirm for no session", a.forge(frame.Header{Version: frame.Version2, Type: frame.TypeConfirm, Binding: theirs, Epoch: epoch, Initiator: 5, Responder: 6}, 64), strangers},
		{"a path that is not there", a.forge(frame.Header{Version: frame.Version2, Type: frame.TypeTraffic, Path: 3, Binding: theirs, Epoch: epoch}, 64), strangers},
		{"too short", a.forge(traffic(theirs, epoch, 1<<20), 0), strangers},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := c.counted()
			for range 3 {
				a.send(c.forged)
			}
			n.until("the datagrams to be counted", func() bool { return c.counted() >= before+3 })
			if !a.silent() {
				t.Error("the attacker is answered")
			}
		})
	}
	if s := n.atHost(n.theirs); s.GetState() != attached {
		t.Errorf("the binding is %v: %s", s.GetState(), s.GetDetail())
	}
	copyBothWays(t, n.good, 100<<10)
}

// Floods without a key slow the neighbour down, as any traffic does, and no more.
func TestFloodsWithoutAKey(t *testing.T) {
	n := newNeighbours(t, options{})
	theirs, epoch := n.bound(n.theirs), uint32(n.theirs.epoch)
	for _, c := range []struct {
		name   string
		header frame.Header
		size   int
	}{
		{"noise", frame.Header{}, 1024},
		{"unknown binding, small", frame.Header{Version: frame.Version2, Type: frame.TypeTraffic, Binding: 0xabcdef, Epoch: 1}, 8},
		{"wrong key, small", frame.Header{Version: frame.Version2, Type: frame.TypeTraffic, Binding: theirs, Epoch: epoch, Number: 1 << 30}, 32},
		{"wrong key, large", frame.Header{Version: frame.Version2, Type: frame.TypeTraffic, Binding: theirs, Epoch: epoch, Number: 1 << 30}, 8192},
		{"hellos", frame.Header{Version: frame.Version2, Type: frame.TypeHello, Binding: theirs, Epoch: epoch, Initiator: 5}, 64},
		{"confirms", frame.Header{Version: frame.Version2, Type: frame.TypeConfirm, Binding: theirs, Epoch: epoch, Initiator: 5, Responder: 6}, 64},
	} {
		t.Run(c.name, func(t *testing.T) {
			n.flooded(t, newAttacker(t, n.boxes[0].addrs[0]), c.header, c.size)
		})
	}
	// The hostile host's own proxy gone mad: its address is right, and so is its binding.
	t.Run("hellos of the host itself", func(t *testing.T) {
		n.hosts[0].kill()
		a := newAttackerFrom(t, n.hosts[0].addrs[0], n.boxes[0].addrs[0])
		h := frame.Header{Version: frame.Version2, Type: frame.TypeHello, Binding: n.bound(n.evilOnes), Epoch: uint32(n.evilOnes.epoch)}
		n.flooded(t, a, h, 64)
		n.until("the box to count the forged hellos", func() bool { return metric(t, n.boxes[0], "forged_handshakes_total") > 0 })
	})
	if s := n.atHost(n.theirs); s.GetState() != attached {
		t.Errorf("the binding is %v: %s", s.GetState(), s.GetDetail())
	}
}

// flooded checks that the good host gets its work done while an attacker sends
// forged datagrams as fast as it can.
func (n *neighbours) flooded(t *testing.T, a *attacker, h frame.Header, size int) {
	t.Helper()
	holdsOnce(t, func() {}, func() error {
		quiet := readsFor(t, n.good, floodFor/3)
		stop, ended := make(chan struct{}), make(chan int)
		go func() {
			sent := 0
			pace := time.NewTicker(time.Millisecond)
			defer pace.Stop()
			for ; !done(stop); sent++ {
				if raceEnabled && sent%8 == 7 {
					<-pace.C // with the detector a reader is many times slower than a sender
				}
				h.Number++
				h.Initiator++
				a.send(a.forge(h, size))
			}
			ended <- sent
		}()
		median := readsFor(t, n.good, floodFor)
		copyBothWays(t, n.good, 256<<10)
		close(stop)
		t.Logf("%d datagrams; a read takes %v, %v alone", <-ended, median, quiet)
		if limit := readLimit(quiet); median > limit {
			return fmt.Errorf("a read takes %v, want at most %v", median, limit)
		}
		return nil
	})
}

// The next tenant of a GPU finds what a new GPU has: zeroes in all of its
// memory, and registers and configuration space as after power-on.
func TestNextTenantFindsNothing(t *testing.T) { eachKind(t, testNextTenantFindsNothing) }

func testNextTenantFindsNothing(t *testing.T, o options) {
	const vram = 4 << 20
	o.hosts, o.spec.VRAM = 2, vram
	if o.slices != nil {
		o.spec.VRAM = 2 * vram
		for i := range o.slices {
			o.slices[i].Memory = vram
		}
	}
	r := newCluster(t, o)
	tenant := func(host int) (b *binding, bus driver.Bus) {
		b = r.attach(host, 0, 0, 0)
		bus, dev := r.open1(host, 0)
		check(t, dev.Close())
		return b, bus
	}
	b, bus := tenant(0)
	fresh := registersOf(t, bus)
	dev, err := driver.Open(t.Context(), bus, driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	check(t, s.Fill(t.Context(), 0, 0x5ec2e700, vram))
	check(t, s.Signal(t.Context(), 3, 0x5ec2e7))
	check(t, s.Sync(t.Context()))
	// Every register is written: a queue that is enabled so stumbles, and its
	// errors are kept, too.
	for _, p := range registerPages {
		region, err := bus.BAR(p.bar)
		if err != nil {
			t.Fatal(err)
		}
		for off := p.from; off < p.to; off += 4 {
			if p.bar == reg.BARRegisters && off == reg.Control {
				continue // a reset of its own would hide what is not cleaned
			}
			region.Write32(off, 0x5ec2e700|uint32(off&0xff)|1)
		}
	}
	check(t, bus.Close())
	r.detach(b)

	b, bus = tenant(1)
	for name, now := range registersOf(t, bus) {
		for i, v := range now {
			if v != fresh[name][i] {
				t.Errorf("%s, byte %#x: %#x, was %#x when the GPU was new", name, 4*i, v, fresh[name][i])
			}
		}
	}
	dev, err = driver.Open(t.Context(), bus, driver.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if s, err = dev.NewStream(); err != nil {
		t.Fatal(err)
	}
	all := make([]byte, vram)
	check(t, s.Download(t.Context(), all, 0))
	if i := bytes.IndexFunc(all, func(r rune) bool { return r != 0 }); i >= 0 {
		t.Errorf("byte %#x of the memory is %#x", i, all[i])
	}
	closeBoth(t, bus, dev)
	r.detach(b)
}

// registerPages are where a GPU has registers.
var registerPages = []struct {
	name     string
	bar      int
	from, to uint64
}{
	{"MSI-X table", reg.BARMSIX, reg.MSIXTable, 16 * 16},
	{"MSI-X pending bits", reg.BARMSIX, reg.MSIXPBA, reg.MSIXPBA + 8},
	{"register", reg.BARRegisters, 0, reg.CountersEnd},
	{"queue register", reg.BARRegisters, reg.Queue, reg.Queue + reg.DefaultQueues*reg.QueueStride},
	{"semaphore", reg.BARRegisters, reg.Semaphore, reg.Semaphore + 8*reg.SemaphoreCount},
}

// registersOf reads all registers of a device and its configuration space, except
// counters and clocks.
func registersOf(t *testing.T, bus driver.Bus) map[string][]uint32 {
	t.Helper()
	out := map[string][]uint32{}
	for _, p := range registerPages {
		region, err := bus.BAR(p.bar)
		if err != nil {
			t.Fatal(err)
		}
		for off := p.from; off < p.to; off += 8 {
			v := region.Read64(off)
			switch off {
			case reg.Timestamp, reg.CountReadTLPs, reg.CountReadBytes, reg.CountCommands:
				if p.bar == reg.BARRegisters {
					v = 0
				}
			}
			out[p.name] = append(out[p.name], uint32(v), uint32(v>>32))
		}
	}
	for off := 0; off < 4096; off += 4 {
		out["configuration space"] = append(out["configuration space"], bus.ConfigRead32(off))
	}
	return out
}

// pattern returns n bytes that depend on a seed.
func pattern(seed, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(i*7 + i>>8 + seed*31)
	}
	return p
}

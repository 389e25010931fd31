package ring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
	"github.com/dxpu-project/dxpu/internal/rawio/rights/rightstest"
)

// pair is both sides of a ring, with their sockets.
type pair struct {
	box     *Box
	process *Process
	memory  memory
	sockets [2]int // of the box, of the process
}

// newPair makes a ring. The test closes the sockets that it has not closed.
func newPair(t testing.TB) *pair {
	t.Helper()
	b, err := unix.Mmap(-1, 0, Size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{memory: b}
	if p.box, err = NewBox(b); err != nil {
		t.Fatal(err)
	}
	if p.sockets, err = unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err != nil {
		t.Fatal(err)
	}
	if p.process, err = NewProcess(b, uintptr(p.sockets[1])); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.close(0)
		p.close(1)
		if err := p.box.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func (p *pair) close(i int) {
	if p.sockets[i] >= 0 {
		_ = unix.Close(p.sockets[i])
		p.sockets[i] = -1
	}
}

// packet makes a packet of a size, whose bytes depend on its cookie.
func packet(size uint32, cookie uint64) []byte {
	b := reg.PacketHeader{Size: size, Cookie: cookie}.Append(nil)
	for len(b) < int(size) {
		b = append(b, byte(cookie+uint64(len(b))))
	}
	return b
}

func event(cookie uint64) []byte { return reg.Event{Cookie: cookie}.Append(nil) }

// take takes all events of the box.
func (p *pair) take(t testing.TB) (cookies []uint64) {
	t.Helper()
	b := make([]byte, 3*reg.EventSize)
	for {
		n, err := p.box.Take(b)
		if err != nil {
			t.Fatal(err)
		}
		if n == 0 {
			return cookies
		}
		for at := 0; at < n; at += reg.EventSize {
			e, _, _ := reg.ParseEvent(b[at:])
			cookies = append(cookies, e.Cookie)
		}
	}
}

// Packets of all sizes and their events go around the ring many times.
func TestPacketsAndEvents(t *testing.T) {
	p := newPair(t)
	rnd := rand.New(rand.NewPCG(1, 2))
	buf := make([]byte, reg.MaxPacket)
	var sent, received [][]byte
	var events uint64
	for cookie := uint64(1); cookie < 3*Events; {
		size := uint32(reg.PacketHeaderSize + reg.PacketAlign*rnd.IntN(64))
		if cookie%97 == 0 {
			size = reg.MaxPacket
		}
		one := packet(size, cookie)
		ok, wake, err := p.box.Put(one)
		switch {
		case err != nil:
			t.Fatal(err)
		case wake:
			t.Fatal("a wake-up of a process that does not sleep")
		case ok:
			sent = append(sent, one)
			cookie++
		}
		if ok && len(sent)-len(received) < 300 {
			continue
		}
		for n, err := p.process.Receive(buf, false); !errors.Is(err, reader.ErrNothing); n, err = p.process.Receive(buf, false) {
			if err != nil {
				t.Fatal(err)
			}
			received = append(received, bytes.Clone(buf[:n]))
			if err := p.process.Send(event(uint64(len(received)))); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range p.take(t) {
			if events++; c != events {
				t.Fatalf("event %d is of packet %d", events, c)
			}
		}
	}
	for i, b := range received {
		if !bytes.Equal(b, sent[i]) {
			t.Fatalf("packet %d of %d bytes has changed", i+1, len(sent[i]))
		}
	}
	if len(received) < 2*Events {
		t.Errorf("%d packets received", len(received))
	}
}

func TestFullRing(t *testing.T) {
	p := newPair(t)
	for i := range PacketBytes / reg.MaxPacket {
		if ok, _, err := p.box.Put(packet(reg.MaxPacket, uint64(i))); !ok || err != nil {
			t.Fatalf("packet %d: %v %v", i, ok, err)
		}
	}
	small := packet(reg.PacketHeaderSize, 99)
	if ok, wake, err := p.box.Put(small); ok || wake || err != nil {
		t.Fatalf("a packet in a full ring: %v %v %v", ok, wake, err)
	}
	if _, err := p.process.Receive(make([]byte, reg.MaxPacket), false); err != nil {
		t.Fatal(err)
	}
	if ok, _, err := p.box.Put(small); !ok || err != nil {
		t.Fatalf("a packet after one was taken: %v %v", ok, err)
	}
}

// Both sides sleep between each packet and its event, and no wake-up is lost.
func TestSleepers(t *testing.T) {
	const rounds = 5000
	p := newPair(t)
	var process sync.WaitGroup
	process.Go(func() {
		buf := make([]byte, reg.MaxPacket)
		for {
			n, err := p.process.Receive(buf, true)
			if errors.Is(err, io.EOF) {
				return
			}
			h, _, _ := reg.ParsePacketHeader(buf[:n])
			if err = errors.Join(err, p.process.Send(event(h.Cookie))); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for i := range uint64(rounds) {
		_, wake, err := p.box.Put(packet(reg.PacketHeaderSize, i))
		if err == nil && wake {
			err = Wake(uintptr(p.sockets[0]))
		}
		if err != nil {
			t.Fatal(err)
		}
		if p.box.Sleep() {
			if err := Await(uintptr(p.sockets[0]), true, new(rights.Disposer)); err != nil {
				t.Fatal(err)
			}
			p.box.Awake()
			if err := p.box.Woken(); err != nil {
				t.Fatal(err)
			}
		}
		for got := p.take(t); len(got) == 0; got = p.take(t) {
			// A wake-up that was late: the event of the one before was taken already.
			if p.box.Sleep() {
				if err := Await(uintptr(p.sockets[0]), true, new(rights.Disposer)); err != nil {
					t.Fatal(err)
				}
				p.box.Awake()
			}
		}
	}
	p.close(0)
	process.Wait()
}

// Several callers sleep at one time: the process wakes the box until the last one is awake.
func TestTwoSleepers(t *testing.T) {
	p := newPair(t)
	sleeps := p.memory.word(boxSleeps)
	for range 2 {
		if !p.box.Sleep() {
			t.Fatal("an event in an empty ring")
		}
	}
	p.box.Awake()
	if *sleeps != 1 || !p.box.Asleep() {
		t.Error("the other one is not woken")
	}
	p.box.Awake()
	if *sleeps != 0 || p.box.Asleep() {
		t.Error("there is no sleeper")
	}
	if err := p.process.Send(event(1)); err != nil {
		t.Fatal(err)
	}
	if err := Await(uintptr(p.sockets[0]), false, new(rights.Disposer)); !errors.Is(err, reader.ErrNothing) {
		t.Errorf("a wake-up of a box that is awake: %v", err)
	}
	if p.box.Sleep() || p.box.Asleep() {
		t.Error("the box sleeps beside an event")
	}
}

// The box gets the events of a process that has ended, and then its end.
func TestProcessEnds(t *testing.T) {
	p := newPair(t)
	if err := errors.Join(p.process.Send(event(1)), p.process.Send(event(2))); err != nil {
		t.Fatal(err)
	}
	p.close(1)
	if err := Await(uintptr(p.sockets[0]), true, new(rights.Disposer)); !errors.Is(err, io.EOF) {
		t.Errorf("the end: %v", err)
	}
	if got := p.take(t); len(got) != 2 {
		t.Errorf("events %v", got)
	}
	if err := Wake(uintptr(p.sockets[0])); !errors.Is(err, unix.EPIPE) {
		t.Errorf("a wake-up after the end: %v", err)
	}
}

// A process that counts what cannot be is found out, and the box reads and writes nothing outside
// the ring.
func TestHostileCounts(t *testing.T) {
	for _, c := range []struct {
		name string
		at   int
		v    uint64
		want error // of Put
		take error
	}{
		{"more taken than put", packetsTaken, PacketBytes + 8, errTaken, nil},
		{"taken wraps", packetsTaken, math.MaxUint64, errTaken, nil},
		{"more events than fit", eventsPut, Events + 1, nil, errEvents},
		{"events wrap", eventsPut, math.MaxUint64, nil, errEvents},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t)
			for range PacketBytes / reg.MaxPacket {
				if ok, _, err := p.box.Put(packet(reg.MaxPacket, 1)); !ok || err != nil {
					t.Fatal(ok, err)
				}
			}
			*p.memory.count(c.at) = c.v
			if ok, _, err := p.box.Put(packet(reg.MaxPacket, 1)); ok || !errors.Is(err, c.want) {
				t.Errorf("Put: %v %v, want %v", ok, err, c.want)
			}
			n, err := p.box.Take(make([]byte, reg.EventSize))
			if n != 0 || !errors.Is(err, c.take) {
				t.Errorf("Take: %d %v, want %v", n, err, c.take)
			}
		})
	}
	// A count that goes back.
	p := newPair(t)
	if _, _, err := p.box.Put(packet(reg.MaxPacket, 1)); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(p.process.Send(event(1)), p.process.Send(event(2))); err != nil {
		t.Fatal(err)
	}
	p.take(t)
	*p.memory.count(eventsPut) = 1
	if _, err := p.box.Take(make([]byte, reg.EventSize)); !errors.Is(err, errEvents) {
		t.Errorf("events went back: %v", err)
	}
}

// A process cannot keep the box busy with wake-ups: each one has an event.
func TestWakeUpsWithoutEvents(t *testing.T) {
	p := newPair(t)
	if err := p.process.Send(event(1)); err != nil {
		t.Fatal(err)
	}
	if err := p.box.Woken(); err != nil {
		t.Fatalf("the wake-up of an event: %v", err)
	}
	if err := p.box.Woken(); !errors.Is(err, errWakes) {
		t.Errorf("a second one: %v", err)
	}
}

// A packet that changes after its size was checked has the size that was checked.
func TestPacketSizeIsReadOnce(t *testing.T) {
	p := newPair(t)
	if _, _, err := p.box.Put(packet(64, 1)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, reg.MaxPacket)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range uint32(1 << 16) {
			binary.LittleEndian.PutUint32(p.memory.packets(), 64+i%2<<20)
		}
	}()
	n, err := p.process.Receive(buf, false)
	<-done
	if err == nil && (n != 64 || binary.LittleEndian.Uint32(buf) != 64) {
		t.Errorf("%d bytes, of a packet of %d", n, binary.LittleEndian.Uint32(buf))
	}
}

// FuzzBox has the process write anything to the memory between the box's calls.
func FuzzBox(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5})
	f.Add(binary.LittleEndian.AppendUint64([]byte{6, eventsPut / 64}, Events))
	f.Add(binary.LittleEndian.AppendUint64([]byte{6, packetsTaken / 64}, math.MaxUint64))
	f.Fuzz(func(t *testing.T, b []byte) {
		p := newPair(t)
		events := make([]byte, 8*reg.EventSize)
		next := func() (v byte) {
			if len(b) > 0 {
				v, b = b[0], b[1:]
			}
			return v
		}
		slept := 0
		for len(b) > 0 {
			switch next() % 7 {
			case 0:
				before := p.box.put
				if ok, _, err := p.box.Put(packet(uint32(next())*256+reg.PacketHeaderSize, 1)); ok == (p.box.put == before) || ok && err != nil {
					t.Fatalf("Put: %v %v", ok, err)
				}
			case 1:
				if n, err := p.box.Take(events); n%reg.EventSize != 0 || n > len(events) || n > 0 && err != nil {
					t.Fatalf("Take: %d %v", n, err)
				}
			case 2:
				_ = p.box.Woken()
			case 3:
				if p.box.Sleep() {
					slept++
				}
			case 4:
				if slept > 0 {
					slept--
					p.box.Awake()
				}
			case 5:
				_ = p.process.Send(event(uint64(next())))
			case 6:
				at := int(next()) % 5 * 64
				var v [8]byte
				for i := range v {
					v[i] = next()
				}
				copy(p.memory[at:], v[:])
			}
			if got := p.box.Asleep(); got != (slept > 0) {
				t.Fatalf("asleep %v after %d sleeps", got, slept)
			}
			if p.box.put-p.box.taken > PacketBytes {
				t.Fatalf("%d bytes in the ring", p.box.put-p.box.taken)
			}
		}
	})
}

// FuzzProcess has anything in the memory that the process reads.
func FuzzProcess(f *testing.F) {
	f.Add(uint64(64), packet(64, 1))
	f.Add(uint64(PacketBytes), packet(reg.PacketHeaderSize, 1))
	f.Add(uint64(math.MaxUint64), []byte{0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, count uint64, b []byte) {
		p := newPair(t)
		copy(p.memory.packets(), b)
		*p.memory.count(packetsPut) = count
		buf := make([]byte, reg.MaxPacket)
		for left := count; ; {
			n, err := p.process.Receive(buf, false)
			if err != nil {
				break
			}
			if n < reg.PacketHeaderSize || uint64(n) > left || binary.LittleEndian.Uint32(buf) != uint32(n) {
				t.Fatalf("a packet of %d bytes, of %d", n, left)
			}
			left -= uint64(n)
		}
	})
}

// A process sends a descriptor whose close waits beside a wake-up. The reader of the box, which
// all its tenants share, does not wait for it.
func TestWakeUpWithADescriptor(t *testing.T) {
	p := newPair(t)
	rightstest.Send(t, p.sockets[1], []byte{1}, 1)
	rightstest.AtOnce(t, "Await", func() {
		if err := Await(uintptr(p.sockets[0]), false, new(rights.Disposer)); !errors.Is(err, errRights) {
			t.Errorf("the wake-up: %v", err)
		}
	})
}

// Each kernel that is waited for takes a wake-up.
func TestWakeUpsDoNotAllocate(t *testing.T) {
	p := newPair(t)
	trash := new(rights.Disposer)
	n := testing.AllocsPerRun(100, func() {
		if err := errors.Join(Wake(uintptr(p.sockets[1])), Await(uintptr(p.sockets[0]), true, trash)); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations for each", n)
	}
}

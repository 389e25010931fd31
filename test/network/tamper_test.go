package network

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestAttackerOnThePath attacks the datagrams of a link that carries reads, writes and copies.
// The attacker sees all of them and knows no keys. It can slow the link down, but no byte may be wrong,
// no write may be missing, doubled or out of order, and no call may fail.
func TestAttackerOnThePath(t *testing.T) {
	for _, c := range []struct {
		name    string
		tamper  func(count *atomic.Uint64) tampering
		refused bool // the ends must have refused datagrams: the attack has reached them
	}{
		{"duplicates", duplicate, true},
		{"replays", replay, true},
		{"reorders", reorder, false},
		{"reflects", reflect, true},
		{"reports errors", reportErrors, false},
		{"damages", damage, true},
		{"changes senders", changeSenders, false},
		{"marks congestion", mark, false},
		{"drops what is small", dropSmall, false},
		{"delivers in bursts", burst, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			for _, kind := range []string{vmKind, embeddedKind} {
				t.Run(kind, func(t *testing.T) {
					r := newProxyPair(t, options{kind: kind, attacked: true})
					var count atomic.Uint64
					how := c.tamper(&count)
					if kind == embeddedKind {
						r.attacker.does(how, func() { r.attach(); r.copies(2 << 20) })
					} else {
						r.attach()
						_, dev := r.open()
						r.attacker.does(how, func() { r.transfer(dev, 15, func() {}) })
						if err := copyBothWays(t.Context(), dev, 1<<20); err != nil {
							t.Error(err)
						}
					}
					if c.refused {
						r.refused()
					}
					box, _ := r.proxies[boxEnd].report()
					host, _ := r.proxies[hostEnd].report()
					t.Logf("%d attempts; the box refused %d datagrams, the host %d", count.Load(), box.Refused, host.Refused)
					if count.Load() == 0 {
						t.Error("the attacker did nothing")
					}
					if n := r.net.icmpReceived(); n == 0 && c.name == "reports errors" {
						t.Error("no report reached the host")
					}
				})
			}
		})
	}
}

// refused waits until the ends have told of datagrams that they refused.
func (r *proxyPair) refused() {
	r.t.Helper()
	r.proxies[boxEnd].until("datagrams to be refused: did the attack reach the ends?", func(s report) bool {
		host, _ := r.proxies[hostEnd].report()
		return s.Refused+host.Refused > 0
	})
}

// copies waits until an embedded host has copied n further bytes without an error.
func (r *proxyPair) copies(n uint64) {
	r.t.Helper()
	host := r.proxies[hostEnd]
	before, _ := host.report()
	host.until("copies", func(s report) bool {
		if s.Failure != "" {
			r.t.Fatalf("a copy failed: %s", s.Failure)
		}
		return s.Copied >= before.Copied+n
	})
}

// The attacker plays all that it has recorded of a binding, from its first datagram to its
// last one, into the next binding of the same ends.
func TestAttackerReplaysAnEarlierBinding(t *testing.T) {
	r := newProxyPair(t, options{attacked: true})
	var mu sync.Mutex // guards recorded
	var recorded [2][][]byte
	r.attacker.does(func(from int, frame []byte, w way) {
		mu.Lock()
		if len(recorded[from]) < 20_000 {
			recorded[from] = append(recorded[from], bytes.Clone(frame))
		}
		mu.Unlock()
		w.pass(frame)
	}, func() {
		r.attach()
		_, dev := r.open()
		r.transfer(dev, 2, func() {})
		r.detach()
	})
	var played [2]atomic.Uint64
	r.attacker.does(func(from int, frame []byte, w way) {
		w.pass(frame)
		for range 4 {
			at := played[from].Add(1) - 1
			w.pass(bytes.Clone(recorded[from][at%uint64(len(recorded[from]))]))
		}
	}, func() {
		r.attach()
		_, dev := r.open()
		for range 5 {
			if err := copyBothWays(t.Context(), dev, 64<<10+5); err != nil {
				t.Fatal(err)
			}
		}
	})
	r.refused()
	s, _ := r.proxies[hostEnd].report()
	t.Logf("%d and %d datagrams of the first binding; the host refused %d", played[hostEnd].Load(), played[boxEnd].Load(), s.Refused)
	if s.State != attached {
		t.Errorf("the binding is %v: %s", s.State, s.Detail)
	}
}

// The attacker drops what one end sends. The user of the GPU sees its removal in time, both ends
// give the link up, and the next binding works.
func TestAttackerCutsOneDirection(t *testing.T) {
	for _, c := range []struct {
		name string
		from int
	}{{"of the host", hostEnd}, {"of the box", boxEnd}} {
		t.Run(c.name, func(t *testing.T) {
			r := newProxyPair(t, options{attacked: true})
			for deadline := time.Now().Add(patience); ; {
				r.attach()
				bus, dev := r.open()
				copying := copyUntilItFails(t, dev)
				var took time.Duration
				r.attacker.does(func(from int, frame []byte, w way) {
					if from != c.from {
						w.pass(frame)
					}
				}, func() {
					cut := time.Now()
					<-bus.Lost()
					took = time.Since(cut)
					<-copying
					for _, p := range r.proxies {
						p.until("lost", func(s report) bool { return s.State == lost || s.Binding == "" })
					}
				})
				t.Logf("the removal was seen after %v", took)
				r.detach()
				if took <= removal || raceEnabled {
					break
				}
				if time.Now().After(deadline) {
					t.Fatalf("the removal was seen after %v, want %v", took, removal)
				}
			}
			r.attach()
			_, dev := r.open()
			if err := copyBothWays(t.Context(), dev, 1<<20); err != nil {
				t.Error(err)
			}
		})
	}
}

// duplicate sends each datagram three times.
func duplicate(count *atomic.Uint64) tampering {
	return func(_ int, frame []byte, w way) {
		for range 3 {
			w.pass(frame)
		}
		count.Add(2)
	}
}

// replay sends an earlier datagram of the same end behind each.
func replay(count *atomic.Uint64) tampering {
	var all [2][][]byte
	return func(from int, frame []byte, w way) {
		w.pass(frame)
		if len(all[from]) < 4096 {
			all[from] = append(all[from], bytes.Clone(frame))
		} else {
			all[from][rand.IntN(len(all[from]))] = bytes.Clone(frame)
		}
		w.pass(all[from][rand.IntN(len(all[from]))])
		count.Add(1)
	}
}

// reorder delays each third datagram by up to 3 ms.
func reorder(count *atomic.Uint64) tampering {
	return func(_ int, frame []byte, w way) {
		if rand.IntN(3) != 0 {
			w.pass(frame)
			return
		}
		late := bytes.Clone(frame)
		w.after(rand.N(3*time.Millisecond), func() { w.pass(late) })
		count.Add(1)
	}
}

// reflect sends each datagram also back, as one of the other end.
func reflect(count *atomic.Uint64) tampering {
	return func(_ int, frame []byte, w way) {
		w.pass(frame)
		out := bytes.Clone(frame)
		copy(out, frame[6:12])
		copy(out[6:], frame[:6])
		copy(out[ethernet+12:], frame[ethernet+16:ethernet+20])
		copy(out[ethernet+16:], frame[ethernet+12:ethernet+16])
		copy(out[ethernet+ipv4:], frame[ethernet+ipv4+2:ethernet+ipv4+4])
		copy(out[ethernet+ipv4+2:], frame[ethernet+ipv4:ethernet+ipv4+2])
		w.back(out)
		count.Add(1)
	}
}

// reportErrors forges a report of each kind about each datagram, from its receiver.
func reportErrors(count *atomic.Uint64) tampering {
	return func(_ int, frame []byte, w way) {
		w.pass(frame)
		for _, r := range []struct {
			kind, code byte
			rest       uint32
		}{
			{3, 0, 0}, {3, 1, 0}, {3, 2, 0}, {3, 3, 0}, // network, host, protocol and port
			{3, 4, 68}, {3, 4, 0}, {3, 4, 1280}, // a smaller MTU
			{3, 13, 0}, // forbidden
			{4, 0, 0},  // source quench
			{5, 1, binary.BigEndian.Uint32([]byte{192, 0, 2, 99})}, // redirect
			{11, 0, 0},       // time exceeded
			{12, 0, 9 << 24}, // parameter problem
		} {
			w.back(icmp(frame, r.kind, r.code, r.rest))
			count.Add(1)
		}
	}
}

// damage changes a bit of each tenth datagram, cuts it or makes it longer. Beside half of
// them the original goes on.
func damage(count *atomic.Uint64) tampering {
	return func(_ int, frame []byte, w way) {
		if rand.IntN(10) != 0 {
			w.pass(frame)
			return
		}
		out := bytes.Clone(frame)
		switch payload := out[headers:]; {
		case len(payload) == 0:
		case rand.IntN(3) == 0:
			out = out[:headers+rand.IntN(len(payload))]
		case rand.IntN(2) == 0 && len(out) < jumbo-100:
			out = append(out, make([]byte, 1+rand.IntN(80))...)
		default:
			payload[rand.IntN(len(payload))] ^= 1 << rand.IntN(8)
		}
		finish(out)
		w.pass(out)
		count.Add(1)
		if rand.IntN(2) == 0 {
			w.pass(frame)
		}
	}
}

// changeSenders gives each tenth datagram another port or address of its sender; beside half
// of them the original goes on.
func changeSenders(count *atomic.Uint64) tampering {
	return func(_ int, frame []byte, w way) {
		if rand.IntN(10) != 0 {
			w.pass(frame)
			return
		}
		out := bytes.Clone(frame)
		if rand.IntN(2) == 0 {
			binary.BigEndian.PutUint16(out[ethernet+ipv4:], uint16(1024+rand.IntN(1<<15)))
		} else {
			out[ethernet+15] = byte(3 + rand.IntN(200))
		}
		finish(out)
		w.pass(out)
		count.Add(1)
		if rand.IntN(2) == 0 {
			w.pass(frame)
		}
	}
}

// mark sets the field of congestion marks (ECN) of each datagram to each of its values.
func mark(count *atomic.Uint64) tampering {
	return func(_ int, frame []byte, w way) {
		frame[ethernet+1] = frame[ethernet+1]&^3 | byte(rand.IntN(4))
		finish(frame)
		w.pass(frame)
		count.Add(1)
	}
}

// dropSmall drops half of the datagrams without data: most of them acknowledge.
func dropSmall(count *atomic.Uint64) tampering {
	return func(_ int, frame []byte, w way) {
		if len(frame) < headers+120 && rand.IntN(2) == 0 {
			count.Add(1)
			return
		}
		w.pass(frame)
	}
}

// burst holds all datagrams of an end for 20 ms, and then lets them go at once, in the reverse
// order.
func burst(count *atomic.Uint64) tampering {
	var held [2]struct {
		sync.Mutex
		frames [][]byte
	}
	return func(from int, frame []byte, w way) {
		h := &held[from]
		h.Lock()
		defer h.Unlock()
		h.frames = append(h.frames, bytes.Clone(frame))
		count.Add(1)
		if len(h.frames) > 1 {
			return
		}
		w.after(20*time.Millisecond, func() {
			h.Lock()
			defer h.Unlock()
			for _, f := range slices.Backward(h.frames) {
				w.pass(f)
			}
			h.frames = h.frames[:0]
		})
	}
}

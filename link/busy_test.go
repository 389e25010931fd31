package link_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/link/linktest"
	"github.com/dxpu-project/dxpu/tlp"
)

// busyPair connects two links whose processes get a processor only now and then,
// like on a machine with many busy threads. Datagrams wait in the sockets until
// their end runs.
type busyPair struct {
	ends  [2]*link.Link
	inbox [2][][]byte
	next  [2]time.Duration // when an end runs
	stall func() time.Duration
	dead  [2]bool // killed: never runs again
	buf   [1 << 16]byte
}

func newBusyPair(t *testing.T, stall func() time.Duration) *busyPair {
	t.Helper()
	p := &busyPair{stall: stall}
	for i, cfg := range linktest.Ends(link.CipherNone, 1500) {
		l, err := link.New(0, cfg)
		if err != nil {
			t.Fatal(err)
		}
		p.ends[i] = l
	}
	return p
}

// run runs both ends in turn until the given time or until one is down. It returns
// the time.
func (p *busyPair) run(until time.Duration) time.Duration {
	for now := min(p.next[0], p.next[1]); ; now = min(p.next[0], p.next[1]) {
		if now >= until {
			return until
		}
		for i, l := range p.ends {
			if p.next[i] > now {
				continue
			}
			if p.dead[i] {
				p.next[i] = until
				continue
			}
			for _, d := range p.inbox[i] {
				_ = l.Receive(now, 0, d, func(*tlp.Packet) {}) // counted by the link
			}
			p.inbox[i] = nil
			for {
				n, _ := l.Transmit(now, p.buf[:])
				if n == 0 {
					break
				}
				p.inbox[1-i] = append(p.inbox[1-i], append([]byte(nil), p.buf[:n]...))
			}
			if l.State() == link.Down {
				return now
			}
			p.next[i] = now + p.stall()
		}
	}
}

// A machine with busy processors delays both ends by hundreds of milliseconds,
// sometimes by more than the dead interval. Neither end may take that for the
// death of the other.
func TestBusyProcessorsDoNotLoseThePeer(t *testing.T) {
	for seed := range uint64(6) {
		chance := rand.New(rand.NewPCG(seed, 1))
		p := newBusyPair(t, func() time.Duration {
			stall := time.Duration(chance.ExpFloat64() * float64(150*time.Millisecond))
			return max(time.Millisecond, min(stall, 1100*time.Millisecond))
		})
		const span = 20 * time.Minute
		if now := p.run(span); now < span {
			why, _ := p.ends[0].Reason()
			other, _ := p.ends[1].Reason()
			t.Errorf("seed %d: a link between two live ends is down after %v: %v, %v", seed, now, why, other)
		}
	}
}

// The longer interval of a busy time does not outlast it: on a quiet machine the
// death of a peer is detected as fast as before.
func TestDeathIsDetectedAfterABusyTime(t *testing.T) {
	busy := true
	chance := rand.New(rand.NewPCG(7, 1))
	p := newBusyPair(t, func() time.Duration {
		if busy {
			return time.Duration(chance.Int64N(int64(600 * time.Millisecond)))
		}
		return time.Millisecond
	})
	now := p.run(time.Minute)
	busy = false
	now = p.run(now + 15*time.Second)
	p.dead[1] = true
	died := now
	if now = p.run(now + 10*time.Second); p.ends[0].State() != link.Down || now-died > 1500*time.Millisecond {
		t.Errorf("%v after its death the peer counts as %v", now-died, p.ends[0].State())
	}
}

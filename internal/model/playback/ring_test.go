package playback

import (
	"errors"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// stub is a submitter whose GPU is the test.
type stub struct {
	commands []reg.Command // by number; a fence has its value as Arg1
	rung     int           // commands announced
	reached  driver.Fence
	err      error
}

func (s *stub) Room() int { return ringEntries - (len(s.commands) - int(s.reached)) }

func (s *stub) TryPut(c reg.Command) bool {
	if s.Room() == 0 {
		return false
	}
	s.commands = append(s.commands, c)
	return true
}

func (s *stub) TryFence() (driver.Fence, bool) {
	f := driver.Fence(len(s.commands) + 1)
	return f, s.TryPut(reg.Fence(0, 0, uint64(f)))
}

func (s *stub) Ring()                 { s.rung = len(s.commands) }
func (s *stub) Reached() driver.Fence { return s.reached }
func (s *stub) Err() error            { return s.err }

func newRing() (*ring, *stub) {
	s := &stub{}
	return &ring{stream: s}, s
}

func TestDelaysAreCut(t *testing.T) {
	for _, tt := range []struct {
		name string
		put  func(r *ring)
		want []uint64
	}{
		{"none", func(r *ring) { r.delay(0) }, nil},
		{"negative", func(r *ring) { r.delay(-5) }, nil},
		{"short", func(r *ring) { r.delay(7) }, []uint64{7}},
		{"the longest", func(r *ring) { r.delay(time.Second) }, []uint64{reg.MaxDelay}},
		{"longer", func(r *ring) { r.delay(2*time.Second + 3) }, []uint64{reg.MaxDelay, reg.MaxDelay, 3}},
		{"since, none", func(r *ring) { r.delaySince(0) }, nil},
		{"since, longer", func(r *ring) { r.delaySince(time.Second + 3) }, []uint64{reg.MaxDelay, 3}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r, _ := newRing()
			tt.put(r)
			if len(r.backlog) != len(tt.want) {
				t.Fatalf("%d commands, want %d", len(r.backlog), len(tt.want))
			}
			for i, want := range tt.want {
				c := r.backlog[i].command
				since := c.Flags&reg.DelaySince != 0
				if c.Op != reg.OpDelay || c.Arg1 != want || since != (i == 0 && tt.name == "since, longer") {
					t.Errorf("command %d: %+v", i, c)
				}
			}
		})
	}
}

// A full ring waits for the GPU, which fences of its own tell of, and none of
// these comes between a command and a delay that counts from its start.
func TestRingFillsAndGoesOn(t *testing.T) {
	r, d := newRing()
	const pairs = 5000
	for range pairs {
		r.put(reg.CopyFromVRAM(0, 0, 0, 4))
		r.delaySince(100)
	}
	r.putFence(42)
	var seen []int32
	copies := 0
	for at := 0; len(r.backlog) > 0 || !r.idle(); {
		r.flush()
		if n := d.Room(); n < 0 {
			t.Fatalf("%d commands more than the ring has room for", -n)
		}
		for ; at < len(d.commands); at++ {
			switch c := d.commands[at]; c.Op {
			case reg.OpCopy:
				copies++
				if at+1 < len(d.commands) && d.commands[at+1].Flags&reg.DelaySince == 0 {
					t.Fatalf("command %d behind a copy is %+v", at+1, d.commands[at+1])
				}
			case reg.OpFence:
				d.reached = driver.Fence(c.Arg1)
			}
		}
		if err := r.poll(func(op int32) { seen = append(seen, op) }); err != nil {
			t.Fatal(err)
		}
	}
	if copies != pairs || len(seen) != 1 || seen[0] != 42 || d.rung != len(d.commands) {
		t.Errorf("%d copies, saw %v, %d of %d commands announced", copies, seen, d.rung, len(d.commands))
	}
}

func TestHaltedQueueIsAnError(t *testing.T) {
	r, s := newRing()
	s.err = &driver.QueueError{Code: reg.ErrRange}
	if err := r.poll(func(int32) {}); !errors.Is(err, s.err) {
		t.Errorf("error %v, want %v", err, s.err)
	}
}

func TestPieces(t *testing.T) {
	for _, tt := range []struct {
		n, size uint64
		busy    time.Duration
		count   int
	}{{1, 8, 0, 1}, {7, 8, 100, 1}, {8, 8, 100, 1}, {9, 8, 100, 2}, {16, 8, 3, 2}, {17, 8, 1000, 3}} {
		var sum uint64
		var busy time.Duration
		count := 0
		pieces(tt.n, tt.size, tt.busy, func(size uint64, least time.Duration) {
			if size == 0 || size > tt.size || least < 0 {
				t.Errorf("%+v: a piece of %d bytes and %v", tt, size, least)
			}
			sum, busy, count = sum+size, busy+least, count+1
		})
		if sum != tt.n || busy != tt.busy || count != tt.count {
			t.Errorf("%+v: %d bytes and %v in %d pieces", tt, sum, busy, count)
		}
	}
}

package playback

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// deaf is a port that notes doorbells; its memory is the test's.
type deaf struct {
	mem   []byte
	rings []uint32
}

func (d *deaf) write32(off uint64, v uint32) {
	if off == queueReg(0, reg.QDoorbell) {
		d.rings = append(d.rings, v)
	}
}
func (d *deaf) write64(uint64, uint64) {}
func (d *deaf) load64(off int) uint64  { return binary.LittleEndian.Uint64(d.mem[off:]) }

func newRing() (*ring, *deaf) {
	d := &deaf{mem: make([]byte, memorySize)}
	return &ring{port: d, memory: memory{d.mem, 1 << 20}}, d
}

// at reads command i of the ring.
func (d *deaf) at(t *testing.T, i int) reg.Command {
	t.Helper()
	c, _, err := reg.ParseCommand(d.mem[i%ringEntries*reg.CommandSize:])
	if err != nil {
		t.Fatal(err)
	}
	return c
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
	for at := uint64(0); len(r.backlog) > 0 || r.retired != r.tail; {
		r.flush()
		if r.tail-r.retired > ringEntries {
			t.Fatalf("%d commands in a ring of %d", r.tail-r.retired, ringEntries)
		}
		fenced := at
		for ; at < r.tail; at++ {
			switch c := d.at(t, int(at)); c.Op {
			case reg.OpCopy:
				copies++
				if next := d.at(t, int(at+1)); at+1 < r.tail && next.Flags&reg.DelaySince == 0 {
					t.Fatalf("command %d behind a copy is %+v", at+1, next)
				}
			case reg.OpFence:
				fenced = at + 1
				if c.Arg1 != fenced {
					t.Fatalf("fence %d has the value %d", at, c.Arg1)
				}
			}
		}
		binary.LittleEndian.PutUint64(d.mem[fencesAt:], fenced)
		if err := r.poll(func(op int32) { seen = append(seen, op) }); err != nil {
			t.Fatal(err)
		}
		at = r.tail
	}
	if copies != pairs || len(seen) != 1 || seen[0] != 42 || d.rings[len(d.rings)-1] != uint32(r.tail) {
		t.Errorf("%d copies, saw %v, doorbells %v", copies, seen, d.rings)
	}
}

func TestHaltedQueueIsAnError(t *testing.T) {
	r, d := newRing()
	reg.StatusBlock{State: reg.QueueHalted, Error: reg.ErrRange}.Append(d.mem[statusAt:statusAt])
	if err := r.poll(func(int32) {}); err == nil {
		t.Error("no error")
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

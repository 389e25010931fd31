package move_test

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/opencl/move"
)

// Bytes arrive in their order, whatever the sizes of the pieces.
func TestRing(t *testing.T) {
	memory := make([]byte, 64)
	w, r := move.Ring{Memory: memory}, move.Ring{Memory: memory}
	rnd := rand.New(rand.NewPCG(1, 2))
	var sent, got []byte
	for range 10_000 {
		p := make([]byte, 8*rnd.IntN(10))
		for i := range p {
			p[i] = byte(rnd.Uint32())
		}
		room := w.Room()
		n := w.Put(p)
		if n != min(room, len(p)) {
			t.Fatalf("put %d of %d, with room for %d", n, len(p), room)
		}
		sent = append(sent, p[:n]...)
		put, _ := w.Count()
		if err := r.SetPut(put); err != nil {
			t.Fatal(err)
		}
		q := make([]byte, 8*rnd.IntN(10))
		got = append(got, q[:r.Take(q)]...)
		_, taken := r.Count()
		if err := w.SetTaken(taken); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.HasPrefix(sent, got) || len(got) < len(sent)-64 {
		t.Errorf("%d bytes were sent, %d have arrived", len(sent), len(got))
	}
}

// An end of the ring believes no count that cannot be.
func TestRingBounds(t *testing.T) {
	r := move.Ring{Memory: make([]byte, 64)}
	for _, n := range []uint64{65, 72, 4, 1 << 63} {
		if r.SetPut(n) == nil {
			t.Errorf("%d bytes in a ring of 64", n)
		}
	}
	if err := r.SetPut(64); err != nil {
		t.Fatal(err)
	}
	if r.SetPut(56) == nil {
		t.Error("the writer has taken bytes back")
	}
	if r.SetTaken(65) == nil {
		t.Error("more bytes were taken than put")
	}
	if err := r.SetTaken(8); err != nil || r.SetTaken(0) == nil {
		t.Errorf("%v, or the reader has given bytes back", err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add(move.Message{Type: move.Loaded, Generation: 7, Count: 1, Left: 2, Text: "why"}.Append(nil))
	f.Add(move.Message{Type: move.Save}.Append(nil))
	f.Add(move.Message{Type: move.Loaded, Text: strings.Repeat("x", 1000)}.Append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := move.Parse(b)
		if err != nil {
			return
		}
		if again := m.Append(nil); !bytes.Equal(again, b) {
			t.Errorf("%x became %x", b, again)
		}
	})
}

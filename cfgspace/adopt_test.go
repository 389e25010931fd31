package cfgspace_test

import (
	"math/rand/v2"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
)

// wander brings a function into a random state.
func wander(s *cfgspace.Space, r *rand.Rand) {
	for range r.IntN(200) {
		switch r.IntN(10) {
		case 0:
			s.LogUncorrectable(1<<(12+r.IntN(11)), r.IntN(2) == 0, []byte{byte(r.Uint32()), 2, 3})
		case 1:
			s.Reset(r.IntN(2) == 0)
		case 2:
			s.Write(r.IntN(4096), 1<<r.IntN(3), r.Uint32())
		default:
			s.Write(r.IntN(0x180), 1<<r.IntN(3), r.Uint32())
		}
	}
}

// A function takes over the state of another one, whatever its own was. Afterwards both
// answer alike.
func TestAdoptTakesTheStateOver(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 8))
		source, target := endpoint(t), endpoint(t)
		wander(source, r)
		wander(target, r)
		if err := target.Adopt(source.Bytes()); err != nil {
			t.Fatal(err)
		}
		for step := range 20 {
			if got, want := target.Bytes(), source.Bytes(); string(got) != string(want) {
				for i := range got {
					if got[i] != want[i] {
						t.Fatalf("seed %d, step %d: byte %#x is %#x, want %#x", seed, step, i, got[i], want[i])
					}
				}
			}
			off, width, v := r.IntN(0x180), 1<<r.IntN(3), r.Uint32()
			if got, want := target.Write(off, width, v), source.Write(off, width, v); got != want {
				t.Fatalf("seed %d, step %d: effects %+v, want %+v", seed, step, got, want)
			}
		}
	}
}

// An image with any bytes leaves the bits alone that software cannot change: the capability
// lists, the identity, sizes of BARs, and states that the function does not have.
func TestAdoptBelievesNoImage(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 9))
		s := endpoint(t)
		wander(s, r)
		m := newModel(s, endpointRegisters(s))
		image := s.Bytes()
		for range 1 + r.IntN(5000) {
			image[r.IntN(len(image))] = byte(r.Uint32())
		}
		power := m.value[m.pm+4] & 3
		for at := range m.free {
			if m.free[at] {
				m.put(at, image[at/8]>>(at%8)&1 != 0)
			}
		}
		if now := m.value[m.pm+4] & 3; now == 1 || now == 2 {
			m.value[m.pm+4] = m.value[m.pm+4]&^3 | power
		}
		m.value[m.express+9] &^= 0x80 // Initiate Function Level Reset
		if err := s.Adopt(image); err != nil {
			t.Fatal(err)
		}
		m.compare(t, s, seed, 0)
		if err := s.Adopt(image[:256]); err == nil {
			t.Fatal("an image of another size is taken")
		}
		m.compare(t, s, seed, 1)
	}
}

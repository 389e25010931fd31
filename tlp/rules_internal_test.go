package tlp

import (
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/dxpu-project/dxpu/pcie"
)

// A packet that Validate accepts at a glance is valid: ordinary packets, in which any one
// or two fields have another value.
func TestOrdinaryPacketsAreValid(t *testing.T) {
	r := rand.New(rand.NewPCG(12, 4))
	ordinary, refused := 0, 0
	for range 200_000 {
		p := likely(r)
		for range r.IntN(3) {
			change(r, &p)
		}
		full := p.validate()
		if p.ordinary() {
			ordinary++
			if full != nil {
				t.Fatalf("%+v is accepted, and not valid: %v", p, full)
			}
		} else if full != nil {
			refused++
		}
	}
	if ordinary < 10_000 || refused < 10_000 {
		t.Errorf("%d packets accepted at a glance and %d not valid: the test tests little", ordinary, refused)
	}
}

// likely returns a packet that is nearly always ordinary.
func likely(r *rand.Rand) Packet {
	n := 2 + r.IntN(63)
	switch r.IntN(3) {
	case 0:
		p := Packet{Type: MRd}
		p.SetMemory(uint64(r.IntN(16))<<12, n*pcie.DW)
		return p
	case 1:
		p := Packet{Type: MWr, Data: make([]byte, n*pcie.DW)}
		p.SetMemory(uint64(r.IntN(16))<<30, n*pcie.DW)
		return p
	default:
		return Packet{Type: CplD, Length: uint16(n), ByteCount: uint16(n * pcie.DW), Data: make([]byte, n*pcie.DW)}
	}
}

// change gives one field another value: often a small one, or the largest.
func change(r *rand.Rand, p *Packet) {
	v := reflect.ValueOf(p).Elem()
	f := v.Field(r.IntN(v.NumField()))
	switch f.Kind() {
	case reflect.Bool:
		f.SetBool(!f.Bool())
	case reflect.Slice:
		f.SetBytes(make([]byte, r.IntN(4)*pcie.DW))
	case reflect.Array:
		f.Index(r.IntN(f.Len())).SetUint(uint64(r.IntN(2)))
	default:
		f.SetUint(r.Uint64() >> r.IntN(64))
	}
}

package netio

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/tlp"
)

// A binding with one TLP does not wait for all that another one of its group
// has: each sends a quantum in turn.
func TestBindingsSendInTurn(t *testing.T) {
	const flood, size = 200, 4096
	r := newRig(t)
	var a, b [2]end
	ahead, arrived := 0, make(chan int, 1) // of the flood when the other's TLP came
	a[1].deliver = func(time.Duration, *tlp.Packet) bool { ahead++; return true }
	b[1].deliver = func(time.Duration, *tlp.Packet) bool { arrived <- ahead; return true }
	r.join(r.configs(1, link.CipherNone), &a[0], &a[1])
	r.join(r.configs(2, link.CipherNone), &b[0], &b[1])
	for _, e := range []*end{&a[0], &a[1], &b[0], &b[1]} {
		e.await(t, link.Up)
	}
	now := r.group[0].Enter()
	for i := range flood {
		if err := a[0].binding.Send(now, write(uint64(i)<<12, size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := b[0].binding.Send(now, write(0, 4)); err != nil {
		t.Fatal(err)
	}
	r.group[0].Leave()
	select {
	case n := <-arrived:
		// A quantum, and what a datagram may exceed it by.
		if most := quantum/size + 3; n > most {
			t.Errorf("%d TLPs of the other binding came first, want at most %d", n, most)
		}
	case <-time.After(patience):
		t.Fatal("the TLP has not come")
	}
}

package link_test

import (
	"testing"

	"github.com/dxpu-project/dxpu/link"
)

// Consecutive datagrams have the same size, as segmentation offload requires, for
// any position of the TLPs in them. Little of them is padding.
func TestRunsHaveEqualSizes(t *testing.T) {
	for _, mtu := range []int{ethernet, jumbo} {
		for _, size := range []int{128, 256, 4096} {
			w := newWire(t, link.CipherAES256GCM, mtu)
			var sizes []int
			const count = 200
			for range 20 { // the first rounds grow the window
				for range count {
					if err := w.links[0].Send(w.now, memoryWrite(size)); err != nil {
						t.Fatal(err)
					}
				}
				sizes = sizes[:0]
				for _, d := range w.take(0) {
					sizes = append(sizes, len(d))
					if err := w.links[1].Receive(w.now, 0, d, w.count); err != nil {
						t.Fatal(err)
					}
				}
				w.exchange(t)
			}
			if w.got != 20*count {
				t.Fatalf("MTU %d, payload %d: %d of %d TLPs arrived", mtu, size, w.got, 20*count)
			}
			changes, bytes := 0, 0
			for i, n := range sizes {
				bytes += n
				if i > 0 && i < len(sizes)-1 && n != sizes[i-1] {
					changes++
				}
			}
			// The first TLP determines the largest size of the run.
			if most := (4096 + mtu - 1) / mtu; changes > most {
				t.Errorf("MTU %d, payload %d: the size changes %d times in %v", mtu, size, changes, sizes[:12])
			}
			// With headers of TLPs and datagrams but without padding the ratio is 1.054.
			if most := 1.08; size == 4096 && float64(bytes) > most*float64(count*size) {
				t.Errorf("MTU %d: %d bytes for %d of payload", mtu, bytes, count*size)
			}
		}
	}
}

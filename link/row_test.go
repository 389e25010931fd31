package link_test

import (
	"testing"

	"github.com/dxpu-project/dxpu/link"
)

// Datagrams that leave in a row are of one size, as segmentation offload wants
// them, whatever of the TLPs ends in which; little of them is padding.
func TestRowsAreOfOneSize(t *testing.T) {
	for _, mtu := range []int{ethernet, jumbo} {
		for _, size := range []int{128, 256, 4096} {
			w := newWire(t, link.CipherAES256GCM, mtu)
			var sizes []int
			const count = 200
			for range 20 { // the first ones widen the window
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
				t.Fatalf("MTU %d, payload %d: %d TLPs came of %d", mtu, size, w.got, 20*count)
			}
			changes, bytes := 0, 0
			for i, n := range sizes {
				bytes += n
				if i > 0 && i < len(sizes)-1 && n != sizes[i-1] {
					changes++
				}
			}
			// The largest size of the row is found within a TLP.
			if most := (4096 + mtu - 1) / mtu; changes > most {
				t.Errorf("MTU %d, payload %d: the size changes %d times in %v", mtu, size, changes, sizes[:12])
			}
			// Without padding it is 1.054, with the headers of the TLPs and datagrams.
			if most := 1.08; size == 4096 && float64(bytes) > most*float64(count*size) {
				t.Errorf("MTU %d: %d bytes for %d of payload", mtu, bytes, count*size)
			}
		}
	}
}

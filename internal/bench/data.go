package bench

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
)

// pattern fills p with a byte sequence that is unique to the seed.
func pattern(p []byte, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 0xd09b))
	for len(p) >= 8 {
		binary.LittleEndian.PutUint64(p, r.Uint64())
		p = p[8:]
	}
	for i := range p {
		p[i] = byte(r.Uint32())
	}
}

// same returns an error that names the first different byte.
func same(got, want []byte) error {
	if len(got) != len(want) {
		return fmt.Errorf("%d bytes arrived, want %d", len(got), len(want))
	}
	for i := range got {
		if got[i] != want[i] {
			return fmt.Errorf("byte %d is %#02x, want %#02x", i, got[i], want[i])
		}
	}
	return nil
}

package share_test

import (
	"math/rand/v2"
	"testing"

	"github.com/dxpu-project/dxpu/share"
)

// FuzzPolicies fuzzes each policy through its interface: the first byte chooses the
// policy, the others are events, and the checker fails when a decision does not fit
// them. One target for all policies keeps the time of the whole module's fuzzing short.
func FuzzPolicies(f *testing.F) {
	policies := share.Policies()
	for i := range policies {
		for seed := range uint64(3) {
			rng := rand.New(rand.NewPCG(seed, 2))
			data := make([]byte, 1+12*60)
			for j := range data {
				data[j] = byte(rng.Uint32())
			}
			data[0] = byte(i)
			f.Add(data)
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 0 {
			drive(t, policies[int(data[0])%len(policies)].Name, data[1:min(len(data), 1+12*300)])
		}
	})
}

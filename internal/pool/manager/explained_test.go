package manager

import (
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// A transaction explains a few refusals at length, each of which may look at all GPUs and hosts.
// The others name the numbers alone.
func TestTransactionExplainsFewRefusals(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 8))
	_ = w.m.view(func(tx *tx) error {
		gpus, hosts := 0, 0
		for range 3 * maxExplained {
			if d := tx.chooseGPUs(placement.Request{Count: 1, MinMemory: 1 << 60}); strings.Contains(strings.Join(d.Why, " "), "memory") {
				gpus++
			}
			if d := tx.chooseHost(placement.HostRequest{Count: 1, Labels: map[string]string{"rack": "none"}}); strings.Contains(strings.Join(d.Why, " "), "rack=none") {
				hosts++
			}
		}
		if gpus+hosts != maxExplained || gpus == 0 || hosts == 0 {
			t.Errorf("%d refusals of GPUs and %d of hosts are explained, want %d in all", gpus, hosts, maxExplained)
		}
		return nil
	})
}

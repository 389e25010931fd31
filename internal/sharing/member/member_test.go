//go:build linux

package member

import (
	"log/slog"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/offer"
)

// A manager that does not say that it knows local peers sees no GPU: it would give it to
// other hosts.
func TestManagerThatDoesNotKnowLocalPeers(t *testing.T) {
	m, err := New(Config{
		Node: agent.Config{Manager: "http://127.0.0.1:1", StateDir: t.TempDir()}, Host: "m1", Box: "m1-gpus",
		GPUs: func() []offer.GPU { return []offer.GPU{{Name: "a", Device: &dxpuv1.Device{MemoryBytes: 1 << 30}}} }, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []*dxpuv1.ObservedState{(&boxNode{m}).Observe(), (&hostNode{m}).Observe()} {
		if len(o.Slots) > 0 || o.LocalPeer == "" {
			t.Errorf("the node reports %v", o)
		}
	}
}

//go:build linux

package agent_test

import (
	"context"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/mps"
)

// idleMPS is a service without clients.
type idleMPS struct{ stop chan struct{} }

func (s idleMPS) Run(ctx context.Context) error {
	select {
	case <-s.stop:
	case <-ctx.Done():
	}
	return nil
}

func (s idleMPS) Stop()                                    { close(s.stop) }
func (idleMPS) Admit(mps.Client) error                     { return nil }
func (idleMPS) Leave(mps.ClientID)                         {}
func (idleMPS) Resize(id mps.ClientID, l mps.Limits) error { return nil }
func (idleMPS) ClientEnv() []string                        { return nil }

// fakeMPS makes the service of an agent one without clients.
func fakeMPS(c *agent.Config) {
	c.MPS = func(int, func(mps.Notice)) (agent.MPS, error) { return idleMPS{make(chan struct{})}, nil }
}

// A share says whether anything holds it to its compute. With MPS nothing does before its
// program has joined: that of a container never does.
func TestSharesWithoutLimits(t *testing.T) {
	for policy, want := range map[string]bool{"gemini": false, "gaia": false, "gaiapi": false, "tgs": true, "orion": true, "mig": true, "streams": true, "mps": true} {
		m := start(t, "", policy, func(c *agent.Config) {
			if policy == "mps" {
				fakeMPS(c)
			}
		})
		if s := m.create(agent.Part{Memory: gib, Compute: new(int64(100_000)), Owned: true}); s.Policy != policy || s.Unlimited != want {
			t.Errorf("%s: %+v, want %t", policy, s, want)
		}
	}
}

// With MPS a share has one GPU, whatever way it asks for more.
func TestMPSWithSeveralGPUs(t *testing.T) {
	m := start(t, "", "mps", twoGPUs, fakeMPS)
	for name, p := range map[string]agent.Part{
		"a number": {Count: 2, Memory: gib},
		"names":    {GPUs: []string{"gpu0", "gpu1"}, Memory: gib},
		"sizes":    {Count: 2, Sizes: []agent.Size{{Memory: gib}, {Memory: 2 * gib}}},
	} {
		if _, err := m.api.Create(t.Context(), p); err == nil || !strings.Contains(err.Error(), "2 GPUs: with the policy mps a share has one") {
			t.Errorf("%s: %v", name, err)
		}
	}
	m.create(agent.Part{GPUs: []string{"gpu1"}, Memory: gib})
}

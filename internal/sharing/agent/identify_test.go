//go:build linux

package agent_test

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
)

// The UUID of a GPU whose driver was not ready at the start is known when a look finds it: programs
// see it, and the GPU is the same one at another address, and for the next agent.
func TestUUIDThatIsLearnedLate(t *testing.T) {
	unknown, one, moved := pciGPU(1, 0), pciGPU(1, 1), pciGPU(3, 1)
	var b bus
	b.set(unknown)
	m := start(t, "", "gemini", b.watched)
	s := m.create(agent.Part{Memory: gib})
	if p := m.page(s); p.GPUs[0].UUID != [16]byte{} {
		t.Fatalf("the page has the UUID %x", p.GPUs[0].UUID)
	}
	b.set(one)
	m.until("the UUID is known", func() bool { return len(m.shares()[0].UUIDs) == 1 })
	if p := m.page(s); p.GPUs[0].UUID != one.UUID {
		t.Errorf("the page has the UUID %x, want %x", p.GPUs[0].UUID, one.UUID)
	}
	b.set(moved)
	m.until("it is the same GPU elsewhere", func() bool { s := m.shares()[0]; return s.GPUs[0] == moved.Name && s.State == "ready" })
	b.set(unknown)
	m.stop()
	m = start(t, m.dir, "gemini", b.watched)
	if got := m.shares()[0]; got.State != "missing" {
		t.Errorf("a GPU at another address whose UUID is not known counts as the share's: %+v", got)
	}
}

// A GPU that the agent resets is not missing while the driver does not list it.
func TestLooksDuringAReset(t *testing.T) {
	r, log, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	one, two := pciGPU(1, 1), pciGPU(2, 2)
	var b bus
	b.set(one, two)
	looks, resets := make(chan struct{}), make(chan struct{}, 1)
	m := start(t, "", "gemini", b.watched, func(c *agent.Config) {
		c.KernelLog = r
		c.Look = func(ctx context.Context) ([]broker.GPU, map[string]string, error) {
			select {
			case looks <- struct{}{}:
			default:
			}
			return b.look(ctx)
		}
		c.Reset = func(ctx context.Context, _ broker.GPU) error {
			b.set(two)
			for range 10 {
				select {
				case <-looks:
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			b.set(one, two)
			resets <- struct{}{}
			return nil
		}
	})
	if _, err := fmt.Fprintln(log, "3,339,5140900,-;NVRM: Xid (PCI:0000:01:00): 48, pid=1, name=python"); err != nil {
		t.Fatal(err)
	}
	m.until("it was reset, and is never missing", func() bool {
		if got := m.state(one.Name); got == "missing" {
			t.Fatal("the GPU counts as missing while the agent resets it")
		}
		return len(resets) > 0 && m.state(one.Name) == "in service"
	})
}

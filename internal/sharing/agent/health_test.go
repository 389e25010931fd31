//go:build linux

package agent_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/internal/sharing/nvidia"
	"github.com/dxpu-project/dxpu/internal/sharing/nvidiatest"
)

const patientUUID = "GPU-e86cb44c-6756-fd30-cd4a-1e6da3caf9b0"

// hospital is a GPU at 0000:3b:00.0 with a kernel log, and a fake nvidia-smi that resets it.
type hospital struct {
	programs string // folder
	log      *os.File
}

// admit returns the configuration of an agent with a new kernel log.
func (h *hospital) admit(t *testing.T, backoff gpuerr.Backoff) func(*agent.Config) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = w.Close() })
	if h.programs == "" {
		h.programs = nvidiatest.Install(t)
		nvidiatest.EditSMI(t, h.programs, func(s *nvidiatest.SMI) { s.GPUs = []nvidiatest.SMIGPU{{UUID: patientUUID}} })
	}
	h.log = w
	smi := nvidia.Programs{SMI: filepath.Join(h.programs, "nvidia-smi")}
	return func(c *agent.Config) {
		c.Broker.GPUs[0].Address = 0x3b << 8
		c.KernelLog, c.Backoff = r, backoff
		c.Reset = func(ctx context.Context, _ broker.GPU) error { return smi.Reset(ctx, patientUUID) }
	}
}

func (h *hospital) xid(t *testing.T, code, pid int) {
	t.Helper()
	h.write(t, fmt.Sprintf("3,339,5140900,-;NVRM: Xid (PCI:0000:3b:00): %d, pid=%d, name=python, Ch 00000008\n", code, pid))
}

func (h *hospital) write(t *testing.T, text string) {
	t.Helper()
	if _, err := h.log.WriteString(text); err != nil {
		t.Fatal(err)
	}
}

func (h *hospital) resets(t *testing.T) int {
	t.Helper()
	s := nvidiatest.EditSMI(t, h.programs, func(*nvidiatest.SMI) {})
	return strings.Count(strings.Join(s.Log, "\n"), "--gpu-reset")
}

func (m *machine) gpu() agent.GPU {
	m.t.Helper()
	list, err := m.api.GPUs(m.t.Context())
	if err != nil {
		m.t.Fatal(err)
	}
	return list[0]
}

// An error of one program ends that program only; the GPU stays in service. Lines that the
// kernel did not write, or that name no process of a share, do nothing.
func TestErrorOfAProgram(t *testing.T) {
	var h hospital
	m := start(t, "", "gemini", h.admit(t, gpuerr.Backoff{}))
	s := m.create(agent.Part{Memory: gib})
	guilty, other := m.child(s), m.child(s)
	h.write(t, fmt.Sprintf("11,1,1,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=%d\n", other.cmd.Process.Pid)) // a program wrote it
	h.write(t, "3,1,1,-;usb 1-1: Product: NVRM: Xid (PCI:0000:3b:00): 79\n")
	h.write(t, strings.Repeat("x", 100_000)+"\n")
	h.xid(t, 31, os.Getppid())
	h.xid(t, 31, guilty.cmd.Process.Pid)
	// The child does not know END: it sees it as the answer to its next request, and the
	// agent kills it after the grace.
	m.until("the child is asked to end", func() bool { return guilty.allocate(0) == "END" })
	if got := other.allocate(1000); got != "GRANTED" {
		t.Errorf("the other process: %s", got)
	}
	if g := m.gpu(); g.State != "in service" || h.resets(t) != 0 {
		t.Errorf("GPU %+v after %d resets", g, h.resets(t))
	}
	guilty.kill()
	m.until("the child is gone", func() bool { return len(m.shares()[0].Processes) == 1 })
}

// A GPU that needs a reset takes no share and no process, is reset when its programs have
// ended, and returns by itself with its shares.
func TestResetOfAGPU(t *testing.T) {
	var h hospital
	var m *machine
	m = start(t, "", "gemini", h.admit(t, gpuerr.Backoff{}), func(c *agent.Config) {
		reset := c.Reset
		c.Reset = func(ctx context.Context, g broker.GPU) error {
			if n := len(m.shares()[0].Processes); n > 0 {
				t.Errorf("reset while %d programs use the GPU", n)
			}
			return reset(ctx, g)
		}
	})
	s := m.create(agent.Part{Memory: gib})
	c := m.child(s)
	if got := c.allocate(gib); got != "GRANTED" {
		t.Fatal(got)
	}
	h.xid(t, 48, 0)
	m.until("the GPU is out of service", func() bool { return m.gpu().State == "reset due" })
	m.until("the child is asked to end", func() bool { return c.allocate(0) == "END" })
	if _, err := m.api.Create(t.Context(), agent.Part{Memory: gib}); err == nil || !strings.Contains(err.Error(), "XID 48") {
		t.Errorf("share on a GPU out of service: %v", err)
	}
	if got, err := dial(s.Socket); err != nil {
		t.Error(err)
	} else if answer := got.greet(); answer == "WELCOME" {
		t.Error("a process connects to a GPU out of service")
	}
	c.kill()
	m.until("the GPU is in service again", func() bool { return m.gpu().State == "in service" })
	if n := h.resets(t); n != 1 {
		t.Errorf("%d resets, want 1", n)
	}
	if got := m.child(s).allocate(gib); got != "GRANTED" {
		t.Errorf("after the reset: %s", got)
	}
}

// A GPU that is out of service for a time stays so under the next agent, and returns when a
// person says that it is repaired, or after its time.
func TestGPUOutOfService(t *testing.T) {
	var h hospital
	hour := h.admit(t, gpuerr.Backoff{Base: time.Hour, Max: time.Hour})
	m := start(t, "", "gemini", hour)
	s := m.create(agent.Part{Memory: gib})
	h.xid(t, 79, 0)
	m.until("the GPU is out of service", func() bool { return m.gpu().State == "out of service" && !m.gpu().Until.IsZero() })
	m.stop()

	m = start(t, m.dir, "gemini", h.admit(t, gpuerr.Backoff{Base: time.Hour, Max: time.Hour}))
	if g := m.gpu(); g.State != "out of service" || !strings.Contains(g.Reason, "XID 79") {
		t.Errorf("GPU %+v under the next agent", g)
	}
	if list := m.shares(); len(list) != 1 || list[0].ID != s.ID {
		t.Errorf("shares %+v under the next agent", list)
	}
	if err := m.api.Repair(t.Context(), "no-gpu"); err == nil {
		t.Error("a GPU that is not there is repaired")
	}
	if err := m.api.Repair(t.Context(), "gpu0"); err != nil {
		t.Fatal(err)
	}
	m.child(s).kill()
	m.stop()
	m = start(t, m.dir, "gemini", h.admit(t, gpuerr.Backoff{Base: time.Nanosecond, Max: time.Nanosecond}))
	h.xid(t, 79, 0) // for a nanosecond, and the reset after it
	m.until("the GPU was reset", func() bool { return h.resets(t) == 1 && m.gpu().State == "in service" })
	m.child(s).kill()
}

// The clock of the machine was years ahead when the former agent ran: a GPU is not out of service
// for longer than its error requires.
func TestGPUOutOfServiceByAWrongClock(t *testing.T) {
	var h hospital
	m := start(t, "", "gemini", h.admit(t, gpuerr.Backoff{}))
	h.xid(t, 79, 0)
	m.until("the GPU is out of service", func() bool { return m.gpu().State == "out of service" })
	m.stop()
	path := filepath.Join(m.dir, "state.json")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	year := time.Now().Format("2006-")
	ahead := strings.ReplaceAll(string(text), `"`+year, `"2996-`)
	if ahead == string(text) {
		t.Fatalf("no time of this year in the state file:\n%s", text)
	}
	if err := os.WriteFile(path, []byte(ahead), 0o600); err != nil {
		t.Fatal(err)
	}
	m = start(t, m.dir, "gemini", h.admit(t, gpuerr.Backoff{}))
	if g := m.gpu(); g.State != "out of service" || time.Until(g.Until) > 10*time.Minute {
		t.Errorf("GPU %+v, want it out of service for ten minutes at most", g)
	}
}

package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/agent"
)

// A GPU whose time out of service is over and that its box has not reset yet shows no time
// of the past.
func TestHealthAfterTheTimeOutOfService(t *testing.T) {
	for want, until := range map[string]time.Time{
		"out of service until reset":                                        time.Now().Add(-time.Hour),
		"out of service until " + time.Now().Add(time.Hour).Format("15:04"): time.Now().Add(time.Hour),
	} {
		g := &dxpuv1.GPU{Health: dxpuv1.Health_HEALTH_DEGRADED, QuarantinedUntil: timestamppb.New(until)}
		if got := gpuHealth(g); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// The time between attach and detach is the use of the GPU, and not the time of a step.
func TestTimelineLeavesOutTheUse(t *testing.T) {
	step := func(name, node string, took time.Duration) *dxpuv1.Step {
		return &dxpuv1.Step{Name: name, NodeId: node, Time: timestamppb.Now(), Duration: durationpb.New(took)}
	}
	var out bytes.Buffer
	describeLease(&out, &dxpuv1.Lease{Id: "l-1", Spec: &dxpuv1.LeaseSpec{}, Bindings: []*dxpuv1.Binding{{Timeline: []*dxpuv1.Step{
		step("attached", "", time.Millisecond), step("attached", "h1", 2*time.Millisecond), step("detaching", "", time.Hour), step("resetting", "", 3*time.Millisecond),
	}}}})
	if text := out.String(); strings.Contains(text, "1h") || !strings.Contains(text, "1ms") || !strings.Contains(text, "3ms") {
		t.Error(text)
	}
}

// Empty lists are lists in JSON.
func TestEmptyLists(t *testing.T) {
	raw, err := json.Marshal(newTop(&agent.Report{}, &agent.Report{}, false))
	if err != nil || !strings.Contains(string(raw), `"slots":[]`) {
		t.Errorf("%s, %v", raw, err)
	}
	found, err := findGPUs()
	if raw, _ := json.Marshal(found); err != nil || string(raw) == "null" {
		t.Errorf("%s, %v", raw, err)
	}
}

// The lines of "dxpu top" fit the terminal: a longer one would wrap, and shift the table.
func TestTopFitsTheTerminal(t *testing.T) {
	p := newPage(&bytes.Buffer{}, false)
	var out bytes.Buffer
	p.Writer.Reset(&out)
	p.width = 60
	top := &poolTop{Pool: poolCounts{Leader: "http://manager.example.org:7470", Spares: 1}, Queue: []topQueued{{ID: "l-1", Why: strings.Repeat("no GPU is free. ", 9)}}}
	top.write(p)
	_ = p.Flush()
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > p.width {
			t.Errorf("%d columns: %s", n, line)
		}
	}
	if !strings.Contains(out.String(), "(1 spare)") && !strings.Contains(out.String(), "…") {
		t.Error(out.String())
	}
}

package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/bench/capacity"
)

// The benchmarks of the pool also run with eight GPUs.
func TestBenchCapacityRuns(t *testing.T) {
	var out, stderr bytes.Buffer
	if code := Main(strings.Fields("bench capacity --boxes 2 --gpus-per-box 4 --hosts 2 --idle 10ms --json"), strings.NewReader(""), &out, &stderr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	var r capacity.Report
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatal(err)
	}
	if r.GPUs != 8 || len(r.Parts) != 9 {
		t.Errorf("%+v", r)
	}
	out.Reset()
	if code := Main(strings.Fields("bench attach --count 2 --in-memory"), strings.NewReader(""), &out, &stderr); code != exitOK {
		t.Fatalf("exit code %d: %s", code, stderr.String())
	}
	if !strings.Contains(out.String(), "from the call to the device on the host") {
		t.Error(out.String())
	}
	for _, args := range []string{"capacity --boxes 0", "capacity --gpus-per-box 1000", "attach --count 0", "attach --heartbeat 0s"} {
		if code := Main(strings.Fields("bench "+args), strings.NewReader(""), &out, &stderr); code != exitUsage {
			t.Errorf("%s: exit code %d", args, code)
		}
	}
}

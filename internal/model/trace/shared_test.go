package trace_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/model/trace"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// realTraces returns the traces under the folder that DXPU_TRACES names.
func realTraces(t *testing.T) []string {
	t.Helper()
	root := os.Getenv("DXPU_TRACES")
	if root == "" {
		t.Skip("DXPU_TRACES is not set to a folder with traces of real runs (.pt.trace.json, .json.gz, .sqlite)")
	}
	var files []string
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && (strings.HasSuffix(path, ".pt.trace.json") || strings.HasSuffix(path, ".json.gz") || strings.HasSuffix(path, ".sqlite")) {
			files = append(files, path)
		}
		return err
	})
	if err != nil || len(files) == 0 {
		t.Fatalf("DXPU_TRACES=%s holds no traces: %v", root, err)
	}
	return files
}

func load(t *testing.T, file string) *workload.Workload {
	t.Helper()
	w, err := trace.Open(file, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return w
}

// A replay without added latency reproduces the recorded run within 2 % for each
// step and for the whole. A longer round trip never makes it faster. Reading and
// replaying again gives the same result.
func TestRealTraces(t *testing.T) {
	for _, file := range realTraces(t) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			w := load(t, file)
			if w.Report.Dropped() != 0 {
				t.Error(w.Report.Warning())
			}
			p := predict.NewPlan(w)
			for _, costs := range []perf.Costs{perf.PaperCosts(), paper.HardwareCosts()} {
				s := predict.Setting{NativeRTT: perf.NativeRTT, RTT: perf.NativeRTT, Costs: costs, Requester: perf.V100}
				zero, err := p.Run(s)
				if err != nil {
					t.Fatal(err)
				}
				near(t, "whole", zero.Whole.Recorded, zero.Whole.Replayed)
				for _, st := range zero.Steps {
					near(t, st.Name, st.Recorded, st.Replayed)
					near(t, st.Name+" on the host", st.HostRecorded, st.HostReplayed)
				}
				last := zero
				for _, rtt := range []time.Duration{1500, 2000, 4900, 6800, 8000, 19_000, 100_000} {
					s.RTT = rtt
					r, err := p.Run(s)
					if err != nil {
						t.Fatal(err)
					}
					if r.Relative > last.Relative || r.Whole.Replayed < last.Whole.Replayed {
						t.Errorf("%v: %.4f after %.4f at %v", rtt, r.Relative, last.Relative, last.RTT)
					}
					last = r
				}
				again, err := predict.NewPlan(load(t, file)).Run(s)
				if err != nil || cmp.Diff(last, again) != "" {
					t.Errorf("read and replayed again: %v, %s", err, cmp.Diff(last, again))
				}
			}
		})
	}
}

func near(t *testing.T, what string, want, got time.Duration) {
	t.Helper()
	if math.Abs(float64(got-want)) > 0.02*float64(want) {
		t.Errorf("%s: replayed in %v, recorded %v", what, got, want)
	}
}

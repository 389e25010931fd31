package playback_test

import (
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
	"github.com/dxpu-project/dxpu/internal/model/perf/paper"
	"github.com/dxpu-project/dxpu/internal/model/playback"
	"github.com/dxpu-project/dxpu/internal/model/predict"
	"github.com/dxpu-project/dxpu/internal/model/trace"
)

// DXPU_TRACES names a folder of real traces: the system reproduces each within
// 2 % and agrees with the model within 2 points.
func TestTracesOfTheFolder(t *testing.T) {
	dir := os.Getenv("DXPU_TRACES")
	if dir == "" {
		t.Skip("DXPU_TRACES is not set")
	}
	found := 0
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".json.gz") && !strings.HasSuffix(path, ".pt.trace.json") && !strings.HasSuffix(path, ".sqlite") {
			return err
		}
		found++
		t.Run(d.Name(), func(t *testing.T) { checkTrace(t, path) })
		return nil
	})
	if err != nil || found == 0 {
		t.Errorf("%d traces: %v", found, err)
	}
}

func checkTrace(t *testing.T, path string) {
	w, err := trace.Open(path, trace.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// Simulating more bytes takes seconds, even with large requests.
	const small, most = 256 << 20, 1 << 30
	limit := 500 * time.Millisecond
	part := playback.Cut(w, 2, limit)
	for ; playback.Traffic(part) > most && limit > time.Millisecond; limit /= 2 {
		part = playback.Cut(w, 2, limit)
	}
	requester := perf.V100
	if playback.Traffic(part) > small {
		requester.MRRS = 4096
	}
	t.Logf("%d operations, %d streams, %v bytes", len(part.Ops), len(part.Streams), playback.Traffic(part))
	p := predict.NewPlan(part)
	spec := playback.Spec{NativeRTT: perf.NativeRTT, RTT: perf.NativeRTT, Requester: requester}
	spec, note, err := spec.Ready(p)
	if err != nil {
		t.Fatal(err)
	}
	if note != "" {
		t.Log(note)
	}
	var runs []playback.Run
	for _, rtt := range []time.Duration{perf.NativeRTT, paper.RTTShort, paper.RTTLong, 19 * us} {
		spec.RTT = rtt
		times, err := playback.Virtual(t.Context(), p, spec)
		if err != nil {
			t.Fatal(err)
		}
		runs = append(runs, playback.Run{RTT: rtt, Times: times})
	}
	c, err := playback.Compare(p, spec.Requester, paper.HardwareCosts(), runs)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s; recorded %v, native %v", c.Basis, c.Recorded, c.Native)
	if off := c.Reproduction(); math.Abs(off) > 0.02 {
		t.Errorf("native: %v instead of %v: %+.2f %%", c.Native, c.Recorded, 100*off)
	}
	for i := range c.Points {
		pt := &c.Points[i]
		t.Logf("%v: %v, system %.2f %%, model %.2f %%, physical %.2f %%", pt.RTT, pt.Unit, 100*pt.System, 100*pt.Model, 100*pt.Physical)
		if math.Abs(pt.Deviation()) > 0.02 {
			t.Errorf("%v: system %.2f %%, model %.2f %%", pt.RTT, 100*pt.System, 100*pt.Model)
		}
	}
}

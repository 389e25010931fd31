package bench

import (
	"strings"
	"testing"
)

// Only ping-pongs that block or poll keep their threads: a device server is measured
// likewise behind a box and behind a tunnel.
func TestThreadsOfProbes(t *testing.T) {
	o := Options{}.withDefaults()
	r := &rttRun{opts: &o, sizes: [2]int{100, 100}}
	r.add("native", nil)
	if err := r.openBare(t.Context(), t.TempDir()); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.close(); err != nil {
			t.Error(err)
		}
	}()
	r.add("behind a tunnel", nil)
	bare := func(name, kind string) bool { return strings.HasPrefix(name, "bare ping-pong: "+kind+", ") }
	for _, p := range r.probes {
		if want := bare(p.name, echoUDPBlock) || bare(p.name, echoUnixBlock) || bare(p.name, echoUDPSpin); p.locked != want {
			t.Errorf("%s: keeps its thread: %v, want %v", p.name, p.locked, want)
		}
	}
}

package hook

import (
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// Without settings the driver receives exactly the calls of the program.
func TestTransparent(t *testing.T) {
	r := needBuilds(t)
	for _, way := range ways {
		for _, thread := range []string{"", "t"} {
			for _, scenario := range []string{"every", "recent", "graph", "conditional", "resolution", "fork"} {
				if scenario == "resolution" && thread != "" || scenario == "resolution" && way.program == "linked" {
					continue
				}
				t.Run(way.name+thread+"/"+scenario, func(t *testing.T) {
					x := run{program: way.program, way: way.arg + thread, scenario: scenario, bare: true}
					want := r.do(t, x)
					x.bare = false
					got := r.do(t, x)
					if diff := cmp.Diff(want.log, got.log); diff != "" {
						t.Errorf("calls without and with the library:\n%s", diff)
					}
					if got.errOut != "" {
						t.Errorf("standard error %q", got.errOut)
					}
				})
			}
		}
	}
}

// setUp matches the calls that set up a context without calibration.
var setUp = regexp.MustCompile(`(?s)cuDeviceGetAttribute 75 0\n.*?cuStreamDestroy_v2 [0-9a-f]+\n`)

// In every way to find the driver, the driver receives exactly the calls in
// testdata/every.txt and recent.txt, and with per-thread forms those in
// every-thread.txt and recent-thread.txt.
func TestInsertions(t *testing.T) {
	r := needBuilds(t)
	for _, scenario := range []string{"every", "recent"} {
		for thread, golden := range map[string]string{"": "testdata/" + scenario + ".txt", "t": "testdata/" + scenario + "-thread.txt"} {
			for _, way := range ways {
				t.Run(scenario+"/"+way.name+thread, func(t *testing.T) {
					res := r.do(t, run{program: way.program, way: way.arg + thread, scenario: scenario, env: inject()})
					got := setUp.ReplaceAllString(strings.Join(res.calls(), "\n")+"\n", "(set up)\n")
					if *rewrite {
						if err := os.WriteFile(golden, []byte(got), 0o644); err != nil {
							t.Fatal(err)
						}
					}
					want, err := os.ReadFile(golden)
					if err != nil {
						t.Fatal(err)
					}
					if diff := cmp.Diff(string(want), got); diff != "" {
						t.Errorf("calls of the driver:\n%s", diff)
					}
					if res.errOut != "" {
						t.Errorf("standard error %q", res.errOut)
					}
				})
			}
		}
	}
}

// The library also works with LD_PRELOAD.
func TestPreloaded(t *testing.T) {
	r := needBuilds(t)
	for _, way := range ways[1:] {
		res := r.do(t, run{program: way.program, way: way.arg, scenario: "every", bare: true, env: inject("LD_PRELOAD=" + filepath.Join(r.dir, "hook", Library))})
		if n := res.count("^cuLaunch.* dxpu_spin"); n != 6 {
			t.Errorf("%s: %d insertions before kernels and memsets, want 6", way.name, n)
		}
	}
}

// The times of the fake driver (fakecuda.c), ns.
const (
	fakeKernel, fakeMemset = 12000.0, 2000.0
	fakeIn, fakeInByte     = 1500.0, 1 / 12.0
	fakeOut, fakeOutByte   = 1200.0, 1 / 13.0
	small, large           = 1000.0, 1 << 20
)

// Calibration leaves exactly the requested latency, even if that is shorter than an
// insertion.
func TestTiming(t *testing.T) {
	r := needBuilds(t)
	for _, clock := range []struct{ name, step string }{{"globaltimer", "32"}, {"clock64", "1024"}} {
		for _, delta := range []float64{0, 0.5, 1, 2, 4, 6, 8, 12, 18} {
			rtt := time.Duration((1.2 + delta) * 1e3)
			t.Run(clock.name+"/"+rtt.String(), func(t *testing.T) {
				stats := filepath.Join(t.TempDir(), "stats")
				res := r.do(t, run{scenario: "timing", env: []string{"DXPU_RTT=" + rtt.String(), "FAKE_STEP=" + clock.step, "DXPU_STATS=" + stats}})
				d := delta * 1e3
				slow := float64(rtt) / (140 * 128)
				if d == 0 {
					slow = 0 // the fake is slower than Equation 1 at the native round trip
				}
				checkTimes(t, res.out, map[string]float64{
					"kernel": fakeKernel + d, "memset": fakeMemset + d,
					"htod_1000": fakeIn + small*fakeInByte + d,
					"htod_1M":   fakeIn + large*fakeInByte + max(d, large*(slow-fakeInByte)),
					"dtoh_1000": fakeOut + small*fakeOutByte + d/2, "dtoh_1M": fakeOut + large*fakeOutByte + d/2,
				})
				if d > 0 {
					checkStats(t, stats, clock.name)
				}
			})
		}
	}
}

func checkTimes(t *testing.T, out string, want map[string]float64) {
	t.Helper()
	seen := 0
	for line := range strings.Lines(out) {
		name, got, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok {
			t.Fatalf("line %q", line)
		}
		seen++
		// Fractions of a nanosecond, and the debt after the last of 1000 operations.
		if g := number(t, got); math.Abs(g-want[name]) > 12+want[name]*1e-4 {
			t.Errorf("%s: %.1f ns, want %.1f", name, g, want[name])
		}
	}
	if seen != len(want) {
		t.Errorf("%d times, want %d", seen, len(want))
	}
}

func number(t *testing.T, s string) float64 {
	t.Helper()
	var v float64
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return v
}

// statistics is the contents of DXPU_STATS.
type statistics struct {
	Kernels, Memsets, Spins, Failed, Records, Lost uint64
	InCapture                                      uint64 `json:"in_capture"`
	NotReady                                       uint64 `json:"not_ready"`
	Serialized                                     uint64
	Unknown                                        uint64 `json:"unknown_forms"`
	Contexts                                       []struct {
		Ready    bool
		Clock    string
		KernelNs float64 `json:"kernel_ns"`
		InNs     float64 `json:"htod_ns"`
	}
}

func readStats(t *testing.T, file string) statistics {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var s statistics
	if err := json.Unmarshal(b, &s); err != nil {
		t.Fatalf("%s: %v\n%s", file, err, b)
	}
	return s
}

func checkStats(t *testing.T, file, clock string) {
	t.Helper()
	s := readStats(t, file)
	if len(s.Contexts) != 1 || !s.Contexts[0].Ready || s.Contexts[0].Clock != clock {
		t.Fatalf("contexts: %+v", s.Contexts)
	}
	if c := s.Contexts[0]; math.Abs(c.KernelNs-3000) > 5 || math.Abs(c.InNs-1500) > 5 {
		t.Errorf("measured a kernel at %.1f ns and a copy at %.1f ns, want 3000 and 1500", c.KernelNs, c.InNs)
	}
	if s.Failed != 0 || s.NotReady != 0 {
		t.Errorf("%d failed, %d not ready", s.Failed, s.NotReady)
	}
}

// The library inserts nothing into a capture and makes no forbidden calls during one.
// The launch of a graph is delayed by the policy.
func TestGraphs(t *testing.T) {
	r := needBuilds(t)
	for _, tc := range []struct {
		name  string
		env   []string
		spins []string // before the two launches
	}{
		{"launch", nil, []string{"5600", "5600"}},
		{"node", []string{"DXPU_GRAPHS=node"}, []string{"22400", "22400"}},
		{"none", []string{"DXPU_GRAPHS=none"}, []string{"", ""}},
		{"set up before the capture", []string{"WARM=1"}, []string{"5600", "5600"}},
	} {
		for _, way := range ways {
			t.Run(tc.name+"/"+way.name, func(t *testing.T) {
				res := r.do(t, run{program: way.program, way: way.arg, scenario: "graph", env: inject(tc.env...)})
				if n := res.count(`dxpu_.* captured`); n != 0 {
					t.Errorf("%d insertions in captures", n)
				}
				if n := res.count(`^REFUSED`); n != 1 {
					t.Errorf("%d calls refused during captures, want the program's own", n)
				}
				if n := res.count(`, 5 nodes$`); n != 1 {
					t.Errorf("the graph does not have the program's 5 nodes")
				}
				var spins []string
				for i, l := range res.log {
					if strings.HasPrefix(l, "cuGraphLaunch ") {
						spin, _ := strings.CutPrefix(res.log[i-1], "cuLaunchKernel dxpu_spin_timer 103 ")
						if spin == res.log[i-1] {
							spin = ""
						}
						spins = append(spins, spin)
					}
				}
				if diff := cmp.Diff(tc.spins, spins); diff != "" {
					t.Errorf("before the launches:\n%s", diff)
				}
				if !strings.Contains(res.log[len(res.log)-2], "dxpu_spin_timer") {
					t.Errorf("no insertion after an invalidated capture")
				}
			})
		}
	}
}

// The largest body of a conditional node counts, whether the driver returns the
// bodies (CUDA 13.2) or only the call that adds the node does.
func TestConditional(t *testing.T) {
	r := needBuilds(t)
	for _, driver := range []string{"", "FAKE_NO_PARAMS=1"} {
		for _, way := range ways {
			t.Run(way.name+driver, func(t *testing.T) {
				stats := filepath.Join(t.TempDir(), "stats")
				res := r.do(t, run{program: way.program, way: way.arg, scenario: "conditional", env: inject("DXPU_GRAPHS=node", "DXPU_STATS="+stats, driver)})
				var spins []string
				for _, l := range res.log {
					if spin, ok := strings.CutPrefix(l, "cuLaunchKernel dxpu_spin_timer 103 "); ok {
						spins = append(spins, spin)
					}
				}
				// 11 kernels and memsets, then 7 without the switch.
				if diff := cmp.Diff([]string{"61600", "39200"}, spins); diff != "" {
					t.Errorf("before the launches:\n%s", diff)
				}
			})
		}
	}
}

func TestThreads(t *testing.T) {
	r := needBuilds(t)
	for _, way := range ways {
		stats := filepath.Join(t.TempDir(), "stats")
		res := r.do(t, run{program: way.program, way: way.arg, scenario: "threads", env: inject("DXPU_STATS="+stats, "DXPU_TRACE="+filepath.Join(t.TempDir(), "trace"))})
		s := readStats(t, stats)
		// 8 threads with 500 kernels and 500 copies each.
		if s.Kernels != 4000 || s.Spins != 4000 || s.Records != 8000 || s.Lost != 0 || s.Failed != 0 || s.NotReady != 0 {
			t.Errorf("%s: %+v", way.name, s)
		}
		if n := res.count("dxpu_spin_timer .* 5600$"); n != 4000 {
			t.Errorf("%s: %d insertions reached the driver, want 4000", way.name, n)
		}
	}
}

// In a child of a process that uses the driver, the library passes all calls through
// and does not touch the parent's files. A child from before has its own files.
func TestFork(t *testing.T) {
	r := needBuilds(t)
	for _, way := range ways {
		dir := t.TempDir()
		res := r.do(t, run{program: way.program, way: way.arg, scenario: "fork", env: inject("DXPU_STATS="+dir+"/stats.%p", "DXPU_TRACE="+dir+"/trace.%p")})
		if n := res.count("cuLaunchKernel user"); n != 4 {
			t.Errorf("%s: %d launches, want 4", way.name, n)
		}
		if n := res.count("dxpu_spin_timer .* 5600"); n != 3 {
			t.Errorf("%s: %d insertions, want 3: not in the second child", way.name, n)
		}
		files, err := filepath.Glob(dir + "/*")
		if err != nil || len(files) != 4 {
			t.Errorf("%s: %v, %v: want the files of two processes", way.name, files, err)
		}
		for _, f := range files {
			if strings.Contains(f, "trace.") {
				if st, err := os.Stat(f); err != nil || st.Size() < HeaderSize+RecordSize || (st.Size()-HeaderSize)%RecordSize != 0 {
					t.Errorf("%s: %v, %v", f, st.Size(), err)
				}
			}
		}
	}
}

// The library sets up its module and memory again in a new context.
func TestContexts(t *testing.T) {
	r := needBuilds(t)
	for _, way := range ways {
		res := r.do(t, run{program: way.program, way: way.arg, scenario: "contexts", env: inject()})
		if n := res.count("^cuModuleLoadData .version"); n != 2 {
			t.Errorf("%s: set up %d times, want 2", way.name, n)
		}
		if n := res.count("^cuLaunchKernel dxpu_spin"); n != 3 {
			t.Errorf("%s: %d insertions, want 3", way.name, n)
		}
	}
}

// The insertion before a launch belongs to the context of the launch's stream, whichever is
// current, and a launch on several devices has one on each of them.
func TestDevices(t *testing.T) {
	r := needBuilds(t)
	for _, way := range ways {
		stats := filepath.Join(t.TempDir(), "stats")
		res := r.do(t, run{program: way.program, way: way.arg, scenario: "devices", env: inject("DXPU_STATS=" + stats)})
		var got []string
		for _, l := range res.log {
			if f := strings.Fields(l); strings.HasPrefix(l, "cuLaunch") && f[1] != "dxpu_probe" {
				got = append(got, f[1]+" "+f[2])
			}
		}
		spin := "dxpu_spin_timer "
		want := []string{spin + "103", spin + "104", "user 103", "user 104", spin + "104", "user 104", spin + "103", "user 103"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: launches by stream:\n%s\n%s", way.name, diff, strings.Join(res.log, "\n"))
		}
		s := readStats(t, stats)
		if len(s.Contexts) != 2 || s.Kernels != 4 || s.Spins != 4 || s.Failed != 0 || s.NotReady != 0 || res.count("^REFUSED") != 0 {
			t.Errorf("%s: %+v", way.name, s)
		}
		if last := res.count("^cuCtxSetCurrent 1002$"); last != 3 {
			t.Errorf("%s: the second context was current %d times, want the program's and two insertions", way.name, last)
		}
	}
}

// With DXPU_SYNCS a blocking wait returns later by the added round trip.
func TestSyncs(t *testing.T) {
	r := needBuilds(t)
	start := time.Now()
	r.do(t, run{scenario: "every", env: []string{"DXPU_RTT=50ms", "DXPU_CALIBRATE=0", "DXPU_SYNCS=1"}})
	// Two waits of 50 ms minus 1.2 us.
	if took := time.Since(start); took < 99*time.Millisecond {
		t.Errorf("the program took %v", took)
	}
}

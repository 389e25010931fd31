// Package hook is the Go side of the driver library: its settings, and the trace of
// driver calls that it records. The driver library is the libcuda.so.1 in hook/src,
// which programs load in place of NVIDIA's. It injects the cost of a longer round
// trip (section 3.4.2 of the DxPU paper).
package hook

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
)

// Library is the file name of the driver library.
const Library = "libcuda.so.1"

// GraphPolicy is the latency injected before the launch of a CUDA graph.
type GraphPolicy string

// Policies for graphs. The library never inserts operations into a graph.
const (
	GraphsByLaunch GraphPolicy = "launch" // one round trip per launch
	GraphsByNode   GraphPolicy = "node"   // one per kernel and memset of the graph
	GraphsNone     GraphPolicy = "none"
)

// Settings configures the driver library. The zero value is transparent.
type Settings struct {
	// Inject adds the latency of RTT over NativeRTT. If both are equal, the
	// library measures and counts but adds no latency.
	Inject         bool
	RTT, NativeRTT time.Duration
	Requester      perf.Requester
	// NativeRate is the rate of copies to the device on this machine; zero
	// lets the library measure it.
	NativeRate perf.BytesPerSecond
	Graphs     GraphPolicy // "" is GraphsByLaunch
	// Syncs also delays the return of blocking waits; the paper's model does not.
	Syncs bool
	// Trace and Stats are files to write; %p in their names is the process id.
	Trace, Stats string
	// Driver is the path of the real library, if the driver library cannot find it.
	Driver  string
	Verbose bool
}

// Environ returns base with the settings, and with dir, the folder of the driver
// library, at the front of LD_LIBRARY_PATH. It replaces the settings in base.
func (s Settings) Environ(base []string, dir string) ([]string, error) {
	if dir == "" || strings.ContainsAny(dir, ":;") || !filepath.IsAbs(dir) {
		return nil, fmt.Errorf("hook: folder %q: want an absolute path without colons", dir)
	}
	vars, err := s.variables()
	if err != nil {
		return nil, err
	}
	path := dir
	env := slices.DeleteFunc(slices.Clone(base), func(v string) bool {
		if old, ok := strings.CutPrefix(v, "LD_LIBRARY_PATH="); ok {
			if old != "" {
				path = dir + ":" + old
			}
			return true
		}
		return strings.HasPrefix(v, "DXPU_")
	})
	return append(append(env, "LD_LIBRARY_PATH="+path), vars...), nil
}

func (s Settings) variables() ([]string, error) {
	var vars []string
	set := func(name, value string) {
		if value != "" && value != "0" {
			vars = append(vars, name+"="+value)
		}
	}
	if s.Inject {
		if err := s.Requester.Validate(); err != nil {
			return nil, err
		}
		if s.NativeRTT <= 0 || s.RTT < s.NativeRTT || s.RTT > time.Second {
			return nil, fmt.Errorf("hook: round trips: native %v, disaggregated %v: want 0 < native <= disaggregated <= 1s", s.NativeRTT, s.RTT)
		}
		set("DXPU_RTT", strconv.FormatInt(s.RTT.Nanoseconds(), 10)+"ns")
		set("DXPU_NATIVE_RTT", strconv.FormatInt(s.NativeRTT.Nanoseconds(), 10)+"ns")
		set("DXPU_TAGS", strconv.Itoa(s.Requester.Tags))
		set("DXPU_MRRS", strconv.Itoa(int(s.Requester.MRRS)))
		set("DXPU_NATIVE_GBPS", strconv.FormatFloat(s.NativeRate.GB(), 'g', -1, 64))
		if s.Syncs {
			set("DXPU_SYNCS", "1")
		}
	}
	switch s.Graphs {
	case "", GraphsByLaunch, GraphsByNode, GraphsNone:
		set("DXPU_GRAPHS", string(s.Graphs))
	default:
		return nil, fmt.Errorf("hook: graphs %q: want launch, node or none", s.Graphs)
	}
	set("DXPU_TRACE", s.Trace)
	set("DXPU_STATS", s.Stats)
	set("DXPU_REAL_LIBCUDA", s.Driver)
	if s.Verbose {
		set("DXPU_VERBOSE", "1")
	}
	return vars, nil
}

// ErrNoLibrary is returned by Find if the driver library does not exist.
var ErrNoLibrary = errors.New("hook: no " + Library + `: build it with "make hook"`)

// Find returns the absolute folder of the driver library: dir, or if dir is "" the
// first with the library of hook/ and ../lib/dxpu/ beside the executable.
func Find(dir string) (string, error) {
	dirs := []string{dir}
	if dir == "" {
		exe, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("hook: %w", err)
		}
		if real, err := filepath.EvalSymlinks(exe); err == nil {
			exe = real
		}
		at := filepath.Dir(exe)
		dirs = []string{filepath.Join(at, "hook"), filepath.Join(at, "..", "lib", "dxpu")}
	}
	for _, d := range dirs {
		if st, err := os.Stat(filepath.Join(d, Library)); err == nil && st.Mode().IsRegular() {
			return filepath.Abs(d)
		}
	}
	return "", fmt.Errorf("%w (looked in %s)", ErrNoLibrary, strings.Join(dirs, ", "))
}

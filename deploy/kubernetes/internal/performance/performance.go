// Package performance reads what "dxpu model predict --json" says of workloads over longer round
// trips, for the attributes of devices.
package performance

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
)

// MaxWorkloads bounds a table: a device has 32 attributes and capacities at most, 16 of which say
// other things.
const MaxWorkloads = resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice / 2

// maxSize bounds a file in bytes.
const maxSize = 64 << 20

// Table has the predictions of workloads.
type Table struct {
	// Doubts say which predictions are left out, because they are in doubt.
	Doubts []string

	workloads []workload
}

type workload struct {
	name   string
	at     time.Duration // the round trip of the prediction
	points []point       // by round trip, the native one first
}

type point struct {
	rtt      time.Duration
	relative float64
}

// report is the part of a prediction that counts here.
type report struct {
	File       string   `json:"file"`
	Doubt      string   `json:"doubt"`
	NativeRTT  int64    `json:"native_rtt_ns"`
	Prediction *result  `json:"prediction"`
	Sweep      []result `json:"sweep"`
}

type result struct {
	RTT      int64   `json:"rtt_ns"`
	Relative float64 `json:"relative"`
	Low      float64 `json:"low"` // the lower end of the range, 0: none
}

// Read reads the predictions of one trace, or of several.
func Read(from io.Reader) (Table, error) {
	raw, err := io.ReadAll(io.LimitReader(from, maxSize+1))
	if err != nil {
		return Table{}, err
	}
	if len(raw) > maxSize {
		return Table{}, fmt.Errorf("more than %d bytes", maxSize)
	}
	var all []report
	if strings.HasPrefix(strings.TrimSpace(string(raw[:min(len(raw), 64)])), "{") {
		raw = slices.Concat([]byte("["), raw, []byte("]"))
	}
	if err := json.Unmarshal(raw, &all); err != nil {
		return Table{}, fmt.Errorf(`not the output of "dxpu model predict --json": %w`, err)
	}
	var t Table
	var trusted []report
	for _, r := range all {
		if r.Doubt != "" { // whatever its figures are
			t.Doubts = append(t.Doubts, fmt.Sprintf("%s: %s", cmp.Or(nameOf(r.File), r.File), r.Doubt))
			continue
		}
		trusted = append(trusted, r)
	}
	if n := len(trusted); n > MaxWorkloads {
		return Table{}, fmt.Errorf("%d workloads, at most %d: a device has room for no more attributes", n, MaxWorkloads)
	}
	for _, r := range trusted {
		w, err := r.workload()
		if err != nil {
			return Table{}, fmt.Errorf("%q: %w", r.File, err)
		}
		if slices.ContainsFunc(t.workloads, func(o workload) bool { return o.name == w.name }) {
			return Table{}, fmt.Errorf("two workloads have the name %s: rename a trace", w.name)
		}
		t.workloads = append(t.workloads, w)
	}
	return t, nil
}

func (r *report) workload() (workload, error) {
	w := workload{name: nameOf(r.File)}
	switch {
	case w.name == "":
		return w, errors.New("the name of the trace has no letter or digit, so the attribute has no name")
	case r.Prediction == nil || r.NativeRTT <= 0:
		return w, errors.New("no prediction")
	}
	w.at = time.Duration(r.Prediction.RTT)
	w.points = []point{{time.Duration(r.NativeRTT), 1}}
	for _, p := range append(r.Sweep, *r.Prediction) {
		low := p.Relative
		if p.Low > 0 {
			low = min(low, p.Low)
		}
		if p.RTT <= 0 || !(low > 0 && low <= 1) {
			return w, fmt.Errorf("a performance of %v at a round trip of %d ns", low, p.RTT)
		}
		w.points = append(w.points, point{time.Duration(p.RTT), low})
	}
	slices.SortStableFunc(w.points, func(a, b point) int { return cmp.Compare(a.rtt, b.rtt) })
	return w, nil
}

// nameOf returns the name of a trace's file, without its endings, as a name of an attribute.
func nameOf(file string) string {
	name, _, _ := strings.Cut(strings.TrimLeft(path.Base(file), "."), ".")
	name = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' {
			return r
		}
		return '_'
	}, name)
	if strings.Trim(name, "_") == "" {
		return ""
	}
	if name[0] >= '0' && name[0] <= '9' {
		name = "_" + name
	}
	return name[:min(len(name), resourceapi.DeviceMaxIDLength)]
}

// At returns the performance of each workload in per cent of the native one, rounded down. rtt is
// the round trip, 0 for that of the prediction. A workload whose longest predicted round trip is
// shorter is left out.
func (t Table) At(rtt time.Duration) map[string]int64 {
	out := map[string]int64{}
	for _, w := range t.workloads {
		at := rtt
		if at == 0 {
			at = w.at
		}
		if relative, ok := w.relative(at); ok {
			out[w.name] = int64(relative*100 + 1e-9)
		}
	}
	return out
}

// relative returns the performance between two points in proportion.
func (w *workload) relative(rtt time.Duration) (float64, bool) {
	after := slices.IndexFunc(w.points, func(p point) bool { return p.rtt >= rtt })
	switch {
	case after < 0:
		return 0, false
	case after == 0:
		return w.points[0].relative, true
	}
	a, b := w.points[after-1], w.points[after]
	return a.relative + (b.relative-a.relative)*float64(rtt-a.rtt)/float64(b.rtt-a.rtt), true
}

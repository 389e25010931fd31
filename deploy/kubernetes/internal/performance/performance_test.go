package performance

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

const two = `[
 {"file":"/t/resnet50.pt.trace.json.gz","native_rtt_ns":1200,"prediction":{"rtt_ns":6800,"relative":0.92,"low":0.912},
  "sweep":[{"rtt_ns":3200,"relative":0.97},{"rtt_ns":11200,"relative":0.85,"low":0.5}]},
 {"file":"3d-unet.sqlite","native_rtt_ns":1200,"prediction":{"rtt_ns":4900,"relative":0.98}}
]`

// TestTable: performance between predictions is in proportion, the lower end of a range counts, and
// nothing is said beyond the longest round trip.
func TestTable(t *testing.T) {
	table, err := Read(strings.NewReader(two))
	if err != nil {
		t.Fatal(err)
	}
	for rtt, want := range map[time.Duration]map[string]int64{
		0:                       {"resnet50": 91, "_3d_unet": 98}, // each at that of its prediction
		time.Microsecond:        {"resnet50": 100, "_3d_unet": 100},
		2200 * time.Nanosecond:  {"resnet50": 98, "_3d_unet": 99},
		3200 * time.Nanosecond:  {"resnet50": 97, "_3d_unet": 98},
		9000 * time.Nanosecond:  {"resnet50": 70},
		11200 * time.Nanosecond: {"resnet50": 50},
		12 * time.Microsecond:   {},
	} {
		if got := table.At(rtt); !maps.Equal(got, want) {
			t.Errorf("at %v: %v, want %v", rtt, got, want)
		}
	}
	if got := (Table{}).At(0); len(got) > 0 {
		t.Errorf("an empty table: %v", got)
	}
}

// TestRead: one prediction is a table, too. Any other text is refused with a reason.
func TestRead(t *testing.T) {
	one := `{"file":"a.json","native_rtt_ns":1200,"prediction":{"rtt_ns":6800,"relative":0.9}}`
	many := strings.Repeat(one+",", MaxWorkloads)
	for name, test := range map[string]struct{ in, err string }{
		"one":        {in: one},
		"none":       {in: "[]"},
		"text":       {in: "resnet50 91 %", err: "not the output of"},
		"twice":      {in: "[" + one + "," + one + "]", err: "two workloads have the name a"},
		"too many":   {in: "[" + many + one + "]", err: "17 workloads, at most 16"},
		"ranks":      {in: `{"file":"a.json"}`, err: "no prediction"},
		"impossible": {in: `{"file":"a.json","native_rtt_ns":1200,"prediction":{"rtt_ns":6800,"relative":1.9}}`, err: "a performance of 1.9"},
		"no name":    {in: `{"file":"-.json","native_rtt_ns":1200,"prediction":{"rtt_ns":6800,"relative":0.9}}`, err: "has no name"},
		"empty":      {in: "[{}]", err: "has no name"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Read(strings.NewReader(test.in))
			if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error %v, want %q", err, test.err)
			}
		})
	}
}

// TestDoubt: a prediction in doubt is left out, whatever its figures are, and the others count.
func TestDoubt(t *testing.T) {
	const half = `{"file":"a.json","native_rtt_ns":1200,"doubt":"half a trace","prediction":{"rtt_ns":6800,"relative":0.9}},`
	for name, test := range map[string]struct {
		in   string
		want []string
	}{
		"a figure":      {half, []string{"a: half a trace"}},
		"no figure":     {`{"file":"a.json","doubt":"no kernel"},`, []string{"a: no kernel"}},
		"no name":       {`{"file":"-.json","doubt":"no kernel"},`, []string{"-.json: no kernel"}},
		"an impossible": {`{"file":"a.json","native_rtt_ns":1200,"doubt":"half a trace","prediction":{"rtt_ns":6800,"relative":1.9}},`, []string{"a: half a trace"}},
		"many":          {strings.Repeat(half, MaxWorkloads), slices.Repeat([]string{"a: half a trace"}, MaxWorkloads)},
	} {
		t.Run(name, func(t *testing.T) {
			table, err := Read(strings.NewReader("[" + test.in + `{"file":"b.json","native_rtt_ns":1200,"prediction":{"rtt_ns":6800,"relative":0.8}}]`))
			if err != nil || !slices.Equal(table.Doubts, test.want) || !maps.Equal(table.At(0), map[string]int64{"b": 80}) {
				t.Errorf("%v, %v, %v", table.Doubts, table.At(0), err)
			}
		})
	}
}

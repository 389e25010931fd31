package cluster

import (
	"math"
	"os"
	"strings"
	"testing"
)

// One server of 8 GPUs: a GPU is away from day 1 to 5, its box from 3 to 4, another GPU
// from 3 to 6, the host from 7 to 8.
func TestOutages(t *testing.T) {
	all := []outage{{partGPU, 0, 2, 1, 5}, {partBox, 0, 0, 3, 4}, {partGPU, 0, 3, 3, 6}, {partHost, 0, 0, 7, 8}, {partProxy, 1, 0, 9, 10}}
	for _, tc := range []struct {
		pool bool
		want levels
	}{
		{true, levels{3, 3, 1, 0, 0, 0, 0, 0, 3}},
		{false, levels{4, 0, 0, 0, 0, 0, 0, 0, 6}},
	} {
		// Days by number of GPUs away. Pool: 1 GPU on days 1, 2 and 5, 2 on day 4, 8 on days 3 and 9.
		if tc.pool {
			tc.want = levels{4, 3, 1, 0, 0, 0, 0, 0, 2}
		}
		got := newPlant(tc.pool, 2, 8).run(all, 0, 10)
		if len(got) != len(tc.want) {
			t.Fatalf("pool %v: %v, want %v", tc.pool, got, tc.want)
		}
		for n := range got {
			if math.Abs(got[n]-tc.want[n]) > 1e-9 {
				t.Errorf("pool %v: %v days with %d GPUs away, want %v", tc.pool, got[n], n, tc.want[n])
			}
		}
	}
}

// Failures that are more frequent than repairs take no more GPUs than there are, and as
// many terms of the closed form as matter.
func TestSparesWithoutRepair(t *testing.T) {
	r := run(t, `
experiment: failures
servers: [{count: 100, gpus: 8}]
seeds: 1
failures:
  rates: {gpu: 10, box: 10}
  repair: {median-days: 3650, mean-days: 3650}
  years: 1
`)
	for _, row := range []string{"servers, 99 %", "pool, 99.99 %"} {
		if v := cell(t, r, "spares", row, "gpus_closed_form"); v != 800 {
			t.Errorf("%s: %v spares in closed form for 800 GPUs", row, v)
		}
	}
}

// With rare failures of GPUs only, spares of the closed form are those of the Poisson
// distribution: 512 GPUs, 5.2 % a year, 6.3 days: 4 GPUs, or 4 servers of 8.
func TestSpares(t *testing.T) {
	r := run(t, `
experiment: failures
servers: [{count: 64, gpus: 8}]
seeds: 8
failures:
  rates: {gpu: 0.052}
  repair: {median-days: 3, mean-days: 6.3}
  years: 300
  availability: [99.9]
`)
	for row, want := range map[string]float64{"pool, 99.9 %": 4, "servers, 99.9 %": 32} {
		closed, simulated := cell(t, r, "spares", row, "gpus_closed_form"), cell(t, r, "spares", row, "gpus_simulated")
		if closed != want || simulated != want {
			t.Errorf("%s: %v in closed form, %v simulated, want %v", row, closed, simulated, want)
		}
	}
	// The mean is rate times repair.
	want := 512 * 0.052 * 6.3 / daysPerYear
	if v := cell(t, r, "away", "pool", "gpus_mean"); math.Abs(v/want-1) > 0.05 {
		t.Errorf("%v GPUs are away on average, want %v", v, want)
	}
}

// The first year is as the others, also where repairs are longer than it.
func TestFailuresAreStationary(t *testing.T) {
	r := run(t, `
experiment: failures
servers: [{count: 1000, gpus: 8}]
seeds: 40
failures:
  rates: {gpu: 0.1}
  repair: {median-days: 30, mean-days: 365.25}
  years: 1
`)
	// Away are 8000 * 0.1 outages a year times a year on average. Some are of the same GPU.
	want := 8000 * (1 - math.Exp(-0.1))
	if v := cell(t, r, "away", "pool", "gpus_mean"); math.Abs(v/want-1) > 0.02 {
		t.Errorf("%.1f GPUs are away on average, want %.1f", v, want)
	}
}

// Boxes and proxies that fail take all their GPUs, and both ways of counting agree.
func TestSparesOfBoxes(t *testing.T) {
	r := run(t, `
experiment: failures
servers: [{count: 500, gpus: 8}]
seeds: 8
failures:
  rates: {gpu: 0.1, host: 0.2, box: 0.03, proxy: 0.05}
  years: 100
  availability: [99]
  upgrades: [{name: host software, part: host, per-year: 4, hours: 1}]
`)
	for _, row := range []string{"pool, 99 %", "servers, 99 %"} {
		closed, simulated := cell(t, r, "spares", row, "gpus_closed_form"), cell(t, r, "spares", row, "gpus_simulated")
		if math.Abs(closed-simulated) > 8 {
			t.Errorf("%s: %v in closed form, %v simulated", row, closed, simulated)
		}
	}
	if s, p := cell(t, r, "costs", "host software", "servers_gpu_hours_year"), cell(t, r, "costs", "host software", "pool_gpu_hours_year"); s != 500*4*8 || p != 0 {
		t.Errorf("upgrades take %v and %v GPU hours, want 16000 and 0", s, p)
	}
	if s, p := cell(t, r, "costs", "proxy fails", "servers_gpu_hours_year"), cell(t, r, "costs", "proxy fails", "pool_gpu_hours_year"); s != 0 || math.Abs(p-500*0.05*8*5.5*24) > 1 {
		t.Errorf("proxies take %v and %v GPU hours", s, p)
	}
}

const faultText = `[
{"node_id":"a","event_time":1,"event_type":"fault_start","fault_type":{"Level":"Hardware Failure","Class":"GPU","Desc":"x"}},
{"node_id":"b","event_time":2,"event_type":"fault_start","fault_type":{"Level":"Other Failure","Class":"Unknown Error","Desc":"x"}},
{"node_id":"a","event_time":3,"event_type":"fault_end","fault_type":{"Level":"Hardware Failure","Class":"GPU","Desc":"x"}},
{"node_id":"c","event_time":3,"event_type":"fault_end","fault_type":{"Level":"Hardware Failure","Class":"GPU","Desc":"x"}}]`

func TestReadFaults(t *testing.T) {
	faults, nodes, last, err := readFaults(strings.NewReader(faultText))
	if err != nil || nodes != 2 || last != 3 || len(faults) != 2 || faults[0] != (fault{0, faultGPU, 1, 3}) || faults[1].class != faultUnknown || !math.IsInf(faults[1].end, 1) {
		t.Errorf("%v: %+v, %d nodes, day %v", err, faults, nodes, last)
	}
	for _, tc := range [][2]string{
		{"", "faults"},
		{"[]", "no fault starts"},
		{"{}", "want an array"},
		{"[{}, 7]", "event 2"},
		{"[{\"event_type\":\"fault_start\"}", "EOF"},
		{faultText + "[]", "after the array"},
		{`[{"event_time":1,"event_type":"x"}]`, `type "x"`},
		{`[{"event_time":1,"event_type":"fault_start"},{"event_time":0,"event_type":"fault_start"}]`, "event 2: day 0 after day 1"},
	} {
		if _, _, _, err := readFaults(strings.NewReader(tc[0])); err == nil || !strings.Contains(err.Error(), tc[1]) {
			t.Errorf("%q: %v, want %q", tc[0], err, tc[1])
		}
	}
}

func TestReadEventsIsBounded(t *testing.T) {
	if out, err := readEvents(strings.NewReader("[{},{},{}]"), 3); err != nil || len(out) != 3 {
		t.Errorf("%d events, %v", len(out), err)
	}
	if _, err := readEvents(strings.NewReader("[{},{},{},{}]"), 3); err == nil || !strings.Contains(err.Error(), "more than 3 events") {
		t.Errorf("four events: %v", err)
	}
	if _, err := readEvents(&endless{text: "["}, 3); err == nil {
		t.Error("arrays without end are accepted")
	}
}

func TestWrongFailures(t *testing.T) {
	for text, want := range map[string]string{
		"{}":                   "faults (a list) or rates",
		"{rates: {gpu: -1}}":   "gpu -1",
		"{rates: {gpu: .nan}}": "NaN",
		"{faults: no.json}":    "no.json",
		"{rates: {gpu: 1}, repair: {median-days: 3, mean-days: 1}}": "median above 0",
		"{rates: {gpu: 1}, availability: [100]}":                    "availability 100",
		"{rates: {gpu: 1}, years: 0.1}":                             "years 0.1",
		"{rates: {gpu: 1000}, years: 9000}":                         "lower years",
		"{rates: {gpu: 1}, upgrades: [{name: x, part: y}]}":         `part "y"`,
	} {
		_, err := load(t, "experiment: failures\nservers: [{count: 4, gpus: 8}]\nfailures: "+text+"\n")
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// The published list of faults. The figures are those of independent counts of the same
// days; kindest is the time of the GPUs' own faults.
func TestRecordedFaults(t *testing.T) {
	file := os.Getenv("DXPU_FAULTS")
	if file == "" {
		t.Skip("DXPU_FAULTS is not set: the file fault_trace.json of InfiniteHBD's list of faults")
	}
	in, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	faults, _, days, err := readFaults(in)
	if err != nil {
		t.Fatal(err)
	}
	servers := newPlant(false, 400, 8).run(outagesOf(faults, likely, 8, rngOf(0, 6)), 0, days)
	if m, p50, p99, most := servers.mean(), servers.quantile(0.5), servers.quantile(0.99), servers.quantile(1); math.Abs(m-74.1) > 0.2 || p50 != 56 || p99 != 248 || most != 280 {
		t.Errorf("servers: mean %.1f, median %v, 99 %% %v, most %v, want 74.1, 56, 248, 280", m, p50, p99, most)
	}
	for v, want := range map[view][2]float64{likely: {19, 23}, worst: {43, 47}, kindest: {2.9, 3}} {
		pool := newPlant(true, 400, 8).run(outagesOf(faults, v, 8, rngOf(0, 6)), 0, days)
		if m := pool.mean(); m < want[0] || m > want[1] {
			t.Errorf("pool, view %d: %.1f GPUs are away on average, want %v", v, m, want)
		}
	}
}

func FuzzReadFaults(f *testing.F) {
	f.Add(faultText)
	f.Fuzz(func(t *testing.T, text string) {
		faults, nodes, last, err := readFaults(strings.NewReader(text))
		if err != nil {
			return
		}
		if l := newPlant(true, nodes, 8).run(outagesOf(faults, likely, 8, rngOf(0, 6)), 0, last+1); l.quantile(1) > float64(8*nodes) {
			t.Fatalf("%v", l)
		}
	})
}

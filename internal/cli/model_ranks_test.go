package cli

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// rankTraces writes the traces of two ranks of a run. Rank 1 has longer kernels, so rank 0
// waits for it in each collective, for 30 us.
func rankTraces(t *testing.T, info bool) []string {
	t.Helper()
	return pausingRanks(t, info, 0)
}

// pausingRanks is rankTraces with a pause of the hosts in each step, in microseconds.
func pausingRanks(t *testing.T, info bool, pause int) (files []string) {
	t.Helper()
	for rank := range 2 {
		var events []string
		corr, host := 0, 1000*(rank+1)
		call := func(name string, at, dur int) {
			corr++
			events = append(events, fmt.Sprintf(`{"ph":"X","cat":"cuda_runtime","name":%q,"pid":5,"tid":6,"ts":%d,"dur":%d,"args":{"correlation":%d}}`, name, at, dur, corr))
		}
		kernel := func(name string, at, dur int, more string) {
			events = append(events, fmt.Sprintf(`{"ph":"X","cat":"kernel","name":%q,"pid":0,"tid":7,"ts":%d,"dur":%d,"args":{"stream":7,"device":0,"correlation":%d%s}}`, name, at, dur, corr, more))
		}
		for step := range 5 {
			events = append(events, fmt.Sprintf(`{"ph":"X","cat":"user_annotation","name":"ProfilerStep#%d","pid":5,"tid":6,"ts":%d,"dur":%d}`, step, host, 300+pause))
			length := 100 + 30*rank
			call("cudaLaunchKernel", host, 5)
			kernel("k", host+10, length, "")
			call("cudaLaunchKernel", host+6, 5)
			kernel("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", host+11+length, 231-length,
				`,"Collective name":"allreduce","Process Group Name":"0","Process Group Ranks":"[0, 1]"`)
			call("cudaDeviceSynchronize", host+12, 233)
			host += 300 + pause
		}
		head := ""
		if info {
			head = fmt.Sprintf(`"distributedInfo":{"backend":"nccl","rank":%d,"world_size":2},`, rank)
		}
		file := filepath.Join(t.TempDir(), fmt.Sprintf("rank%d.json", rank))
		if err := os.WriteFile(file, []byte("{"+head+`"traceEvents":[`+strings.Join(events, ",\n")+"]}"), 0o600); err != nil {
			t.Fatal(err)
		}
		files = append(files, file)
	}
	return files
}

func TestPredictRanks(t *testing.T) {
	files := rankTraces(t, true)
	// The traces tell their ranks, so their order does not matter.
	out, errOut, err := runModel("predict", "--ranks", files[1], files[0], "--rtt", "11.2us", "--costs", "paper", "--at-least", "90%", "--json")
	if err != nil || errOut != "" {
		t.Fatal(err, errOut)
	}
	var got jobJSON
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	zero, one := got.Ranks[0], got.Ranks[1]
	if zero.Name != "0" || one.Name != "1" || got.Matched != 10 || got.Unmatched != 0 || zero.Waiting != 5*30_000 || one.Waiting != 0 || zero.Work != 5*101_000 {
		t.Errorf("%+v", got)
	}
	if got.Relative >= 1 || got.Relative < 0.8 || got.Limit.RTT <= 1200 || got.Limit.Low != nil {
		t.Errorf("%v, limit %+v", got.Relative, got.Limit)
	}
	if got.Range.Low != got.Relative || got.Range.High != got.Relative || got.Sweep[9].Low != got.Sweep[9].Relative || !strings.HasPrefix(got.Verdict, "well suited") {
		t.Errorf("%+v, %s", got.Range, got.Verdict)
	}
	// With only rank 0 remote, its added time falls into its waiting for rank 1.
	out, _, err = runModel("predict", "--ranks", files[0], files[1], "--rtt", "11.2us", "--costs", "paper", "--remote", "0")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"2 ranks", "local", "remote", "0.150 ms -> ", "WAITING FOR OTHERS"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
}

// A job of ranks whose GPUs idle has a range, and so has everything that follows from it.
func TestPredictIdleRanks(t *testing.T) {
	files := pausingRanks(t, true, 300)
	out, _, err := runModel(append([]string{"predict", "--ranks", "--at-least", "95%", "--rtt", "25us", "--json"}, files...)...)
	if err != nil {
		t.Fatal(err)
	}
	var got jobJSON
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Range.Low >= got.Range.High-0.05 || got.Range.High != got.Relative || len(got.Range.Why) != 1 || got.Doubt != got.Range.Why[0] || !strings.HasPrefix(got.Verdict, "between") {
		t.Errorf("%v, %+v, %s", got.Relative, got.Range, got.Verdict)
	}
	if r := got.Ranks[0]; r.Prediction.Low >= r.Prediction.Relative || r.AloneLow >= r.Alone || got.Limit.Low == nil || *got.Limit.Low >= got.Limit.RTT || got.Sweep[10].Low != got.Range.Low {
		t.Errorf("%+v, limit %+v, sweep %+v", r, got.Limit, got.Sweep)
	}
	text, _, err := runModel(append([]string{"predict", "--ranks", "--rtt", "25us"}, files...)...)
	if want := fmt.Sprintf("%.1f to %.1f %% of native", 100*got.Range.Low, 100*got.Range.High); err != nil || !strings.Contains(text, want) || !strings.Contains(text, "range: the GPU of a rank is busy") {
		t.Errorf("%v: no %q in\n%s", err, want, text)
	}
	// The same for a change of one rank's program.
	text, _, err = runModel("predict", files[0], "--what-if", "graphs,batch=2")
	if err != nil || !strings.Contains(text, "range of graphs: ") || strings.Count(text, " a part or none of the host's time") != 1 {
		t.Errorf("%v\n%s", err, text)
	}
}

func TestPredictSeveralTraces(t *testing.T) {
	files := rankTraces(t, false)
	for name, tc := range map[string]struct {
		args []string
		want string
		fail bool
	}{
		"a table":             {append([]string{"--at-least", "0.9"}, files...), "LONGEST RTT", false},
		"ranks without order": {append([]string{"--ranks"}, files...), "2 ranks", false},
		"one rank":            {[]string{"--ranks", files[0]}, "two or more", true},
		"twice the same rank": {append([]string{"--ranks"}, rankTraces(t, true)[0], rankTraces(t, true)[0]), "both of rank 0", true},
		"twice the same file": {append([]string{"--ranks"}, files[0], files[0]), "is given twice", true},
		"what if of several":  {append([]string{"--what-if", "graphs"}, files...), "or add --json", true},
		"no collectives":      {[]string{"--ranks", kineto21, kineto25}, "share no collective", true},
		"an unknown rank":     {append([]string{"--ranks", "--remote", "0,7"}, files...), "no trace is of rank 7", true},
		"no rank":             {append([]string{"--ranks", "--remote", "x"}, files...), "want ranks such as 0,4-7", true},
		"remote without":      {append([]string{"--remote", "0"}, files...), "add --ranks", true},
		"too fast":            {append([]string{"--ranks", "--peer-rate", "2"}, files...), "--peer-rate 2", true},
		"plot of several":     {append([]string{"--plot"}, files...), "for one trace", true},
		"too good":            {append([]string{"--at-least", "120%"}, files...), "such as 95%", true},
		"what if":             {[]string{"--what-if", "graphs,pinned,batch=2", files[0]}, "batch=2", false},
		"what if of ranks":    {append([]string{"--ranks", "--what-if", "graphs"}, files...), "leave out --ranks", true},
		"an unknown change":   {[]string{"--what-if", "magic", files[0]}, "want graphs, pinned or batch=FACTOR", true},
		"a batch of zero":     {[]string{"--what-if", "batch=0", files[0]}, "such as batch=2", true},
		"an absurd batch":     {[]string{"--what-if", "batch=1e9", files[0]}, "at most 1024", true},
		"a missing file":      {append([]string{"absent.json"}, files...), "absent.json", true},
	} {
		t.Run(name, func(t *testing.T) {
			out, _, err := runModel(append([]string{"predict"}, tc.args...)...)
			text := out
			if err != nil {
				text = err.Error()
			}
			if (err != nil) != tc.fail || !strings.Contains(text, tc.want) {
				t.Errorf("%v: %s", err, text)
			}
		})
	}
}

// chakraTrace is a Chakra execution trace: an operator of the host and the kernel that it
// launched, of 5 and of 50 us, ten times.
func chakraTrace(t *testing.T) string {
	t.Helper()
	out := []byte("\x07\x0a\x051.0.0")
	for i := range 10 {
		host, gpu := byte(2*i+1), byte(2*i+2)
		for _, node := range [][]byte{
			append([]byte{0x08, host, 0x12, 2, 'o', 'p', 0x18, 4, 0x38, 5, 0x2a, 1, byte(max(2*i-1, 0))}, "\x52\x0e\x0a\x09is_cpu_op\xd8\x01\x01"...),
			append([]byte{0x08, gpu, 0x12, 1, 'k', 0x18, 4, 0x38, 50, 0x2a, 1, host}, "\x52\x0a\x0a\x06stream\x48\x07"...),
		} {
			out = append(append(out, byte(len(node))), node...)
		}
	}
	file := filepath.Join(t.TempDir(), "chakra.et")
	if err := os.WriteFile(file, out, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A trace without times is predicted with a range, and its ranks are not joined.
func TestPredictChakra(t *testing.T) {
	file := chakraTrace(t)
	out, errOut, err := runModel("predict", file, "--rtt", "11.2us", "--costs", "paper")
	if err != nil || errOut != "" {
		t.Fatal(err, errOut)
	}
	for _, want := range []string{"chakra, unnamed GPU, 10 operations on 1 streams, 10 calls on 1 threads", "note: a Chakra trace has no times of the run", "83."} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if _, _, err := runModel("predict", "--ranks", file, chakraTrace(t)); err == nil || !strings.Contains(err.Error(), "has no times of the run") {
		t.Error(err)
	}
}

// Some of the ranks of a run, and ranks that not all traces tell.
func TestPredictSomeRanks(t *testing.T) {
	files := rankTraces(t, true)
	text, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(files[0], []byte(strings.Replace(string(text), `"world_size":2`, `"world_size":8`, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, _, err := runModel("predict", "--ranks", files[0], files[1])
	if err != nil || !strings.Contains(out, "no verdict, because the traces are of runs of different numbers of ranks, 2 to 8; the run has 8 ranks and only 2 traces") {
		t.Error(err, out)
	}
	// Rank 1 and a trace that does not tell its rank: they are 0 and 1, not both 1.
	out, _, err = runModel("predict", "--ranks", files[1], rankTraces(t, false)[0], "--remote", "1")
	if err != nil || strings.Count(out, " local ") != 1 || strings.Count(out, " remote ") != 1 {
		t.Error(err, out)
	}
}

// The costs that a fit writes are those with which a prediction meets the measurements.
func TestFitWritesCosts(t *testing.T) {
	trace, costs := rankTraces(t, false)[1], filepath.Join(t.TempDir(), "costs.json")
	fitted, _, err := runModel("fit", trace, "--measured", "6.8us=322us,11.2us=337us", "--write", costs)
	if err != nil || !strings.Contains(fitted, "A kernel costs") {
		t.Fatal(err, fitted)
	}
	out, _, err := runModel("predict", trace, "--costs", costs, "--rtt", "11.2us", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var got analysisJSON
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if want := 300.0 / 337; got.Prediction.Relative < want-0.005 || got.Prediction.Relative > want+0.005 || got.Costs != "fitted" {
		t.Errorf("%s: %v, want %v; %s", got.Costs, got.Prediction.Relative, want, fitted)
	}
	for text, want := range map[string]string{
		`{"name":"x","kernel":{"slope":-1}}`: "kernel: slope -1", `{"name":"x","unknown":1}`: "unknown", `{}`: "is missing", `nonsense`: "costs",
	} {
		if err := os.WriteFile(costs, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := runModel("predict", trace, "--costs", costs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, bad := range [][]string{{"6.8us"}, {"x=1ms"}, {"6.8us=-1ms"}, {"1us=1ms"}} {
		if _, _, err := runModel("fit", trace, "--measured", bad[0]); err == nil {
			t.Errorf("%s is accepted", bad[0])
		}
	}
}

func TestTimelineForPerfetto(t *testing.T) {
	file := filepath.Join(t.TempDir(), "timeline.json")
	out, _, err := runModel("predict", kineto25, "--perfetto", file)
	if err != nil || !strings.Contains(out, "critical path at 6.8µs") || !strings.Contains(out, "fitted to V100 GPUs and were not measured on Test GPU 9") {
		t.Fatal(err, out)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var events []chromeEvent
	if err := json.Unmarshal(text, &events); err != nil {
		t.Fatal(err)
	}
	rows := map[int]int{}
	for _, e := range events {
		if e.Phase == "X" {
			rows[e.Process]++
		}
	}
	if rows[hostRows] == 0 || rows[gpuRows] != 4 || rows[pathRow] == 0 {
		t.Errorf("%v", rows)
	}
	for range 6 { // the same trace gives the same bytes
		if _, _, err := runModel("predict", kineto25, "--perfetto", file); err != nil {
			t.Fatal(err)
		}
		if again, err := os.ReadFile(file); err != nil || !bytes.Equal(again, text) {
			t.Fatalf("another timeline of the same trace, %v", err)
		}
	}
}

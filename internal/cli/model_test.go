package cli

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func runModel(args ...string) (out, errOut string, err error) {
	cmd := newModelCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var o, e bytes.Buffer
	cmd.SetOut(&o)
	cmd.SetErr(&e)
	cmd.SetArgs(args)
	err = cmd.Execute()
	return o.String(), e.String(), err
}

const (
	kineto21 = "../model/trace/testdata/2021.json"
	kineto25 = "../model/trace/testdata/2025.json"
	nsysFile = "../model/trace/testdata/small.sqlite"
)

func TestModelCommands(t *testing.T) {
	for _, tc := range []struct {
		name  string
		args  []string
		want  []string // parts of the output, or of the error where fails
		fails bool
	}{
		{"throughput of the paper's first system", []string{"throughput", "--tags", "140", "--mrrs", "128", "--rtt", "6.8us"}, []string{"Equation 1", "2.64 GB/s"}, false},
		{"of its second", []string{"throughput", "--tags", "140", "--mrrs", "128", "--rtt", "4.9us"}, []string{"Equation 1", "3.66 GB/s"}, false},
		{"generation 6", []string{"throughput", "--gen", "6", "--tags", "15360", "--mrrs", "4096"}, []string{"PCIe 6 x16", "128 GB/s", "has 15360"}, false},
		{"json", []string{"throughput", "--json"}, []string{`"equation1": 2635294117.`, `"rtt_ns": 6800`}, false},
		{"eight GPUs", []string{"throughput", "--gpus", "8", "--proxies", "2"}, []string{"16.8 GB/s", "23.2 GB/s", "at least 11.6 GB/s", "74 %", "NVLink"}, false},
		{"tags of a later generation", []string{"throughput", "--tags", "300"}, []string{"PCIe 3 has at most 256", "--gen"}, true},
		{"no GPU", []string{"throughput", "--gpus", "0"}, []string{"--gpus 0: want 1 to"}, true},
		{"no tags", []string{"throughput", "--tags", "0"}, []string{"0 tags"}, true},
		{"MRRS that would wrap", []string{"throughput", "--mrrs", "65664"}, []string{"Max_Read_Request_Size"}, true},
		{"generation that would wrap", []string{"throughput", "--gen", "259"}, []string{"generation"}, true},
		{"no unit", []string{"throughput", "--rtt", "6.8"}, []string{"6.8us"}, true},
		{"below native", []string{"throughput", "--rtt", "1us"}, []string{"native"}, true},
		{"argument", []string{"throughput", "x"}, []string{"x"}, true},
		{"explain", []string{"explain"}, []string{"dRTT = 5.6µs", "17.92 kB", "kernel", "9.51µs", "across two"}, false},
		{"paper", []string{"paper"}, []string{"Table 4", "hardware at 6.8 us", "90.10", "not enough input given", "fitted"}, false},
		{"paper without notes", []string{"paper", "--notes=false"}, []string{"Table 14"}, false},
		{"paper as json", []string{"paper", "--json"}, []string{`"where": "Table 12"`, `"Slope"`}, false},
		{"trace of 2021", []string{"predict", kineto21}, []string{"Test GPU", "ProfilerStep#5", "training steps", "advice", "void k<float>(int)"}, false},
		{"trace of 2025", []string{"predict", kineto25, "--costs", "paper", "--plot"}, []string{"replay, paper costs", "+ additive", "* replay"}, false},
		{"nsys", []string{"predict", nsysFile, "--top", "1"}, []string{"nsys", "Test H100", "2 training steps", "kernel_400"}, false},
		{"sweep", []string{"predict", kineto21, "--sweep", "2us:10us:4us"}, []string{"2µs", "6µs", "10µs"}, false},
		{"native step", []string{"predict", nsysFile, "--native-step", "3ms"}, []string{"host's time is scaled by 0."}, false},
		{"native step too short", []string{"predict", nsysFile, "--native-step", "1us"}, []string{"impossible"}, true},
		{"native step too long", []string{"predict", nsysFile, "--native-step", "1h"}, []string{"is longer than the", "give the time of one step"}, true},
		{"negative native step", []string{"predict", nsysFile, "--native-step", "-1us"}, []string{"is negative"}, true},
		{"no such costs", []string{"predict", kineto21, "--costs", "x"}, []string{"hardware, paper, or a file"}, true},
		{"bad sweep", []string{"predict", kineto21, "--sweep", "1us:2us"}, []string{"--sweep"}, true},
		{"sweep below native", []string{"predict", kineto21, "--sweep", "1us"}, []string{"below the native"}, true},
		{"endless sweep", []string{"predict", kineto21, "--sweep", "2us:1s:1ns"}, []string{"more than"}, true},
		{"negative top", []string{"predict", kineto21, "--top", "-1"}, []string{"--top"}, true},
		{"no file", []string{"predict", "nothing.json"}, []string{"nothing.json"}, true},
		{"no trace", []string{"predict", "model_test.go"}, []string{"not a trace"}, true},
		{"svg with another name", []string{"predict", kineto21, "--svg", "x.png"}, []string{".svg"}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, _, err := runModel(tc.args...)
			if (err != nil) != tc.fails {
				t.Fatalf("error %v", err)
			}
			if err != nil {
				out = err.Error()
			}
			for _, part := range tc.want {
				if !strings.Contains(out, part) {
					t.Errorf("output does not have %q:\n%s", part, out)
				}
			}
		})
	}
}

func TestModelPredictJSON(t *testing.T) {
	out, _, err := runModel("predict", kineto21, "--json", "--rtt", "6.8us")
	if err != nil {
		t.Fatal(err)
	}
	var got analysisJSON
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Format != "kineto" || got.Dropped != 0 || len(got.Sweep) != len(defaultSweep) || len(got.Steps) != 1 || got.Prediction.RTT != 6800 {
		t.Errorf("%+v", got)
	}
	if got.Prediction.Relative <= 0 || got.Prediction.Relative > 1 || got.Sweep[0].Relative != 1 {
		t.Errorf("relative %v, native %v", got.Prediction.Relative, got.Sweep[0].Relative)
	}
	again, _, _ := runModel("predict", kineto21, "--json", "--rtt", "6.8us")
	if d := cmp.Diff(out, again); d != "" {
		t.Error(d)
	}
}

// Every figure of a prediction with a range has its lower end: the prediction, each round
// trip of the sweep, and the answer to --at-least.
func TestModelPredictRanges(t *testing.T) {
	out, _, err := runModel("predict", kineto21, "--json", "--rtt", "6.8us", "--sweep", "1.2us,6.8us,20us", "--at-least", "97%")
	if err != nil {
		t.Fatal(err)
	}
	var got analysisJSON
	if err := json.Unmarshal([]byte(out), &got); err != nil {
		t.Fatal(err)
	}
	if got.Range.Low >= got.Range.High || got.Prediction.Low != got.Range.Low || got.Sweep[1].Low != got.Range.Low {
		t.Errorf("range %v, prediction %v, sweep %v", got.Range, got.Prediction, got.Sweep)
	}
	if got.Sweep[0].Low != 1 || got.Sweep[2].Low >= got.Sweep[1].Low {
		t.Errorf("the lower end does not fall with the round trip: %v", got.Sweep)
	}
	low := got.Limit.Low
	if low == nil || *low >= got.Limit.RTT {
		t.Fatalf("%+v: want a shorter round trip at the lower end", got.Limit)
	}
	for rtt, reached := range map[int64]bool{*low: true, *low + 1: false} {
		out, _, err := runModel("predict", kineto21, "--json", "--rtt", time.Duration(rtt).String())
		var at analysisJSON
		if err = errors.Join(err, json.Unmarshal([]byte(out), &at)); err != nil {
			t.Fatal(err)
		}
		if (at.Range.Low >= 0.97) != reached {
			t.Errorf("the lower end at %v is %v", time.Duration(rtt), at.Range.Low)
		}
	}
}

// Damage is reported on standard error and in JSON, and --strict makes it an error.
func TestModelPredictDamage(t *testing.T) {
	whole, err := os.ReadFile(kineto21)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "truncated.json")
	damaged := bytes.Replace(whole, []byte(`"ts": 1623142623460050`), []byte(`"ts": oops`), 1)
	if err := os.WriteFile(file, damaged[:len(damaged)-30], 0o600); err != nil {
		t.Fatal(err)
	}
	out, errOut, err := runModel("predict", file, "--json")
	if err != nil || !strings.Contains(errOut, "warning: 2 of") || !strings.Contains(errOut, "truncated") || !strings.Contains(out, `"dropped": 2`) ||
		!strings.Contains(out, "no verdict, because the trace is incomplete") || !strings.Contains(out, `"doubt": "the trace is incomplete: 2 of`) {
		t.Errorf("%v\n%s\n%s", err, errOut, out)
	}
	if _, _, err = runModel("predict", file, "--strict"); err == nil || !strings.Contains(err.Error(), "2 of") {
		t.Errorf("--strict: %v", err)
	}
}

// Both plots are complete XML documents with their labels.
func TestModelPredictPlots(t *testing.T) {
	dir := t.TempDir()
	sweep, cdf := filepath.Join(dir, "sweep.svg"), filepath.Join(dir, "cdf.svg")
	if _, _, err := runModel("predict", nsysFile, "--svg", sweep, "--cdf", cdf); err != nil {
		t.Fatal(err)
	}
	for file, label := range map[string]string{sweep: "round trip of a PCIe memory read", cdf: "kernel duration"} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(b, []byte(label)) {
			t.Errorf("%s has no label %q", file, label)
		}
		for d := xml.NewDecoder(bytes.NewReader(b)); ; {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", file, err)
			}
		}
	}
	if _, _, err := runModel("predict", nsysFile, "--svg", filepath.Join(dir, "no", "such.svg")); err == nil {
		t.Error("no error for a folder that does not exist")
	}
}

func TestParseSweep(t *testing.T) {
	for _, tc := range []struct {
		in   string
		want []time.Duration
	}{
		{"2us,4us", []time.Duration{2000, 4000}},
		{"2us:5us:1us", []time.Duration{2000, 3000, 4000, 5000}},
		{"7us", []time.Duration{7000}},
	} {
		got, err := parseSweep("--sweep", tc.in, 1200)
		if d := cmp.Diff(tc.want, got); d != "" || err != nil {
			t.Errorf("%q: %v %s", tc.in, err, d)
		}
	}
	for _, in := range []string{",", "a:b:c", "1us:2us:3us:4us", "2us:3us:0us", "3us:2us:1us", "-2us"} {
		if got, err := parseSweep("--sweep", in, 1200); err == nil {
			t.Errorf("%q: %v", in, got)
		}
	}
}

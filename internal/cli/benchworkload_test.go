package cli

import (
	"bytes"
	"encoding/json"
	"math"
	"strings"
	"testing"
)

func runWorkload(args ...string) (out, errOut string, err error) {
	cmd := newBenchWorkloadCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var o, e bytes.Buffer
	cmd.SetOut(&o)
	cmd.SetErr(&e)
	cmd.SetArgs(args)
	err = cmd.Execute()
	return o.String(), e.String(), err
}

func TestBenchWorkload(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"trace of 2021", []string{kineto21}, []string{"virtual time", "140 tags of 128 bytes", "training steps", "6.8µs", "points", "launch to start 1.5 x dRTT"}},
		{"sweep and settings", []string{kineto25, "--rtt", "2us:10us:4us", "--tags", "16", "--mrrs", "512"}, []string{"16 tags of 512", "6µs", "10µs"}},
		{"nsys", []string{nsysFile, "--steps", "1", "--quiet"}, []string{"basis: 1 training steps"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			out, _, err := runWorkload(tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			for _, part := range tc.want {
				if !strings.Contains(out, part) {
					t.Errorf("no %q in\n%s", part, out)
				}
			}
		})
	}
}

func TestBenchWorkloadJSON(t *testing.T) {
	out, _, err := runWorkload(nsysFile, "--rtt", "6.8us", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var r struct {
		Trace        string      `json:"trace"`
		Operations   int         `json:"operations"`
		Reproduction float64     `json:"reproduction"`
		Points       []pointJSON `json:"points"`
	}
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		t.Fatal(err)
	}
	if r.Trace != nsysFile || r.Operations == 0 || math.Abs(r.Reproduction) > 0.02 || len(r.Points) != 2 {
		t.Fatalf("%+v", r)
	}
	if p := r.Points[1]; p.RTT != 6800 || p.System <= 0 || p.System >= 1 || math.Abs(p.Deviation) > 0.02 {
		t.Errorf("%+v", p)
	}
}

func TestBenchWorkloadRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"no file", []string{"nothing.json"}, "nothing.json"},
		{"no trace", []string{"model_test.go"}, "not a trace"},
		{"below native", []string{kineto21, "--rtt", "1us"}, `--rtt "1us": 1µs is below the native`},
		{"no native", []string{kineto21, "--native-rtt", "0us"}, "round trip"},
		{"no tags", []string{kineto21, "--tags", "0"}, "0 tags"},
		{"more tags than the GPU has", []string{kineto21, "--tags", "2000"}, "1024"},
		{"MRRS that would wrap", []string{kineto21, "--mrrs", "65664"}, "Max_Read_Request_Size"},
		{"negative steps", []string{kineto21, "--steps", "-1"}, "0 or more"},
		{"negative limit", []string{kineto21, "--limit", "-1s"}, "is negative"},
		{"stretch", []string{kineto21, "--stretch", "100000"}, "--stretch"},
		{"cipher", []string{kineto21, "--real", "--cipher", "rot13"}, "rot13"},
		{"too little stretch", []string{kineto21, "--real", "--stretch", "1"}, "loopback"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if _, _, err := runWorkload(tc.args...); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
}

package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"math"
	"strings"
	"testing"
)

// runSim returns what a command writes to its standard output, without the lines about
// progress that it writes to the other one when it takes long.
func runSim(args ...string) (string, error) {
	cmd := newSimCommand()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(io.Discard)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

func TestSimBandwidth(t *testing.T) {
	out, err := runSim("bandwidth", "--rtt", "6.8us,4.9us", "--size", "256KiB")
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"EQUATION 1", "6.8µs", "4.9µs", "2.64 GB/s", "3.66 GB/s"} {
		if !strings.Contains(out, part) {
			t.Errorf("no %q in\n%s", part, out)
		}
	}
	out, err = runSim("bandwidth", "--tags", "16", "--mrrs", "256", "--rtt", "10us", "--size", "40960", "--clear", "--json")
	if err != nil {
		t.Fatal(err)
	}
	var rows []simBandwidthRow
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 1 {
		t.Fatalf("%v in %s", err, out)
	}
	if r := rows[0]; r.Tags != 16 || r.MRRS != 256 || r.RTT != 10000 || r.Size != 40960 || math.Abs(r.Deviation) > 0.02 {
		t.Errorf("%+v", r)
	}
}

func TestSimBandwidthRefuses(t *testing.T) {
	for _, c := range []struct{ name, flag, value, want string }{
		{"no tags", "--tags", "0", "tags"},
		{"MRRS", "--mrrs", "100", "Max_Read_Request_Size"},
		{"MRRS that would wrap", "--mrrs", "65664", "Max_Read_Request_Size"},
		{"round trip without a unit", "--rtt", "6.8", "unit"},
		{"empty round trip", "--rtt", "6.8us,", "round trip"},
		{"size", "--size", "lots", "lots"},
		{"size that would wrap", "--size", "9223372036854775807MiB", "is not a size"},
		{"huge size", "--size", "2GiB", "want 1 to"},
		{"negative uplink", "--uplink", "-1", "uplink"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := runSim("bandwidth", c.flag, c.value); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want one with %q", err, c.want)
			}
		})
	}
}

// The failure of a path shows what is left, and for how long a GPU stands still.
func TestSimPacketsFailure(t *testing.T) {
	args := []string{"packets", "--gpus", "4", "--paths", "2", "--box-link", "50", "--tlps", "8", "--time", "200us", "--fail-after", "100us", "--detect", "20us"}
	out, err := runSim(args...)
	if err != nil || !strings.Contains(out, "before the failure of a path") {
		t.Fatal(err, out)
	}
	out, err = runSim(append(args, "-o", "json")...)
	if err != nil {
		t.Fatal(err)
	}
	var rows []simPacketsRow
	if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) != 1 {
		t.Fatal(err, out)
	}
	if r := rows[0]; r.Gap < 20_000 || r.After > 0.7*r.Before || r.After == 0 || r.Lost == 0 {
		t.Errorf("%+v", r)
	}
	if _, err := runSim("packets", "--fail-after", "10us"); err == nil || !strings.Contains(err.Error(), "want two paths") {
		t.Errorf("%v", err)
	}
}

package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/bench"
)

// Each benchmark runs, checks its data and reports all figures. Speed is not tested,
// because it depends on the load of the machine.
func TestBenchRuns(t *testing.T) {
	for _, c := range []struct {
		name    string
		figures int
		names   []string
		args    string
	}{
		{"rtt", 7, []string{"embedded host, remote GPU", "vfio-user client, remote GPU", "native: embedded host, no network"}, ""},
		{"rtt", 7, []string{"embedded host, remote GPU"}, "--cipher none --mtu 1472 --fault loss=1%,dup=1%"},
		{"write", 3, []string{"embedded host, remote GPU", "vfio-user client, remote GPU"}, "--cipher none"},
		{"dma", 27, []string{
			"device to host, embedded host, MPS 4096, MRRS 4096", "host to device, vfio-user, shared memory, MPS 128, MRRS 512",
			"CPU writes, embedded host, MPS 4096, MRRS 4096", "bare TCP", "DMA reads, 100µs added",
		}, "--size 256KiB"},
		{"convert", 3, []string{"header only", "4096 bytes of payload"}, ""},
		{"scale", 6, []string{"device to host, 34 bindings", "memory of an idle binding, host proxy"}, "--cipher none --bindings 2,34 --size 64KiB"},
	} {
		t.Run(c.name+" "+c.args, func(t *testing.T) {
			if testing.Short() && (c.name == "dma" || c.name == "scale") {
				t.Skip("moves much data")
			}
			args := append([]string{"bench", c.name, "--one-process", "--duration", "1ms", "--rounds", "1", "--json"}, strings.Fields(c.args)...)
			var out, stderr bytes.Buffer
			if code := Main(args, strings.NewReader(""), &out, &stderr); code != exitOK {
				t.Fatalf("exit code %d: %s", code, stderr.String())
			}
			d := json.NewDecoder(&out)
			d.DisallowUnknownFields()
			var r bench.Report
			if err := d.Decode(&r); err != nil {
				t.Fatal(err)
			}
			checkReport(t, &r, c.name, c.figures, c.names)
		})
	}
}

func checkReport(t *testing.T, r *bench.Report, name string, figures int, names []string) {
	t.Helper()
	if r.Bench != name || r.Setup.Rounds != 1 || r.Setup.DurationNS != 1e6 || r.Setup.Processes || r.Setup.Go == "" || len(r.Figures) < figures {
		t.Fatalf("%+v", r)
	}
	found := map[string]bench.Figure{}
	for _, f := range r.Figures {
		found[f.Name] = f
		if f.Value < 0 || f.Unit == "" || f.Bare != "" && (f.BareValue <= 0 || f.Ratio <= 0) {
			t.Errorf("%+v", f)
		}
	}
	for _, n := range names {
		if _, ok := found[n]; !ok {
			t.Errorf("no figure %q", n)
		}
	}
	if name == "convert" {
		if f := found["header only"]; f.Allocs == nil || *f.Allocs != 0 {
			t.Errorf("allocations: %+v", f)
		}
	}
	if s := r.Split; name == "rtt" && (s == nil || s.Total <= 0 || s.Original <= 0 || s.Network <= 0 || s.Paper.Total != 6.8) {
		t.Errorf("split: %+v", s)
	}
}

func TestBenchRefuses(t *testing.T) {
	for _, c := range []struct{ name, args, want string }{
		{"cipher", "--cipher rot13", "aes-256-gcm, none"},
		{"fault", "--fault loss=lots", "want a share"},
		{"rounds", "--rounds 0", "want 1 to 1000"},
		{"MTU", "--mtu 100", "--mtu 100: want"},
		{"duration", "--duration -1s", "is not positive"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var stderr bytes.Buffer
			code := Main(append([]string{"bench", "convert"}, strings.Fields(c.args)...), strings.NewReader(""), &stderr, &stderr)
			if code != exitUsage || !strings.Contains(stderr.String(), c.want) {
				t.Errorf("exit code %d: %s", code, stderr.String())
			}
		})
	}
}

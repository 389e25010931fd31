package cli

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/dxpu-project/dxpu/internal/agent"
)

// report is that of a host with two slots, one of them bound, after n TLPs.
func report(at time.Duration, n uint64) agent.Report {
	return agent.Report{
		Role: "host", Time: time.Date(2026, 11, 21, 1, 2, 3, 0, time.UTC).Add(at),
		Slots: []agent.SlotReport{
			{
				Slot: 0, Counters: agent.SlotCounters{Interrupts: n / 10, DMARefused: 2}, Tags: &agent.TagsReport{InFlight: 3, Total: 64},
				Binding: &agent.BindingReport{
					ID: "b-1", Epoch: 7, State: "attached", Peer: agent.PeerReport{Node: 9, Slot: 4},
					Link: &agent.LinkReport{
						State: "up", TLPsOut: n, TLPsIn: 2 * n, BytesOut: 1000 * n, BytesIn: 4000 * n, Retransmissions: n / 100,
						Drops: map[string]uint64{"replay": 5, "corrupt": 1},
						Sent:  agent.RoundTripReport{Smoothed: 45_500, Samples: 9}, Served: agent.RoundTripReport{Smoothed: 2_250, Samples: 3},
						Paths: []agent.PathReport{{Usable: true, SRTT: 40_000, MinRTT: 31_000}, {Usable: true, SRTT: 33_000, MinRTT: 30_500}, {SRTT: 9, MinRTT: 9}},
					},
				},
			},
			{Slot: 1, Device: "DX100"},
		},
	}
}

// fakeProxy answers with one report after the other, and repeats the last one.
func fakeProxy(t *testing.T, reports ...agent.Report) *httptest.Server {
	t.Helper()
	var asked atomic.Int64
	mux := http.NewServeMux()
	mux.Handle("GET /slots", agent.SlotsHandler(func() agent.Report {
		return reports[min(int(asked.Add(1)), len(reports))-1]
	}))
	srv := httptest.NewServer(mux)
	t.Cleanup(srv.Close)
	return srv
}

// dxpu runs a command line that must succeed, and returns its output.
func dxpu(t *testing.T, args ...string) (stdout, stderr string) {
	t.Helper()
	var out, errOut bytes.Buffer
	if code := Main(args, strings.NewReader(""), &out, &errOut); code != exitOK {
		t.Fatalf("dxpu %s: exit code %d\n%s", strings.Join(args, " "), code, errOut.String())
	}
	return out.String(), errOut.String()
}

func TestTop(t *testing.T) {
	srv := fakeProxy(t, report(0, 1000), report(2*time.Second, 3000))
	got, _ := dxpu(t, "top", "--once", "--interval", "1ms", "--all", "--admin", srv.URL)
	want := `host at 01:02:05, 2 slots, 1.0 MB/s out, 4.0 MB/s in

SLOT  BINDING  EPOCH  PEER  STATE     LEAST    NETWORK  REQUEST  FAR      HERE    TLP/S OUT  IN    MB/S OUT  IN   RESENT/S  TAGS  IRQ/S  NOTES
0     b-1      7      9/4   attached  30.5 µs  33.0 µs  45.5 µs  15.0 µs  2.2 µs  1000       2000  1.0       4.0  10        3/64  100    path 2 is broken, DMA refused 2, dropped corrupt 1, dropped replay 5
1     -        -      -     free      -        -        -        -        -       -          -     -         -    -         -     -      DX100
`
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTopJSON(t *testing.T) {
	srv := fakeProxy(t, report(0, 1000), report(2*time.Second, 3000))
	got, _ := dxpu(t, "top", "--once", "--json", "--interval", "1ms", "--admin", srv.URL)
	var out top
	if err := json.Unmarshal([]byte(got), &out); err != nil {
		t.Fatal(err)
	}
	if len(out.Slots) != 1 || out.Elapsed != 2*time.Second || out.Role != "host" {
		t.Fatalf("%+v", out)
	}
	s := &out.Slots[0]
	want := topRates{TLPsOut: 1000, TLPsIn: 2000, MBOut: 1, MBIn: 4, Retransmissions: 10, Interrupts: 100}
	if s.Rates != want || s.Far != 15*time.Microsecond || s.Binding.Link.Drops["replay"] != 5 {
		t.Errorf("%+v, want the rates %+v", s, want)
	}
}

// A new link has counted from zero, and no rate is negative.
func TestTopRates(t *testing.T) {
	edit := func(r agent.Report, f func(*agent.SlotReport)) agent.Report {
		f(&r.Slots[0])
		return r
	}
	for _, tc := range []struct {
		name      string
		prev, cur agent.Report
		want      float64
	}{
		{"the same link", report(0, 1000), report(time.Second, 1500), 500},
		{"was free", edit(report(0, 0), func(s *agent.SlotReport) { s.Binding = nil }), report(time.Second, 1500), 1500},
		{"another binding", edit(report(0, 1000), func(s *agent.SlotReport) { s.Binding.ID = "b-0" }), report(time.Second, 1500), 1500},
		{"another epoch", edit(report(0, 1000), func(s *agent.SlotReport) { s.Binding.Epoch-- }), report(time.Second, 1500), 1500},
		{"no link", report(0, 1000), edit(report(time.Second, 1500), func(s *agent.SlotReport) { s.Binding.Link = nil }), 0},
		{"a link that restarted", report(0, 1000), report(time.Second, 500), 0},
		{"no time between", report(0, 1000), report(0, 1500), 0},
		{"a new slot", agent.Report{}, report(time.Second, 0), 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := newTop(&tc.prev, &tc.cur, true).Slots[0].Rates.TLPsOut
			if got != tc.want {
				t.Errorf("%v TLPs a second, want %v", got, tc.want)
			}
		})
	}
}

func TestAdminMistakes(t *testing.T) {
	slots := fakeProxy(t, report(0, 0))
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "<html>") }))
	t.Cleanup(broken.Close)
	forbidden := httptest.NewServer(agent.CaptureHandler(nil, false, "", ""))
	t.Cleanup(forbidden.Close)
	t.Setenv("DXPU_ADMIN", "")
	for _, tc := range []struct {
		name   string
		args   string
		code   int
		stderr string
	}{
		{"bad URL", "top --admin localhost:9100", exitUsage, "is not the URL of a proxy"},
		{"no listener", "top --admin http://127.0.0.1:1", exitFailure, "is the proxy running"},
		{"bad interval", "top --interval 0s --admin " + slots.URL, exitUsage, "is not positive"},
		{"no report", "top --admin " + broken.URL, exitFailure, "is not the report of a proxy"},
		{"no file", "capture --admin " + slots.URL, exitUsage, "-w is missing"},
		{"no such page", "capture -w - --admin " + slots.URL, exitFailure, "has no page /capture"},
		{"not allowed", "capture -w - --admin " + forbidden.URL, exitFailure, "--allow-capture"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var stderr bytes.Buffer
			code := Main(strings.Fields(tc.args), strings.NewReader(""), io.Discard, &stderr)
			if code != tc.code || !strings.Contains(stderr.String(), tc.stderr) {
				t.Errorf("exit code %d, want %d; stderr:\n%s", code, tc.code, stderr.String())
			}
		})
	}
}

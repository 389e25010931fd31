package placement

import (
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
)

// TestScenarios runs the decisions in testdata: an inventory, requests, and for
// each the GPUs or slots chosen and the reasons. The index must decide the same.
// go test ./internal/pool/placement -run TestScenarios -rewrite writes them again.
//
//	pool             one box a line: ID KIND MODEL GPUS [rack=R] [proxy=N] [memory=GiB] [domains=N] [taint=TAINT]
//	                 (a character for each GPU: '.' free, 'x' bound, '!' unusable)
//	place            count= model= memory=GiB kind= nvlink= samebox= only=(GPU,...) tolerate=(TAINT,...) exclude=(GPU,...) together=(GPU,...)
//	                 spares=N or N% (held back), usespares
//	hosts            one domain of a host a line: HOST DOMAIN SLOTS [unusable] [taint=TAINT] [KEY=VALUE ...]
//	placehost        count= host= domain= label=(KEY,VALUE) tolerate=(TAINT,...)
//
// A TAINT is KEY:VALUE:EFFECT, of which a toleration may leave out the end.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if strings.Contains(path, "rapid") {
			return
		}
		s := scenario{}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "pool":
				return s.setPool(d)
			case "place":
				return s.place(t, d)
			case "hosts":
				return s.setHosts(d)
			case "placehost":
				return s.placeHost(t, d)
			}
			d.Fatalf(t, "unknown command")
			return ""
		})
	})
}

type scenario struct {
	boxes     []Box
	pool      *Pool
	hosts     []Host
	hostIndex *Hosts
}

var kinds = map[string]Kind{"any": AnyKind, "pcie": PCIeSwitch, "nvlink": NVLink}

var preferences = map[string]Preference{"preferred": Preferred, "required": Required, "avoided": Avoided}

func (s *scenario) setPool(d *datadriven.TestData) string {
	s.boxes, s.pool = nil, NewPool()
	for line := range strings.Lines(d.Input) {
		f := strings.Fields(line)
		if len(f) < 4 {
			return "want: ID KIND MODEL GPUS"
		}
		b := box(f[0], kinds[f[1]], f[2], f[3])
		for _, option := range f[4:] {
			name, value, _ := strings.Cut(option, "=")
			n, err := strconv.Atoi(value)
			if err != nil && name != "rack" && name != "taint" {
				return err.Error()
			}
			switch name {
			case "rack":
				b.Rack = value
			case "taint":
				for i := range b.GPUs {
					b.GPUs[i].Restriction = NewRestriction(parseTaint(value))
				}
			case "proxy":
				b.ProxyGPUs = n
			case "memory":
				for i := range b.GPUs {
					b.GPUs[i].Memory = uint64(n) << 30
				}
			case "domains":
				for i := range b.GPUs {
					b.GPUs[i].Domain = fmt.Sprint("nv", i*n/len(b.GPUs))
				}
			default:
				return "unknown option " + name
			}
		}
		s.boxes = append(s.boxes, b)
		s.pool.SetBox(b)
	}
	return ""
}

func (s *scenario) place(t *testing.T, d *datadriven.TestData) string {
	var req Request
	var reserve Reserve
	for _, a := range d.CmdArgs {
		value := ""
		if len(a.Vals) > 0 {
			value = a.Vals[0]
		}
		switch a.Key {
		case "count":
			a.Scan(t, 0, &req.Count)
		case "model":
			req.Model = value
		case "memory":
			a.Scan(t, 0, &req.MinMemory)
			req.MinMemory <<= 30
		case "kind":
			req.Kind = kinds[value]
		case "nvlink":
			req.NVLink = preferences[value]
		case "samebox":
			req.SameBox = preferences[value]
		case "box":
			req.Box = value
		case "only":
			req.Only = parseRefs(t, a.Vals)
		case "exclude":
			req.Exclude = parseRefs(t, a.Vals)
		case "together":
			req.Together = parseRefs(t, a.Vals)
		case "tolerate":
			req.Tolerations = parseTolerations(a.Vals)
		case "usespares":
			req.UseSpares = true
		case "spares":
			if percent, ok := strings.CutSuffix(value, "%"); ok {
				n, err := strconv.Atoi(percent)
				if err != nil {
					d.Fatalf(t, "%v", err)
				}
				reserve.Fraction = float64(n) / 100
			} else {
				a.Scan(t, 0, &reserve.Count)
			}
		default:
			d.Fatalf(t, "unknown argument %s", a.Key)
		}
	}
	got := Place(s.boxes, reserve, req)
	if diff := cmp.Diff(got, s.pool.Place(reserve, req), answers); diff != "" {
		t.Errorf("%s: Place and Pool differ (-Place +Pool)\n%s", d.Pos, diff)
	}
	return describe(got.OK(), join(got.Picks), got.Why)
}

func (s *scenario) setHosts(d *datadriven.TestData) string {
	s.hosts, s.hostIndex = nil, NewHosts()
	for line := range strings.Lines(d.Input) {
		f := strings.Fields(line)
		if len(f) < 3 {
			return "want: HOST DOMAIN SLOTS"
		}
		if n := len(s.hosts); n == 0 || s.hosts[n-1].ID != f[0] {
			s.hosts = append(s.hosts, Host{ID: f[0], Usable: true, Labels: map[string]string{}})
		}
		h := &s.hosts[len(s.hosts)-1]
		for _, c := range f[2] {
			h.Slots = append(h.Slots, HostSlot{Slot: uint32(len(h.Slots)), Domain: f[1], Free: c == '.'})
		}
		for _, option := range f[3:] {
			if key, value, label := strings.Cut(option, "="); key == "taint" {
				h.Restriction = NewRestriction(parseTaint(value))
			} else if label {
				h.Labels[key] = value
			} else {
				h.Usable = option != "unusable"
			}
		}
	}
	for _, h := range s.hosts {
		s.hostIndex.SetHost(h)
	}
	return ""
}

func (s *scenario) placeHost(t *testing.T, d *datadriven.TestData) string {
	req := HostRequest{Labels: map[string]string{}}
	for _, a := range d.CmdArgs {
		switch a.Key {
		case "count":
			a.Scan(t, 0, &req.Count)
		case "host":
			req.Host = a.Vals[0]
		case "domain":
			req.Domain = a.Vals[0]
		case "tolerate":
			req.Tolerations = parseTolerations(a.Vals)
		case "label":
			req.Labels[a.Vals[0]] = a.Vals[1]
		default:
			d.Fatalf(t, "unknown argument %s", a.Key)
		}
	}
	got := PlaceHost(s.hosts, req)
	if diff := cmp.Diff(got, s.hostIndex.Place(req)); diff != "" {
		t.Errorf("%s: PlaceHost and Hosts differ (-PlaceHost +Hosts)\n%s", d.Pos, diff)
	}
	return describe(got.OK(), fmt.Sprint(got.Host, " slots ", got.Slots), got.Why)
}

func describe(ok bool, picks string, why []string) string {
	if !ok {
		picks = "none"
	}
	return picks + "\n" + strings.Join(why, "\n")
}

func parseRefs(t *testing.T, values []string) []Ref {
	var out []Ref
	for _, v := range values {
		id, slot, _ := strings.Cut(v, "/")
		n, err := strconv.ParseUint(slot, 10, 32)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, Ref{id, uint32(n)})
	}
	return out
}

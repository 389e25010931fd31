package controller_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"pgregory.net/rapid"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/boxproxy/controller"
	"github.com/dxpu-project/dxpu/internal/dataplane/mapping"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
)

// TestScenarios runs testdata/*.txt; -rewrite updates the expected output. Every
// command but slot prints the actions that follow from it, and the state of the
// slot when the controller waits.
//
//	slot [empty]                              a new slot
//	desired [binding=ID epoch=N [peer=ADDRESS]] [reset=N] [stop] [steps=N]   the manager wants this; N steps at most
//	run                                       further steps
//	tick MILLISECONDS                         the time goes on
//	link up|down [why=TEXT]                   the link changes
//	device works | device dies why=TEXT       at once, and seen at the next look
//	jobs N                                    the device computes N jobs
//	fail attach TEXT                          the next attach fails
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var s *slot
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			if d.Cmd == "slot" {
				s = newSlot(t, d.HasArg("empty"))
				return ""
			}
			return s.command(d)
		})
	})
}

// slot is a box's slot that does nothing but remember its state.
type slot struct {
	t       testing.TB
	out     strings.Builder
	machine controller.Controller
	table   *mapping.BoxTable
	now     time.Duration
	want    controller.Desired
	seen    controller.Seen
	works   bool   // the device does
	detail  string // or why not
	refusal string // of the next Attach
}

func newSlot(t testing.TB, empty bool) *slot {
	return &slot{t: t, table: mapping.NewBoxTable(1), works: true, seen: controller.Seen{Empty: empty, Detail: "the slot is empty"}}
}

func (s *slot) command(d *datadriven.TestData) string {
	limit := 20
	arg := func(name string) (v string) {
		d.MaybeScanArgs(s.t, name, &v)
		return v
	}
	first := func() string { return d.CmdArgs[0].Key }
	switch d.Cmd {
	case "desired":
		s.want = controller.Desired{Stop: d.HasArg("stop")}
		d.MaybeScanArgs(s.t, "reset", &s.want.Reset)
		d.MaybeScanArgs(s.t, "steps", &limit)
		if d.HasArg("binding") {
			s.want.Binding = &dxpuv1.DesiredBinding{BindingId: arg("binding")}
			d.ScanArgs(s.t, "epoch", &s.want.Binding.Epoch)
			if a := arg("peer"); a != "" {
				s.want.Binding.Peer = &dxpuv1.Peer{Addresses: []*dxpuv1.PathAddress{{Address: a}}}
			}
		}
	case "run":
	case "tick":
		var ms int
		if _, err := fmt.Sscan(first(), &ms); err != nil {
			d.Fatalf(s.t, "%v", err)
		}
		s.now += time.Duration(ms) * time.Millisecond
	case "link":
		s.seen.Link, s.seen.Why = link.Up, ""
		if first() == "down" {
			s.seen.Link, s.seen.Why = link.Down, arg("why")
		}
	case "device":
		s.works, s.detail = first() == "works", arg("why")
	case "jobs":
		if _, err := fmt.Sscan(first(), &s.seen.Jobs); err != nil {
			d.Fatalf(s.t, "%v", err)
		}
	case "fail":
		s.refusal = d.CmdArgs[1].Key
		return ""
	default:
		d.Fatalf(s.t, "unknown command")
	}
	s.run(limit)
	defer s.out.Reset()
	return s.out.String()
}

// run steps until the controller waits, but not more often than limit.
func (s *slot) run(limit int) {
	for range limit {
		actions := s.machine.Step(s.now, s.want, s.seen)
		if len(actions) == 0 {
			fmt.Fprintf(&s.out, "waits until %v, follows: %v\n", s.machine.Wake(), s.machine.Follows(s.want))
			return
		}
		s.do(actions)
	}
}

func (s *slot) do(actions []controller.Action) {
	s.seen.Err = nil
	for _, a := range actions {
		fmt.Fprintln(&s.out, a)
		if s.seen.Err = s.act(a); s.seen.Err != nil {
			fmt.Fprintln(&s.out, "  fails:", s.seen.Err)
			return
		}
	}
}

func (s *slot) act(a controller.Action) error {
	switch a.Verb {
	case controller.Look:
		s.seen.Works, s.seen.Detail = s.works, s.detail
	case controller.Claim:
		if err := s.table.Insert(0, [pcie.MaxBARs]pcie.BAR{}); err != nil {
			s.t.Error(err)
		}
		if err := s.table.Bind(0, mapping.Owner{Epoch: s.want.Binding.Epoch}); err != nil {
			return err
		}
		s.seen.Claimed = true
	case controller.Attach:
		if why := s.refusal; why != "" {
			s.refusal = ""
			return errors.New(why)
		}
		s.seen.Linked, s.seen.Link = true, link.Connecting
	case controller.Close:
		if s.seen.Link != link.Down {
			s.seen.Link, s.seen.Why = link.Closing, a.Code.String()
		}
		if !s.seen.Linked {
			s.t.Errorf("%v without a link", a.Code)
		}
	case controller.Detach:
		s.seen.Linked = false
	case controller.Reset, controller.Scrub:
		if s.seen.Linked {
			s.t.Errorf("%v while the device is linked", a.Verb)
		}
		if a.Verb == controller.Scrub && s.seen.Jobs > 0 {
			s.t.Errorf("scrub while %d jobs use the memory", s.seen.Jobs)
		}
	case controller.Release:
		s.seen.Claimed = false
		s.table.Unbind(0)
	case controller.Begin, controller.Report, controller.End, controller.Confirm:
	}
	return nil
}

// In any order of events, the actions respect the device, and a slot
// that is no longer wanted becomes free.
func TestSlotBecomesFree(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		s := newSlot(t, rapid.IntRange(0, 9).Draw(r, "empty") == 0)
		for range rapid.IntRange(1, 30).Draw(r, "events") {
			switch rapid.IntRange(0, 7).Draw(r, "event") {
			case 0:
				s.want.Binding = &dxpuv1.DesiredBinding{BindingId: "b", Epoch: rapid.Uint64Range(1, 20).Draw(r, "epoch")}
			case 1:
				s.want.Binding = nil
			case 2:
				s.want.Reset++
			case 3:
				s.now += time.Duration(rapid.IntRange(0, 300).Draw(r, "ms")) * time.Millisecond
			case 4:
				s.seen.Link = rapid.SampledFrom([]link.State{link.Connecting, link.Up, link.Closing, link.Down}).Draw(r, "link")
			case 5:
				s.works = !s.works
			case 6:
				if n := rapid.IntRange(0, 2).Draw(r, "jobs"); s.seen.Linked || n < s.seen.Jobs {
					s.seen.Jobs = n // only a linked device begins any
				}
			case 7:
				s.refusal = "refused"
			}
			s.run(rapid.IntRange(0, 9).Draw(r, "steps"))
		}
		s.want = controller.Desired{Binding: s.want.Binding, Stop: true}
		s.seen.Jobs = 0
		s.run(20)
		s.now += time.Second // a link that never closes
		s.run(20)
		if !s.machine.Follows(s.want) || s.seen.Claimed || s.seen.Linked {
			r.Fatalf("the slot is not free: %+v\n%s", s.seen, s.out.String())
		}
	})
}

package controller

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/link"
)

// world is a host slot around a controller: commands of the scenario change it,
// and it prints the actions that follow.
type world struct {
	c    Controller
	now  time.Duration
	want Desired
	seen Seen
	fail map[Verb]failure // actions that fail
}

// failure is the outcome of an action that fails, once or always.
type failure struct {
	why    string
	fault  Fault
	always bool
}

// TestScenarios runs the files in testdata. The commands:
//
//	want binding=ID [epoch=N] [replugs=N] [unplug=D] [peer=ADDRESS]   the manager wants a binding
//	want none | stop
//	link state=up|down [why=TEXT]
//	guest connected=true|false | sees=present|removed|restarted|silent
//	fail VERB why=TEXT [fault=host|vm] [always]        the next action of a kind fails, or all do
//	mend VERB                                          actions of a kind work again
//	wait D                                             time passes
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		w := &world{c: Controller{UnplugTimeout: 10 * time.Second}, seen: Seen{Connected: true}, fail: map[Verb]failure{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			w.command(t, d)
			return w.settle()
		})
	})
}

func (w *world) command(t *testing.T, d *datadriven.TestData) {
	arg := func(name, otherwise string) string {
		if d.HasArg(name) {
			d.ScanArgs(t, name, &otherwise)
		}
		return strings.ReplaceAll(otherwise, "_", " ")
	}
	duration := func(s string) time.Duration {
		v, err := time.ParseDuration(s)
		if err != nil {
			d.Fatalf(t, "%v", err)
		}
		return v
	}
	switch d.Cmd {
	case "want":
		w.want = Desired{Stop: d.HasArg("stop")}
		if !d.HasArg("binding") {
			return
		}
		b := &dxpuv1.DesiredBinding{BindingId: arg("binding", ""), Epoch: 1}
		if d.HasArg("epoch") {
			d.ScanArgs(t, "epoch", &b.Epoch)
		}
		if d.HasArg("replugs") {
			d.ScanArgs(t, "replugs", &b.Replugs)
		}
		if d.HasArg("unplug") {
			b.UnplugTimeout = durationpb.New(duration(arg("unplug", "")))
		}
		if d.HasArg("peer") {
			b.Peer = &dxpuv1.Peer{Addresses: []*dxpuv1.PathAddress{{Address: arg("peer", "")}}}
		}
		w.want.Binding = b
	case "link":
		w.seen.Link = map[string]link.State{"connecting": link.Connecting, "up": link.Up, "down": link.Down}[arg("state", "")]
		w.seen.Why = arg("why", "")
	case "guest":
		w.seen.Connected = arg("connected", "false") == "true"
		w.seen.Detail = arg("detail", "")
		for g := Connected; g <= EjectedLate; g++ {
			if g.String() == arg("sees", "connected") {
				w.seen.Guest = g
			}
		}
	case "fail":
		for v := Begin; v <= Close; v++ {
			if d.HasArg(v.String()) {
				w.fail[v] = failure{arg("why", ""), map[string]Fault{"host": HostFault, "vm": VMAbsent}[arg("fault", "")], d.HasArg("always")}
			}
		}
	case "mend":
		for v := Begin; v <= Close; v++ {
			if d.HasArg(v.String()) {
				delete(w.fail, v)
			}
		}
	case "wait":
		w.now += duration(d.CmdArgs[0].Key)
	default:
		d.Fatalf(t, "no command %s", d.Cmd)
	}
}

// settle steps the controller until it has nothing to do and returns its actions.
func (w *world) settle() string {
	var out strings.Builder
	for range 20 {
		actions := w.c.Step(w.now, w.want, w.seen)
		w.seen.Err = nil
		for _, a := range actions {
			fmt.Fprintln(&out, a)
			if a.Verb == Open {
				w.seen.Link = link.Connecting
			}
			if f, ok := w.fail[a.Verb]; ok {
				if !f.always {
					delete(w.fail, a.Verb)
				}
				w.seen.Err, w.seen.Fault = errors.New(f.why), f.fault
				fmt.Fprintf(&out, "  fails: %s\n", f.why)
				break
			}
		}
		if len(actions) == 0 {
			if !w.c.Follows(w.want) && !w.want.Stop {
				out.WriteString("does not follow\n")
			}
			if out.Len() == 0 {
				return "nothing\n"
			}
			return out.String()
		}
	}
	return out.String() + "does not settle\n"
}

package manager

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/cockroachdb/datadriven"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The scenarios are texts with commands and what the manager does then. Fake nodes
// do what they are told. "go test -run TestScenarios -rewrite" writes the outputs.
//
//	pool [reserve=N] [uplink=N]                  a new, empty pool; N GPUs of each model are spares
//	host NAME [slots=8] [rack=R] [paths=(N,...)] a host enrols
//	box NAME [gpus=8] [kind=nvlink] [model=M] [rack=R] [paths=(N,...)] [label=(KEY,VALUE)]    a box enrols
//	tenant NAME [max-gpus=N] [max-priority=N] [guaranteed=N] [weight=N]    a tenant with a quota
//	lease NAME count=N [tenant=T] [host=H] [model=M] [priority=P] [same-box=S] [box-label=(KEY,VALUE)] [wait] [preemptible] [tolerate=KEY] [gang=(NAME,SIZE)] [expires=D] [queue-timeout=D]
//	explain NAME                                 the explanation of a lease
//	resize NAME count=N
//	delete NAME [force]
//	fail GPU, mend GPU                           a device fails, works again
//	error GPU code=N                             a device reports an error
//	silence NODE, return NODE                    a node stops reporting, reports again
//	restart NODE                                 a node's proxy is killed and started again: its links are gone
//	vm HOST absent|runs                          attaches of a host wait for a VM
//	refuse HOST [why=TEXT]                       a host cannot attach devices, for a reason, or can again
//	migrate NAME [gpu=GPU] [to=GPU]              a GPU of the lease moves live
//	moves NODE well|never|stall|copy|wait|fail [why=TEXT]  what a node does in live migrations
//	failover                                     another manager takes over, and the nodes report to it
//	cordon, uncordon, drain TARGET [deadline=D] [live]   of a GPU, box or host
//	taint TARGET set=(KEY,VALUE,EFFECT)          gives it a taint; untaint TARGET key=KEY removes it
//	maintenance box|host|rack ID in=D for=D [drain-before=D] [keep]    plans maintenance; end ID ends it, plans lists it
//	pass D                                       time passes; nodes report meanwhile
//	state                                        leases with their bindings, and the GPUs
//
// Every command lets the nodes report until nothing happens any more, and prints
// the events and the error.
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		s := &scenario{t: t}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			return s.run(t, d)
		})
	})
}

// scenario is a pool under the commands of a text.
type scenario struct {
	t *testing.T
	*world
	ids  map[string]string // of leases, by the text's names
	seen uint64            // revision of the last event that was printed
}

func (s *scenario) run(t *testing.T, d *datadriven.TestData) string {
	if d.Cmd == "pool" {
		var cfg Config
		d.MaybeScanArgs(t, "reserve", &cfg.Reserve.Count)
		d.MaybeScanArgs(t, "uplink", &cfg.RackUplink)
		s.world = newWorld(t, cfg)
		s.ids, s.seen = map[string]string{}, 0
		return ""
	}
	switch d.Cmd {
	case "state":
		return s.state()
	case "plans":
		return s.plans()
	case "explain":
		return strings.ReplaceAll(s.named(s.explain(s.ids[d.CmdArgs[0].Key])), ". ", ".\n") + "\n"
	}
	var out strings.Builder
	if err := s.command(t, d); err != nil {
		fmt.Fprintf(&out, "error: %v\n", err)
	}
	s.settle()
	events, newest, _, _ := s.m.events.after(s.seen)
	s.seen = newest
	for _, e := range events {
		out.WriteString(e.Message + "\n")
	}
	return s.named(out.String())
}

func (s *scenario) command(t *testing.T, d *datadriven.TestData) error {
	ctx := context.Background()
	name := ""
	if len(d.CmdArgs) > 0 {
		name = d.CmdArgs[0].Key
	}
	number := func(key string, def int) int {
		d.MaybeScanArgs(t, key, &def)
		return def
	}
	text := func(key string) (v string) {
		d.MaybeScanArgs(t, key, &v)
		return v
	}
	switch d.Cmd {
	case "host":
		n := hostNode(name, number("slots", 8))
		n.rack, n.paths = text("rack"), numbers(t, d, "paths")
		s.join(n)
	case "box":
		n := boxNode(name, number("gpus", 8))
		if model := text("model"); model != "" {
			n.model = model
		}
		n.rack, n.paths, n.labels = text("rack"), numbers(t, d, "paths"), labelArg(d, "label")
		if text("kind") == "nvlink" {
			n.boxKind = dxpuv1.BoxKind_BOX_KIND_NVLINK
		}
		s.join(n)
	case "tenant":
		q := &dxpuv1.Quota{MaxGpus: uint32(number("max-gpus", 0)), Weight: uint32(number("weight", 0))}
		if d.HasArg("guaranteed") {
			q.GuaranteedGpus = proto.Uint32(uint32(number("guaranteed", 0)))
		}
		if d.HasArg("max-priority") {
			p := int32(number("max-priority", 0))
			q.MaxPriority = &p
		}
		s.putTenant(name, q)
	case "lease":
		spec := &dxpuv1.LeaseSpec{
			Count: uint32(number("count", 1)), Tenant: text("tenant"), HostId: text("host"), Model: text("model"),
			Priority: int32(number("priority", 0)), Wait: d.HasArg("wait"), Preemptible: d.HasArg("preemptible"),
			BoxLabels: labelArg(d, "box-label"),
		}
		if g := text("gpus"); g != "" {
			spec.GpuIds = strings.Split(g, "+")
			spec.Count = uint32(len(spec.GpuIds))
		}
		if p := text("same-box"); p != "" {
			spec.SameBox = dxpuv1.Preference(dxpuv1.Preference_value["PREFERENCE_"+strings.ToUpper(p)])
		}
		if key := text("tolerate"); key != "" {
			spec.Tolerations = []*dxpuv1.Toleration{{Key: strings.TrimPrefix(key, "*"), AnyValue: true}}
		}
		if a, ok := d.Arg("gang"); ok {
			spec.Gang = &dxpuv1.Gang{Name: a.Vals[0]}
			a.Scan(t, 1, &spec.Gang.Size)
		}
		if v := text("expires"); v != "" {
			spec.ExpiresAfter = durationpb.New(duration(t, v))
		}
		if v := text("queue-timeout"); v != "" {
			spec.WaitTimeout = durationpb.New(duration(t, v))
		}
		id, err := s.tryCreate(spec)
		s.ids[name] = id
		return err
	case "resize":
		_, err := s.api().ResizeLease(ctx, connect.NewRequest(&dxpuv1.ResizeLeaseRequest{LeaseId: s.ids[name], Count: uint32(number("count", 1))}))
		return err
	case "delete":
		_, err := s.api().DeleteLease(ctx, connect.NewRequest(&dxpuv1.DeleteLeaseRequest{LeaseId: s.ids[name], Force: d.HasArg("force"), LeaveGang: d.HasArg("leave-gang")}))
		return err
	case "fail", "mend":
		box, slot := s.gpu(t, name)
		s.nodes[box].dead[slot] = d.Cmd == "fail"
	case "error":
		box, slot := s.gpu(t, name)
		s.nodes[box].addError(slot, uint32(number("code", 0)))
	case "silence", "return":
		s.nodes[name].down = d.Cmd == "silence"
		s.passReporting(2 * time.Second)
	case "restart":
		s.nodes[name].forget()
	case "vm":
		s.nodes[name].waits = map[string]string{"absent": "no VM runs"}[d.CmdArgs[1].Key]
	case "refuse":
		s.nodes[name].refusal = strings.ReplaceAll(text("why"), "_", " ")
	case "migrate":
		_, err := s.migrate(&dxpuv1.MigrateLeaseRequest{LeaseId: s.ids[name], GpuId: text("gpu"), ToGpuId: text("to")})
		return err
	case "moves":
		s.nodes[name].moves = s.moveArg(d)
	case "failover":
		s.failover()
	case "cordon":
		_, err := s.api().Cordon(ctx, connect.NewRequest(&dxpuv1.CordonRequest{Target: s.target(name), Reason: text("reason")}))
		return err
	case "uncordon":
		_, err := s.api().Uncordon(ctx, connect.NewRequest(&dxpuv1.UncordonRequest{Target: s.target(name)}))
		return err
	case "drain":
		req := &dxpuv1.DrainRequest{Target: s.target(name)}
		if v := text("deadline"); v != "" {
			req.Deadline = durationpb.New(duration(t, v))
		}
		req.Live = d.HasArg("live")
		_, err := s.api().Drain(ctx, connect.NewRequest(req))
		return err
	case "taint", "untaint":
		req := &dxpuv1.SetTaintsRequest{Target: s.target(name)}
		if a, ok := d.Arg("set"); ok {
			req.Set = []*dxpuv1.Taint{{Key: a.Vals[0], Value: a.Vals[1], Effect: dxpuv1.TaintEffect(dxpuv1.TaintEffect_value["TAINT_EFFECT_"+a.Vals[2]])}}
		} else {
			req.Remove = []*dxpuv1.Taint{{Key: text("key")}}
		}
		_, err := s.api().SetTaints(ctx, connect.NewRequest(req))
		return err
	case "maintenance":
		return s.planMaintenance(t, d)
	case "end":
		_, err := s.api().EndMaintenance(ctx, connect.NewRequest(&dxpuv1.EndMaintenanceRequest{MaintenanceId: name}))
		return err
	case "pass":
		s.passReporting(duration(t, name))
	default:
		d.Fatalf(t, "unknown command %s", d.Cmd)
	}
	return nil
}

// numbers returns the values of an argument, nil without it.
func numbers(t *testing.T, d *datadriven.TestData, key string) (out []uint32) {
	if a, ok := d.Arg(key); ok {
		for i := range a.Vals {
			out = append(out, 0)
			a.Scan(t, i, &out[i])
		}
	}
	return out
}

// labelArg returns the label (KEY,VALUE) of an argument, nil without it.
func labelArg(d *datadriven.TestData, key string) map[string]string {
	a, ok := d.Arg(key)
	if !ok {
		return nil
	}
	return map[string]string{a.Vals[0]: a.Vals[1]}
}

func duration(t *testing.T, s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func (s *scenario) gpu(t *testing.T, id string) (box string, slot uint32) {
	box, _, _ = strings.Cut(id, "/")
	if _, err := fmt.Sscanf(id, box+"/%d", &slot); err != nil || s.nodes[box] == nil {
		t.Fatalf("%s is no GPU", id)
	}
	return box, slot
}

func (s *scenario) target(name string) *dxpuv1.Target {
	switch n := s.nodes[name]; {
	case n == nil:
		return &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: name}}
	case n.box():
		return &dxpuv1.Target{Target: &dxpuv1.Target_BoxId{BoxId: name}}
	}
	return &dxpuv1.Target{Target: &dxpuv1.Target_HostId{HostId: name}}
}

// named writes the names of the text in place of lease IDs.
func (s *scenario) named(text string) string {
	names := slices.SortedFunc(maps.Keys(s.ids), func(a, b string) int { return len(s.ids[b]) - len(s.ids[a]) })
	for _, name := range names {
		if s.ids[name] != "" {
			text = strings.ReplaceAll(text, s.ids[name], name)
		}
	}
	return text
}

func (s *scenario) state() string {
	var out strings.Builder
	_ = s.m.view(func(t *tx) error {
		for _, id := range slices.SortedFunc(maps.Keys(t.leases.rows), compareLeaseIDs) {
			l := t.leases.get(id)
			fmt.Fprintf(&out, "lease %s is %s: %s\n", id, leaseWord(l.State), l.StateReason)
			for _, bid := range t.bindingsOf(id) {
				b := t.bindings.get(bid)
				fmt.Fprintf(&out, "  %s  %s -> %s/%d  %s", bid, b.gpuID(), b.HostID, b.HostSlot, stateWord(b.State))
				if b.Reason != 0 {
					fmt.Fprintf(&out, " (%s)", reasonWord(b.Reason))
				}
				out.WriteString("\n")
			}
		}
		for _, id := range slices.Sorted(maps.Keys(t.nodes.rows)) {
			n := t.nodes.get(id)
			if n.Kind != dxpuv1.NodeKind_NODE_KIND_BOX {
				continue
			}
			fmt.Fprintf(&out, "%s:", id)
			for i := range n.Slots {
				g := t.gpuMessage(n, &n.Slots[i])
				word := strings.ToLower(strings.TrimPrefix(g.State.String(), "GPU_STATE_"))
				if g.LeaseId != "" {
					word += " " + g.LeaseId
				}
				fmt.Fprintf(&out, " [%s]", word)
			}
			out.WriteString("\n")
		}
		return nil
	})
	return s.named(out.String())
}

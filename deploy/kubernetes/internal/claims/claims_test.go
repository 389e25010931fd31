package claims

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// TestScenarios runs the decisions in testdata. go test ./internal/claims -run
// TestScenarios -rewrite writes them again.
//
//	claim      uid= [allocated=SECONDS] [node=] [host=] devices=(NAME[@SHARE][:GPU][=MEMORY/COMPUTE][!+?*^~],...):
//	           the allocated claim; "!" is a device that has failed before, "+" one that was
//	           attached, "?" one with bad parameters, "*" admin access, "^" one of the host's own machine, "~" one for which the pod waits on its node; without GPU it has left the pool.
//	           [reported] is that the claim says something of its devices;
//	           [gang=(NAME,SIZE)] [runs] is the gang of its devices, and whether that has GPUs;
//	           [serves=LEASE] is the lease that the claim's status names; [shut=WHY], with "-" for
//	           spaces, is why the host takes no GPU; [lost=WHY] why it attaches nothing; [local=WHY] is why the pod gets no GPUs of its machine;
//	           [priority=N,...] has that of each device
//	gone       the claim is gone, or not allocated
//	lease      id= [request=] claim= device= [share=] allocated= node= state= [preempted] [tenant=] [gpu=] [host=]: replaces
//	           the lease of that ID; tenant, GPU and host are those of the device, if they are not named.
//	           [lost=REASON] and [detail=] are those of the binding that it has lost;
//	           gpus=(GPU,...) are those of a lease for several devices, which are in slots 0, 1 ... if it is active
//	decide     prints the plan
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var claim *Claim
		var leases []*dxpuv1.Lease
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			text := func(key string) (v string) {
				d.MaybeScanArgs(t, key, &v)
				return v
			}
			switch d.Cmd {
			case "claim":
				claim = &Claim{UID: text("uid"), Namespace: "lab", Name: "c", Node: text("node"), Host: text("host")}
				if claim.Host == "" {
					claim.HostErr = "the node has no host"
				}
				claim.HostLost = strings.ReplaceAll(text("lost"), "-", " ")
				claim.HostShut, claim.LocalErr = strings.ReplaceAll(text("shut"), "-", " "), strings.ReplaceAll(text("local"), "-", " ")
				d.MaybeScanArgs(t, "allocated", &claim.Allocated)
				for _, a := range d.CmdArgs {
					if a.Key == "devices" {
						for _, v := range a.Vals {
							device := parseDevice(v)
							device.Lease, device.GangRuns = text("serves"), d.HasArg("runs")
							device.Reported = device.Attached || device.Failed || d.HasArg("reported")
							if g, ok := d.Arg("priority"); ok {
								device.Parameters.Priority = new(int32)
								g.Scan(t, len(claim.Devices), device.Parameters.Priority)
							}
							if g, ok := d.Arg("gang"); ok {
								device.Parameters.Gang = g.Vals[0]
								g.Scan(t, 1, &device.Parameters.GangSize)
							}
							claim.Devices = append(claim.Devices, device)
						}
					}
				}
			case "gone":
				claim = nil
			case "lease":
				box, slot, _ := strings.Cut(text("device"), "-")
				l := &dxpuv1.Lease{Id: text("id"), RequestId: text("request"), StateReason: "because.", Spec: &dxpuv1.LeaseSpec{
					Count: 1, Tenant: cmp.Or(text("tenant"), "t-lab"), GpuIds: []string{cmp.Or(text("gpu"), box+"/"+slot)},
					HostId: cmp.Or(text("host"), "h"+strings.TrimPrefix(text("node"), "n")),
					Labels: map[string]string{
						LabelClaim: text("claim"), LabelDevice: text("device"), LabelShare: text("share"), LabelAllocated: text("allocated"), LabelNode: text("node"),
					},
				}}
				l.State = dxpuv1.LeaseState(dxpuv1.LeaseState_value["LEASE_STATE_"+strings.ToUpper(text("state"))])
				if l.State == dxpuv1.LeaseState_LEASE_STATE_ACTIVE {
					l.Bindings = []*dxpuv1.Binding{
						{GpuId: "old/0", State: dxpuv1.BindingState_BINDING_STATE_RELEASED},
						{GpuId: "b1/2", HostId: "h1", HostSlot: 3, State: dxpuv1.BindingState_BINDING_STATE_ATTACHED},
					}
				}
				if g, ok := d.Arg("gpus"); ok {
					l.Spec.Count, l.Spec.GpuIds, l.Bindings = uint32(len(g.Vals)), g.Vals, nil
					for slot, gpu := range g.Vals {
						l.Bindings = append(l.Bindings, &dxpuv1.Binding{GpuId: "x/1", PartOfGpuId: gpu, HostId: "h1", HostSlot: uint32(slot), State: dxpuv1.BindingState_BINDING_STATE_ATTACHED})
					}
				}
				if detail := text("detail"); detail != "" {
					l.Bindings = []*dxpuv1.Binding{{State: dxpuv1.BindingState_BINDING_STATE_READY, Detail: detail}}
				}
				if lost := text("lost"); lost != "" {
					l.Bindings = []*dxpuv1.Binding{{GpuId: "b1/2", State: dxpuv1.BindingState_BINDING_STATE_LOST, Reason: dxpuv1.Reason(dxpuv1.Reason_value["REASON_"+lost]), Detail: strings.ReplaceAll(text("detail"), "-", " ")}}
				}
				if d.HasArg("preempted") {
					l.Bindings = []*dxpuv1.Binding{{Reason: dxpuv1.Reason_REASON_PREEMPTED}}
				}
				leases = slices.DeleteFunc(leases, func(o *dxpuv1.Lease) bool { return o.Id == l.Id })
				leases = append(leases, l)
			case "decide":
				if claim != nil {
					leases = slices.DeleteFunc(leases, func(l *dxpuv1.Lease) bool { return l.Spec.Labels[LabelClaim] != claim.UID })
				}
				return describe(Decide(claim, leases, Policy{
					Cluster: "k", Tenant: func(ns string) string { return "t-" + ns }, QueueTimeout: time.Minute,
				}))
			default:
				d.Fatalf(t, "unknown command")
			}
			return ""
		})
	})
}

func parseDevice(v string) Device {
	name := strings.TrimRight(v, "!+?*^~")
	marks := v[len(name):]
	d := Device{Failed: strings.Contains(marks, "!"), Attached: strings.Contains(marks, "+"), Admin: strings.Contains(marks, "*"), Local: strings.Contains(marks, "^"), Awaited: !strings.Contains(marks, "~")}
	if strings.Contains(marks, "?") {
		d.ParametersErr = "bad parameters"
	}
	name, part, divided := strings.Cut(name, "=")
	if divided {
		d.Part = &dxpuv1.Part{}
		_, _ = fmt.Sscanf(part, "%d/%d", &d.Part.MemoryBytes, &d.Part.Compute)
	}
	name, d.GPU, _ = strings.Cut(name, ":")
	d.Name, d.Share, _ = strings.Cut(name, "@")
	return d
}

func describe(p Plan) string {
	var out strings.Builder
	for _, r := range p.Create {
		part := ""
		if p := r.Spec.Part; p != nil {
			part = fmt.Sprintf(" %d bytes, %d thousandths", p.MemoryBytes, p.Compute)
		}
		if g := r.Spec.Gang; g != nil {
			part += fmt.Sprintf(" of gang %s of %d", g.Name, g.Size)
		} else if name := r.Spec.Labels[LabelGang]; name != "" {
			part += " beside gang " + name
		}
		fmt.Fprintf(&out, "create %s: %v%s for tenant %s on %s\n", r.ID, r.Spec.GpuIds, part, r.Spec.Tenant, r.Spec.HostId)
	}
	for _, id := range p.Delete {
		fmt.Fprintf(&out, "delete %s\n", id)
	}
	for _, s := range p.Status {
		device := s.Device
		if s.Share != "" {
			device += "@" + s.Share
		}
		fmt.Fprintf(&out, "%s: %s %s: %s\n", device, [...]string{"waiting", "attaching", "attached", "failed"}[s.Phase], s.Reason, s.Message)
	}
	if out.Len() == 0 {
		return "nothing\n"
	}
	return out.String()
}

// TestRequestIDsFit checks the manager's bound for the longest names that Kubernetes has.
func TestRequestIDsFit(t *testing.T) {
	c := &Claim{UID: strings.Repeat("u", 36), Namespace: strings.Repeat("n", 63), Name: strings.Repeat("c", 253), Node: strings.Repeat("h", 253), Host: "h1", Allocated: 1<<40 - 1}
	for _, share := range []string{"", strings.Repeat("s", 36)} {
		r := c.request([]Device{{Name: strings.Repeat("d", 63), Share: share, GPU: "b/0"}}, Policy{Tenant: func(string) string { return "t" }})
		if len(r.ID) > 128 {
			t.Errorf("the request ID has %d characters, at most 128", len(r.ID))
		}
		for k, v := range r.Spec.Labels {
			if len(v) > 256 {
				t.Errorf("label %s has %d bytes, at most 256", k, len(v))
			}
		}
	}
}

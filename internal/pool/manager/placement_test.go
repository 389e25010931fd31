package manager

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// allocationPool has a host of each sort and boxes of each kind:
//
//	n1  NVLink       8 × A100 of 80 GiB
//	p1  PCIe switch  4 × A100 of 40 GiB, its proxy serves 2
//	p2  PCIe switch  6 × A100 of 40 GiB
//	t1  PCIe switch  2 × T4 of 16 GiB
func allocationPool(t *testing.T) *world {
	n1, p1, p2, t1 := nvlinkBox("n1", 8), boxNode("p1", 4), boxNode("p2", 6), boxNode("t1", 2)
	n1.model, n1.memory = "A100", 80<<30
	p1.model, p1.memory, p1.proxy = "A100", 40<<30, 2
	p2.model, p2.memory = "A100", 40<<30
	t1.model, t1.memory = "T4", 16<<30
	h1, h2 := hostNode("h1", 16), hostNode("h2", 6)
	h1.labels = map[string]string{"zone": "a"}
	h2.labels = map[string]string{"zone": "b", "ssd": "yes"}
	h2.domain = func(slot uint32) string { return fmt.Sprintf("vm%d", slot/4) } // vm0 has 4, vm1 has 2
	return newWorld(t, Config{Reserve: placement.Reserve{Count: 1}}, n1, p1, p2, t1, h1, h2)
}

const (
	preferred = dxpuv1.Preference_PREFERENCE_PREFERRED
	required  = dxpuv1.Preference_PREFERENCE_REQUIRED
	avoid     = dxpuv1.Preference_PREFERENCE_AVOID
)

// Every constraint of a lease has an effect on its placement, and the explanation
// names it.
func TestWishesOfALease(t *testing.T) {
	for _, tt := range []struct {
		name string
		spec *dxpuv1.LeaseSpec
		want string // GPUs and host; or what the error says
		why  string // part of the explanation
	}{
		{
			"one of any model: of the one with most to spare, in a PCIe-switch box, where the proxy has bandwidth",
			&dxpuv1.LeaseSpec{Count: 1},
			"p1/0 to h1",
			"Box p1 (PCIe-switch) fits best: 4 free, 3 left.",
		},
		{
			"three do not fit the bandwidth of the fullest box's proxy",
			&dxpuv1.LeaseSpec{Count: 3},
			"p2/0 p2/1 p2/2 to h1",
			"Box p2 (PCIe-switch) fits best: 6 free, 3 left.",
		},
		{"a model", &dxpuv1.LeaseSpec{Count: 1, Model: "T4"}, "t1/0 to h1", "Model T4: 2 of 2 usable GPUs are free, 1 of them held back as spares."},
		{"a model whose last is a spare", &dxpuv1.LeaseSpec{Count: 2, Model: "T4"}, "That leaves 1 for this request, which needs 2.", ""},
		{"a model that the pool lacks", &dxpuv1.LeaseSpec{Count: 1, Model: "H100"}, `The pool has no usable GPU with model "H100".`, ""},
		{"memory", &dxpuv1.LeaseSpec{Count: 1, MinMemoryBytes: 48 << 30}, "n1/0 to h1", "Box n1 (NVLink) fits best: 8 free, 7 left."},
		{
			"more memory than there is",
			&dxpuv1.LeaseSpec{Count: 1, MinMemoryBytes: 96 << 30},
			"The pool has no usable GPU with at least 96 GiB of memory.",
			"",
		},
		{"a kind of box", &dxpuv1.LeaseSpec{Count: 1, BoxKind: dxpuv1.BoxKind_BOX_KIND_NVLINK}, "n1/0 to h1", "Box n1 (NVLink)"},
		{
			"a kind of box, split over several of them",
			&dxpuv1.LeaseSpec{Count: 8, BoxKind: dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH},
			"p2/0 p2/1 p2/2 p2/3 p2/4 p2/5 p1/0 p1/1 to h1",
			"No single box has 8 of them free: the request is split over 2 boxes.",
		},
		{"NVLink preferred", &dxpuv1.LeaseSpec{Count: 2, Nvlink: preferred}, "n1/0 n1/1 to h1", "Box n1 (NVLink)"},
		{"NVLink preferred for more than there is", &dxpuv1.LeaseSpec{Count: 10, Nvlink: preferred, HostId: "h1"}, "n1/0 n1/1 n1/2 n1/3 n1/4 n1/5 n1/6 n1/7 p1/0 p1/1 to h1", "split over 2 boxes"},
		{"NVLink required", &dxpuv1.LeaseSpec{Count: 2, Nvlink: required}, "n1/0 n1/1 to h1", "Box n1 (NVLink)"},
		{"NVLink required for more than there is", &dxpuv1.LeaseSpec{Count: 9, Nvlink: required}, "That leaves 8 for this request, which needs 9.", ""},
		{"the same box required", &dxpuv1.LeaseSpec{Count: 7, SameBox: required}, "n1/0 n1/1 n1/2 n1/3 n1/4 n1/5 n1/6 to h1", "Box n1 (NVLink)"},
		{"the same box required for more than one has", &dxpuv1.LeaseSpec{Count: 10, SameBox: required}, "No single box has 10 of them free together.", ""},
		{
			"the same box preferred for more than one has",
			&dxpuv1.LeaseSpec{Count: 10, SameBox: preferred},
			"n1/0 n1/1 n1/2 n1/3 n1/4 n1/5 n1/6 n1/7 p1/0 p1/1 to h1",
			"the request is split over 2 boxes.",
		},
		{"spread", &dxpuv1.LeaseSpec{Count: 3, SameBox: avoid}, "n1/0 p2/0 p1/0 to h1", "Spread over 3 boxes, as asked."},
		{"a host", &dxpuv1.LeaseSpec{Count: 1, HostId: "h2"}, "p1/0 to h2", "Host h2 has 4 free slots."},
		{"a host that there is not", &dxpuv1.LeaseSpec{Count: 1, HostId: "h3"}, "h3", ""},
		{"a host that has too few slots together", &dxpuv1.LeaseSpec{Count: 5, HostId: "h2"}, "Host h2 does not have 5 free slots in one domain.", ""},
		{"a host's label", &dxpuv1.LeaseSpec{Count: 1, HostLabels: map[string]string{"zone": "b"}}, "p1/0 to h2", "Host h2"},
		{
			"labels that no host has together",
			&dxpuv1.LeaseSpec{Count: 1, HostLabels: map[string]string{"zone": "a", "ssd": "yes"}},
			"No host that has the labels ssd=yes, zone=a is in the pool.",
			"",
		},
		{"a domain of a host", &dxpuv1.LeaseSpec{Count: 2, HostDomain: "vm1"}, "p1/0 p1/1 to h2", "Host h2 has 2 free slots."},
		{"a domain that is too small", &dxpuv1.LeaseSpec{Count: 3, HostDomain: "vm1"}, "No host has 3 free slots in domain vm1.", ""},
		{"more than there are", &dxpuv1.LeaseSpec{Count: 64}, "No host has 64 free slots.", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := allocationPool(t)
			id, err := w.tryCreate(tt.spec)
			if err != nil {
				if !strings.Contains(err.Error(), tt.want) {
					t.Errorf("got %v, want %q", err, tt.want)
				}
				return
			}
			l := w.lease(id)
			if got := fmt.Sprintf("%s to %s", picksOf(l), l.HostId); got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
			if s := w.explain(id); !strings.Contains(s, tt.why) || tt.why == "" {
				t.Errorf("the explanation does not say %q:\n%s", tt.why, s)
			}
			w.settle()
			w.wantLease(id, leaseActive)
		})
	}
}

func picksOf(l *dxpuv1.Lease) string {
	var out []string
	for _, b := range l.Bindings {
		out = append(out, b.GpuId)
	}
	return strings.Join(out, " ")
}

// The times of a lease: whether to wait, for how long, and when it expires.
func TestWishesAboutTime(t *testing.T) {
	w := allocationPool(t)
	first := w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "T4", ExpiresAfter: durationpb.New(time.Minute), Tenant: "a"})
	w.settle()
	w.wantLease(first, leaseActive)
	if _, err := w.tryCreate(&dxpuv1.LeaseSpec{Count: 1, Model: "T4"}); err == nil || !strings.Contains(err.Error(), "no capacity for this lease now") || strings.Contains(err.Error(), "spec.") {
		t.Errorf("a lease without capacity that does not wait: %v", err)
	}
	patient := w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "T4", Wait: true})
	brief := w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "T4", Wait: true, WaitTimeout: durationpb.New(20 * time.Second)})
	urgent := w.create(&dxpuv1.LeaseSpec{Count: 1, Model: "T4", Wait: true, Priority: 5})
	for id, want := range map[string]string{
		urgent:  "It is number 1 of 3 in the queue: its priority is 5",
		patient: "It is number 2 of 3 in the queue: its priority is 0, and tenant default has 0 GPUs.",
		brief:   "It is number 3 of 3 in the queue",
	} {
		s := w.explain(id)
		for _, want := range []string{
			want, "Model T4: 1 of 2 usable GPUs are free, 1 of them held back as spares.", "That leaves 0 for this request, which needs 1.",
			"No preemptible lease has a priority below", "The lease is pending",
		} {
			if !strings.Contains(s, want) {
				t.Errorf("lease %s: the explanation does not say %q:\n%s", id, want, s)
			}
		}
	}
	w.pass(25 * time.Second)
	if l := w.wantLease(brief, leaseFailed); !strings.Contains(l.StateReason, "the wait timed out") {
		t.Errorf("the lease that waited for 20 s: %s", l.StateReason)
	}
	w.pass(40 * time.Second) // the first one expires
	w.settle()
	if l := w.wantLease(first, leaseReleased); !strings.Contains(l.StateReason, "expired") {
		t.Errorf("the lease that was to last a minute: %s", l.StateReason)
	}
	w.wantLease(urgent, leaseActive)
	w.wantLease(patient, leasePending)
}

package manager

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
)

// reportAs makes a node report what change makes of its report.
func (w *world) reportAs(id string, change func(*dxpuv1.ObservedState)) error {
	o := w.nodes[id].observe()
	change(o)
	if err := checkReport(o); err != nil {
		return err
	}
	_, _, err := w.m.report(context.Background(), o, func(*tx) error { return nil })
	return err
}

// A report is not refused because of the errors of earlier ones, nor because of what operators have
// set: the change of health counts.
func TestReportsOfManyErrors(t *testing.T) {
	w := newWorld(t, Config{}, boxNode("b1", maxSlots))
	errorsOf := func(o *dxpuv1.ObservedState, text string, codes ...uint32) {
		for _, s := range o.Slots {
			for _, c := range codes {
				s.Errors = append(s.Errors, &dxpuv1.DeviceError{Code: c, Count: 1 << 63, Detail: text})
			}
		}
	}
	codes := []uint32{31, 48, 63, 74, 92, 94, 95}
	long := strings.Repeat("<", maxText)
	report := func(failed uint32, text string) error {
		return w.reportAs("b1", func(o *dxpuv1.ObservedState) {
			o.InstanceId = long
			errorsOf(o, text, codes...)
			for _, s := range o.Slots {
				s.Device.Serial = fmt.Sprintf("1320921%06d", s.Slot)
				s.HealthDetail = text
			}
			o.Slots[failed].Health = dxpuv1.Health_HEALTH_FAILED
		})
	}
	for i, text := range []string{"page fault in a kernel of a program", long, ""} {
		if err := report(uint32(i), text); err != nil {
			t.Errorf("report %d: %v", i, err)
		}
		_ = w.m.view(func(tx *tx) error {
			for j := range uint32(3) {
				want := dxpuv1.Health_HEALTH_OK
				if j == uint32(i) {
					want = dxpuv1.Health_HEALTH_FAILED
				}
				if s := tx.nodes.get("b1").slot(j); s.Health != want {
					t.Errorf("after report %d: slot %d is %s", i, j, healthWord(s.Health))
				}
			}
			return nil
		})
		if n := len(w.encoded()["node/b1"]); n > maxRecord {
			t.Errorf("after report %d: the record has %d bytes, at most %d", i, n, maxRecord)
		}
	}
	if !strings.Contains(w.events(), "which is not counted: box b1 has reported 1024 kinds of errors of its GPUs") {
		t.Error("no event says that errors are not counted")
	}
	// Operators fill their part of the record, and no more.
	var refused error
	for i := range uint32(maxSlots) {
		if _, refused = w.api().Cordon(t.Context(), connect.NewRequest(&dxpuv1.CordonRequest{
			Target: &dxpuv1.Target{Target: &dxpuv1.Target_GpuId{GpuId: gpuID("b1", i)}}, Reason: long,
		})); refused != nil {
			break
		}
	}
	if refused == nil || !strings.Contains(refused.Error(), "its cordons and taints would take") {
		t.Errorf("cordons without a bound: %v", refused)
	}
	before := len(w.events())
	if err := report(7, long); err != nil {
		t.Errorf("with as many cordons as there can be: %v", err)
	}
	if strings.Contains(w.events()[before:], "has had") {
		t.Errorf("errors are counted again:\n%.500s", w.events()[before:])
	}
}

// An error that requires a reset is counted where many others are.
func TestGraveErrorAmongMany(t *testing.T) {
	const slots = 512
	w := newWorld(t, Config{}, boxNode("b1", slots))
	n := w.nodes["b1"]
	for i := range uint32(slots) {
		for _, code := range []uint32{13, 31, 43, 45} {
			n.addError(i, code)
		}
	}
	w.report("b1")
	n.addError(slots-1, 79)
	w.report("b1")
	for range 3 {
		w.report("b1")
	}
	if got := strings.Count(w.events(), "GPU b1/511 has had XID 79"); got != 1 {
		t.Errorf("%d events of XID 79, want one", got)
	}
	if got := strings.Count(w.events(), "has had XID 13 "); got != maxNodeErrors/4+1 { // one says that it is not counted
		t.Errorf("%d events of XID 13, want %d", got, maxNodeErrors/4+1)
	}
	_ = w.m.view(func(tx *tx) error {
		if n := tx.nodes.get("b1"); n.slot(slots-1).Fault.usable() || n.errorClasses() != maxNodeErrors {
			t.Errorf("GPU %+v, %d kinds of errors", n.slot(slots-1).Fault, n.errorClasses())
		}
		return nil
	})
	n.restart()
	w.report("b1")
	n.addError(0, 63)
	w.report("b1")
}

// A record that an earlier version let grow may stay so large, whatever the manager itself adds.
func TestSizeOfAReport(t *testing.T) {
	n := &nodeRecord{ID: "b1", Labels: map[string]string{"zone": "a"}, Slots: []slotRecord{{Slot: 1, HealthDetail: "warm"}}}
	reported := func() int {
		size, err := n.sizes()
		if err != nil {
			t.Fatal(err)
		}
		return size.reported
	}
	was := reported()
	n.Certificates, n.CredentialHash, n.Stability = []string{"1", "2"}, []byte("hash"), &stability{}
	n.DesiredRevision, n.ResourceVersion, n.Cordon = 1<<40, 1<<40, &cordon{Reason: "repair"}
	if got := reported(); got != was {
		t.Errorf("the report has %d bytes with the manager's fields, %d without", got, was)
	}
}

// A time that no record can hold is an error of its change, and no end of the manager.
func TestNodeThatCannotBeEncoded(t *testing.T) {
	w := newWorld(t, Config{}, boxNode("b1", 1))
	err := w.m.update(t.Context(), func(tx *tx) error {
		n := tx.nodes.edit("b1")
		n.Slots[0].HealthDetail = strings.Repeat("x", maxSet)
		n.Slots[0].Fault = &faultRecord{Errors: []errorCount{{Last: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)}}}
		return nil
	})
	if err == nil || !strings.Contains(err.Error(), "node b1 cannot be encoded") {
		t.Errorf("a time of the year 10000: %v", err)
	}
}

// The record forgets codes, and not how often the GPU failed.
func TestFailuresAreKept(t *testing.T) {
	c := &faultRecord{
		Errors: []errorCount{{Code: 31, Count: 1}},
		Recent: []gpuerr.Occurrence{{Code: 31}, {Code: gpuerr.DeviceFailed}, {Code: gpuerr.DeviceFailed}},
	}
	c.dropErrors()
	if len(c.Errors) != 0 || len(c.Recent) != 2 {
		t.Errorf("left are %v and %v", c.Errors, c.Recent)
	}
}

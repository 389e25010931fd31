package manager

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// oversized returns requests of a kind that each exceed one limit, by the name that the
// error must contain.
func oversized(d protoreflect.MessageDescriptor, path string, wrap func(*dynamicpb.Message) *dynamicpb.Message) map[string]*dynamicpb.Message {
	out := map[string]*dynamicpb.Message{}
	long := protoreflect.ValueOfString(strings.Repeat("x", 100_000))
	for i := range d.Fields().Len() {
		f := d.Fields().Get(i)
		name := path + string(f.Name())
		with := func(set func(m *dynamicpb.Message)) *dynamicpb.Message {
			m := dynamicpb.NewMessage(d)
			set(m)
			return wrap(m)
		}
		switch {
		case f.IsMap():
			value := f.MapValue().Default()
			if f.MapValue().Kind() == protoreflect.StringKind {
				out[name+"[k]"] = with(func(m *dynamicpb.Message) { m.Mutable(f).Map().Set(protoreflect.ValueOfString("k").MapKey(), long) })
			}
			out["a key of "+name] = with(func(m *dynamicpb.Message) { m.Mutable(f).Map().Set(long.MapKey(), value) })
			out[name+": 5000 entries"] = with(func(m *dynamicpb.Message) {
				for i := range 5_000 {
					m.Mutable(f).Map().Set(protoreflect.ValueOfString(fmt.Sprint(i)).MapKey(), value)
				}
			})
		case f.IsList():
			out[name] = with(func(m *dynamicpb.Message) {
				for range 5_000 {
					m.Mutable(f).List().Append(m.Mutable(f).List().NewElement())
				}
			})
		case f.Kind() == protoreflect.StringKind:
			out[name] = with(func(m *dynamicpb.Message) { m.Set(f, long) })
		case f.Kind() == protoreflect.MessageKind:
			for name, m := range oversized(f.Message(), name+".", func(inner *dynamicpb.Message) *dynamicpb.Message {
				return with(func(m *dynamicpb.Message) { m.Set(f, protoreflect.ValueOfMessage(inner)) })
			}) {
				out[name] = m
			}
		}
	}
	return out
}

// Every text, list and map of every call has a limit, and the error names the
// field, its size and the limit.
func TestEveryFieldIsBounded(t *testing.T) {
	fields := 0
	for _, file := range []protoreflect.FileDescriptor{dxpuv1.File_dxpu_v1_dxpu_proto, dxpuv1.File_dxpu_v1_node_proto} {
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				in := methods.Get(j).Input()
				if in.Name() == "ReportRequest" {
					continue // checkReport bounds it
				}
				for name, m := range oversized(in, "", func(m *dynamicpb.Message) *dynamicpb.Message { return m }) {
					fields++
					err := checkBounds(m)
					if err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "at most") {
						t.Errorf("%s with a large %s: %.200v", in.Name(), name, err)
					}
				}
			}
		}
	}
	if fields < 60 {
		t.Errorf("only %d fields were tried", fields)
	}
}

// A text that the store could not hold is refused by the call, and the pool and
// its backups go on.
func TestHugeLabel(t *testing.T) {
	w := newAccessWorld(t)
	for _, body := range []string{
		`{"spec":{"count":1,"wait":true,"labels":{"note":"` + strings.Repeat("x", 3_600_000) + `"}}}`,
		`{"spec":{"count":1,"wait":true,"labels":{"note":"` + strings.Repeat("<", maxText+1) + `"}}}`,
	} {
		got := callJSON(w.handler, "/dxpu.v1.PoolService/CreateLease", w.secrets["admin"], "192.0.2.7:1", []byte(body))
		if got.code != "invalid_argument" || !strings.HasPrefix(got.message, "spec.labels[note]: ") || !strings.HasSuffix(got.message, "bytes, at most 256") {
			t.Errorf("a label of %d bytes: %s %.100s", len(body), got.code, got.message)
		}
	}
	for key, r := range w.encoded() {
		if len(r) > 10_000 {
			t.Errorf("record %s has %d bytes", key, len(r))
		}
	}
}

// encoded returns all records as they are stored.
func (w *world) encoded() map[string][]byte {
	w.t.Helper()
	var records map[string]any
	_ = w.m.view(func(t *tx) error {
		records = t.all()
		return nil
	})
	put, _, err := encode(records)
	if err != nil {
		w.t.Fatalf("encode: %v", err)
	}
	return put
}

// The largest record of each kind that the bounds allow fits the store.
func TestRecordsFitTheStore(t *testing.T) {
	text := func(n int) string { return strings.Repeat("<", n) } // six bytes each in JSON
	labels := func(n int) map[string]string {
		m := map[string]string{}
		for i := range n {
			m[fmt.Sprint(text(maxText-4), i)] = text(maxText)
		}
		return m
	}
	now := time.Unix(1_700_000_000, 123_456_789)
	spec := &dxpuv1.LeaseSpec{
		Count: maxGPUs, Model: text(maxText), HostId: text(maxText), HostDomain: text(maxText), Tenant: text(maxText),
		Labels: labels(maxLabels), HostLabels: labels(maxLabels),
	}
	lease := &leaseRecord{ID: "l-1", RequestID: text(maxText), StateReason: text(maxReason), Model: text(maxText), HostID: text(maxText), Trace: text(maxText), Creator: text(maxText), CreateTime: now, spec: spec}
	raw, err := protojson.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	lease.Spec = raw
	binding := &bindingRecord{ID: "b-1", LeaseID: "l-1", BoxID: text(63), BoxSlot: 1 << 31, Detail: text(maxText), Trace: text(maxText)}
	for range 10 * maxAvoid {
		lease.explain(text(2 * maxLine))
		lease.avoid(binding)
	}
	for range 2*maxSteps + 16 {
		binding.Steps = append(binding.Steps, stepRecord{Name: text(maxText), Time: now, Duration: time.Hour, NodeID: text(63)})
	}
	models := map[string]uint32{}
	for i := range maxModels {
		models[fmt.Sprint(text(maxText-4), i)] = 1 << 31
	}
	tombstones := &secretRecord{}
	for range maxDeletedNodes {
		tombstones.Deleted = append(tombstones.Deleted, make([]byte, 32))
	}
	records := map[string]any{
		"lease/l-1":            lease,
		"binding/b-1":          binding,
		"tenant/a":             &tenantRecord{ID: "a", Description: text(maxText), Quota: quotaRecord{MaxGPUsByModel: models}},
		"token/t-1":            &tokenRecord{ID: "t-1", Description: text(maxText), Creator: text(maxText), SecretHash: make([]byte, 32)},
		"audit/1":              &auditRecord{Procedure: text(maxText), Target: text(maxText), Message: text(2 * maxText), Request: text(maxAuditRequest), Actor: text(maxText), Peer: text(maxText)},
		"secret/deleted-nodes": tombstones,
		"plan/m-1":             &planRecord{ID: "m-1", RequestID: text(128), Box: text(maxText), Reason: text(maxText), Creator: text(maxText)},
	}
	// Leases that have ended are packed only if sizeBound allows it.
	for _, r := range []*endedRecord{{Lease: lease}, {Lease: lease, Bindings: []*bindingRecord{binding, binding}}, {Lease: &leaseRecord{Spec: raw}, Bindings: []*bindingRecord{{}}}} {
		put, _, err := encode(map[string]any{"ended": r})
		if n := len(put["ended"]); err != nil || n > r.sizeBound() || n < r.sizeBound()/8 {
			t.Errorf("an ended record has %d bytes, bound by %d, %v", n, r.sizeBound(), err)
		}
	}
	put, _, err := encode(records)
	if err != nil {
		t.Fatal(err)
	}
	for key, r := range put {
		if len(r) > maxRecord {
			t.Errorf("record %s has %d bytes, the bound is %d", key, len(r), maxRecord)
		}
	}
}

// A node whose texts are each allowed, but are too many for one record, is refused.
func TestNodeRecordIsBounded(t *testing.T) {
	w := newWorld(t, Config{}, boxNode("b1", maxSlots))
	report := func(text string) error {
		o := w.nodes["b1"].observe()
		for _, s := range o.Slots {
			s.HealthDetail, s.Device.Serial = text, text
		}
		_, _, err := w.m.report(context.Background(), o, func(*tx) error { return nil })
		return err
	}
	if err := report("serial number 0123456789"); err != nil {
		t.Errorf("a large node: %v", err)
	}
	if err := report(strings.Repeat("<", maxText)); err == nil || !strings.Contains(err.Error(), "node b1: its report would take") {
		t.Errorf("a node that is too large: %v", err)
	}
	var worst nodeRecord
	_ = w.m.view(func(t *tx) error {
		worst = *t.nodes.get("b1")
		worst.unshare()
		return nil
	})
	for i := range worst.Slots {
		c := &faultRecord{Serial: strings.Repeat("<", maxText), Why: strings.Repeat("<", maxText), Reset: 1 << 62, Done: 1 << 61, ResetAsked: w.clock.t, QuarantinedUntil: w.clock.t, Returned: w.clock.t}
		for range maxErrors {
			c.Errors = append(c.Errors, errorCount{Code: 1 << 31, Count: 1 << 63, Seen: 1 << 63, Detail: strings.Repeat("<", maxText), Last: w.clock.t})
			c.Recent = gpuerr.Append(c.Recent, gpuerr.Occurrence{Code: 1 << 31, Count: 1 << 63, Time: w.clock.t})
		}
		worst.Slots[i].Fault, worst.Slots[i].Cordon = c, &cordon{Reason: strings.Repeat("<", maxText), Drain: &drain{Since: w.clock.t, Deadline: w.clock.t}}
	}
	raw, _, err := encode(map[string]any{"node/b1": &worst})
	if err != nil {
		t.Fatal(err)
	}
	if got := len(raw["node/b1"]); worst.sizeBound() < got {
		t.Errorf("a record of %d bytes is taken for %d at most", got, worst.sizeBound())
	}
}

// A binding whose lease the store could not hold gives its GPU back.
func TestBindingWithoutLease(t *testing.T) {
	store := &MemoryStore{}
	w := newWorld(t, Config{Store: store}, hostNode("h1", 4), boxNode("b1", 4))
	id := w.create(&dxpuv1.LeaseSpec{Count: 2})
	w.settle()
	w.wantLease(id, leaseActive)
	delete(store.records, leasePrefix+id)
	w.restoredPool(store.records)
	w.settle()
	_ = w.m.view(func(tx *tx) error {
		for i := range uint32(4) {
			if b := tx.holderOf(placement.Ref{Box: "b1", Slot: i}); b != nil {
				t.Errorf("GPU b1/%d is held by %s", i, b.ID)
			}
		}
		return nil
	})
	w.create(&dxpuv1.LeaseSpec{Count: 4})
}

// The text of a node or of a caller cannot move the cursor of an operator's terminal.
func TestTextsHaveNoControlCharacters(t *testing.T) {
	if got, want := truncateText("a\x1b[2J\r\nb\u202ec\xff é"), "a [2J  b c é"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

package manager

import (
	"context"
	"reflect"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// A record that no store can hold fails its own transaction, whatever waits for the store with it.
func TestRecordThatCannotBeEncoded(t *testing.T) {
	never := time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	for name, spoil := range map[string]func(*tx){
		"a binding's step":  func(tx *tx) { b := tx.bindings.edit("b-2"); b.Steps = append(b.Steps, stepRecord{Time: never}) },
		"a binding's time":  func(tx *tx) { tx.bindings.edit("b-2").MoveFailed = never },
		"before the year 0": func(tx *tx) { tx.bindings.edit("b-2").MoveFailed = time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC) },
		"a token":           func(tx *tx) { tx.tokens.put("t-1", &tokenRecord{ID: "t-1", ExpireTime: never}) },
		"a plan":            func(tx *tx) { tx.plans.put("m-1", &planRecord{ID: "m-1", Start: never, End: never}) },
		"a cordon of a slot": func(tx *tx) {
			tx.nodes.edit("b1").Slots[0].Cordon = &cordon{Drain: &drain{Deadline: never, Done: true}}
		},
		"a tenant":  func(tx *tx) { tx.tenants.put("a", &tenantRecord{ID: "a", CreateTime: never}) },
		"a history": func(tx *tx) { tx.histories.put("b1/0", &historyRecord{Incidents: []incidentRecord{{}, {Last: never}}}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w, s := gated(t, hostNode("h1", 4), boxNode("b1", 4))
				gate := s.gate
				s.gate = nil
				w.create(&dxpuv1.LeaseSpec{Count: 2})
				w.settle()
				s.gate = gate
				var wg sync.WaitGroup
				errs := make(chan error, 3)
				update := func(f func(*tx)) {
					wg.Go(func() {
						errs <- w.m.update(context.Background(), func(tx *tx) error {
							f(tx)
							return nil
						})
					})
					synctest.Wait()
				}
				update(func(tx *tx) { tx.tenants.put("b", &tenantRecord{ID: "b"}) }) // is being stored
				update(func(tx *tx) { tx.tenants.put("c", &tenantRecord{ID: "c"}) })
				update(spoil)
				close(s.gate)
				wg.Wait()
				failed := 0
				for range 3 {
					if err := <-errs; err != nil {
						failed++
						if connect.CodeOf(err) != connect.CodeInvalidArgument || !strings.Contains(err.Error(), "cannot have the time ") {
							t.Errorf("got %v", err)
						}
					}
				}
				if failed != 1 || w.m.stateErr != nil {
					t.Errorf("%d of three transactions failed, want one; %v", failed, w.m.stateErr)
				}
				w.checkIndex(t)
			})
		})
	}
}

// Each type of records can be checked, and nothing else in it can fail to be encoded.
func TestTimesOfRecords(t *testing.T) {
	s := newState(time.Unix(0, 0))
	for _, times := range []*timesOf{s.nodes.times, s.leases.times, s.bindings.times, s.tenants.times, s.tokens.times, s.audits.times, s.histories.times, s.samples.times, s.plans.times} {
		if times == nil {
			t.Error("a type of records whose times are not found")
		}
	}
	if findTimes(reflect.TypeFor[meta]()) != nil {
		t.Error("the record of the pool has a time: transactions must check it")
	}
	defer func() {
		if recover() == nil {
			t.Error("a number that may be infinite was accepted")
		}
	}()
	findTimes(reflect.TypeFor[struct{ Load float64 }]())
}

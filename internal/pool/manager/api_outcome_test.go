package manager

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/auth"
)

// effectOf returns the outcome in an error's details.
func effectOf(err error) dxpuv1.CallEffect {
	var ce *connect.Error
	if errors.As(err, &ce) {
		for _, d := range ce.Details() {
			if v, err := d.Value(); err == nil {
				if o, ok := v.(*dxpuv1.CallOutcome); ok {
					return o.Effect
				}
			}
		}
	}
	return 0
}

// A call that could not be stored may have happened; a read, and a call that a manager
// refuses, has changed nothing.
func TestOutcomeOfFailedCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, s := gated(t, hostNode("h1", 4), boxNode("b1", 4))
		var wg sync.WaitGroup
		var write, read error
		wg.Go(func() { _, write = w.tryCreate(&dxpuv1.LeaseSpec{Count: 1}) })
		synctest.Wait()
		wg.Go(func() {
			_, read = w.api().ListLeases(operatorContext(), connect.NewRequest(&dxpuv1.ListLeasesRequest{}))
		})
		synctest.Wait()
		s.gate <- errors.New("disk full")
		wg.Wait()
		for _, tt := range []struct {
			what string
			err  error
			want dxpuv1.CallEffect
		}{
			{"a change that was not stored", write, dxpuv1.CallEffect_CALL_EFFECT_UNKNOWN},
			{"a read of it", read, dxpuv1.CallEffect_CALL_EFFECT_NONE},
			{"a manager that stops", (&Manager{}).notLeading(), dxpuv1.CallEffect_CALL_EFFECT_NONE},
			{"a manager that was deposed meanwhile", errDeposed(), dxpuv1.CallEffect_CALL_EFFECT_UNKNOWN},
		} {
			if connect.CodeOf(tt.err) != connect.CodeUnavailable || effectOf(tt.err) != tt.want {
				t.Errorf("%s: %v with %v, want %v", tt.what, tt.err, effectOf(tt.err), tt.want)
			}
		}
		s.gate = nil
	})
}

// fullDisk is the error of a store that has not begun to write.
type fullDisk struct{}

func (fullDisk) Error() string       { return "the disk is full" }
func (fullDisk) NothingStored() bool { return true }

// A change that the store refused before it wrote anything has not happened, and neither
// have the changes that waited behind one of unknown fate, or that were refused.
func TestOutcomeOfChangesThatWereNotWritten(t *testing.T) {
	for _, tt := range []struct {
		fault         error
		first, second dxpuv1.CallEffect
	}{
		{fullDisk{}, dxpuv1.CallEffect_CALL_EFFECT_NONE, dxpuv1.CallEffect_CALL_EFFECT_NONE},
		{errors.New("no answer"), dxpuv1.CallEffect_CALL_EFFECT_UNKNOWN, dxpuv1.CallEffect_CALL_EFFECT_NONE},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, s := gated(t, hostNode("h1", 4), boxNode("b1", 4))
			var wg sync.WaitGroup
			errs := make([]error, 3)
			for i, count := range []uint32{1, 1, 9} { // the last has no place
				wg.Go(func() { _, errs[i] = w.tryCreate(&dxpuv1.LeaseSpec{Count: count}) })
				synctest.Wait()
			}
			s.gate <- tt.fault
			wg.Wait()
			for i, want := range []dxpuv1.CallEffect{tt.first, tt.second, dxpuv1.CallEffect_CALL_EFFECT_NONE} {
				unknown := strings.Contains(errs[i].Error(), "may not have happened")
				if connect.CodeOf(errs[i]) != connect.CodeUnavailable || effectOf(errs[i]) != want || unknown != (want == dxpuv1.CallEffect_CALL_EFFECT_UNKNOWN) && i < 2 {
					t.Errorf("%v, change %d: %v with %v, want %v", tt.fault, i, errs[i], effectOf(errs[i]), want)
				}
			}
			s.gate = nil
		})
	}
}

// A repeated CreateToken returns the same token; its first secret is no longer good.
func TestCreateTokenIsRepeatable(t *testing.T) {
	w := newWorld(t, Config{})
	ctx := auth.With(t.Context(), auth.Identity{Actor: "t-admin", Role: dxpuv1.Role_ROLE_ADMIN})
	req := &dxpuv1.CreateTokenRequest{Role: dxpuv1.Role_ROLE_OPERATOR, RequestId: "r1", Description: "ci"}
	first, err := w.api().CreateToken(ctx, connect.NewRequest(req))
	if err != nil {
		t.Fatal(err)
	}
	second, err := w.api().CreateToken(ctx, connect.NewRequest(req))
	if err != nil || second.Msg.Token.Id != first.Msg.Token.Id || second.Msg.Secret == first.Msg.Secret {
		t.Fatalf("%v, %v", second, err)
	}
	for i, secret := range []string{first.Msg.Secret, second.Msg.Secret} {
		got := callJSON(w.m.Handler(), "/dxpu.v1.PoolService/WhoAmI", secret, "192.0.2.7:1", []byte("{}"))
		if (got.code == "ok") != (i == 1) {
			t.Errorf("secret %d: %v", i+1, got)
		}
	}
	other := auth.With(t.Context(), auth.Identity{Actor: "t-other", Role: dxpuv1.Role_ROLE_ADMIN})
	_, err = w.api().CreateToken(other, connect.NewRequest(req))
	wantErr(t, err, connect.CodeAlreadyExists, "was used for another token")
	_, err = w.api().CreateToken(ctx, connect.NewRequest(&dxpuv1.CreateTokenRequest{Role: dxpuv1.Role_ROLE_ADMIN, RequestId: "r1"}))
	wantErr(t, err, connect.CodeAlreadyExists, "was used for another token")
}

// A repeated ReplaceGPU does not replace the replacement.
func TestReplaceGPUIsRepeatable(t *testing.T) {
	w := newWorld(t, Config{}, hostNode("h1", 4), boxNode("b1", 4))
	id := w.create(&dxpuv1.LeaseSpec{Count: 1})
	w.settle()
	gpu := w.lease(id).Bindings[0].GpuId
	req := &dxpuv1.ReplaceGPURequest{GpuId: gpu, RequestId: "r1"}
	var answers []string
	for range 3 {
		res, err := w.api().ReplaceGPU(t.Context(), connect.NewRequest(req))
		if err != nil {
			t.Fatal(err)
		}
		answers = append(answers, fmt.Sprint(res.Msg.Binding.Id, " ", res.Msg.Lease.Id))
		w.settle()
	}
	if answers[1] != answers[0] || answers[2] != answers[0] || len(w.lease(id).Bindings) != 2 {
		t.Errorf("answers %v, bindings %v", answers, w.lease(id).Bindings)
	}
	w.checkIndex(t)
	_, err := w.api().ReplaceGPU(t.Context(), connect.NewRequest(&dxpuv1.ReplaceGPURequest{GpuId: "b1/3", RequestId: "r1"}))
	wantErr(t, err, connect.CodeAlreadyExists, "was used to replace GPU "+gpu)
}

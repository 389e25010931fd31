package cli

import (
	"context"
	"net/http"
	"slices"
	"strconv"
	"testing"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

// auditedPool is a pool with an audit log that gets another entry after each call.
type auditedPool struct {
	dxpuv1connect.UnimplementedPoolServiceHandler
	revision uint64 // of the newest entry; the oldest one has 1
}

func (p *auditedPool) ListAudit(_ context.Context, r *connect.Request[dxpuv1.ListAuditRequest]) (*connect.Response[dxpuv1.ListAuditResponse], error) {
	res := &dxpuv1.ListAuditResponse{Revision: p.revision}
	p.revision++
	last, _ := strconv.ParseUint(r.Msg.PageToken, 10, 64)
	next := func() (uint64, bool) {
		if r.Msg.AfterRevision != 0 {
			last = max(last, r.Msg.AfterRevision) + 1
			return last, last <= res.Revision
		}
		if last == 0 {
			last = res.Revision + 1
		}
		last--
		return last, last > 0
	}
	for {
		at, ok := next()
		if !ok {
			return connect.NewResponse(res), nil
		}
		if len(res.Entries) == int(r.Msg.PageSize) {
			res.NextPageToken = strconv.FormatUint(res.Entries[len(res.Entries)-1].Revision, 10)
			return connect.NewResponse(res), nil
		}
		res.Entries = append(res.Entries, &dxpuv1.AuditEntry{Revision: at})
	}
}

// A program that copies the audit log continues after the revision of the output, and misses
// no entry. It was 0.
func TestAuditRevision(t *testing.T) {
	for _, tt := range []struct {
		name        string
		after       uint64
		limit       int
		first, last uint64
		entries     int
		revision    uint64
	}{
		{"newest entries", 0, 20, 2500, 2481, 20, 2500},
		{"all, in three calls", 0, 0, 2500, 1, 2500, 2500},
		{"all after a revision, in three calls", 100, 0, 101, 2502, 2402, 2502},
		{"some after a revision", 100, 20, 101, 120, 20, 120},
		{"a limit that is reached", 2480, 20, 2481, 2500, 20, 2500},
		{"a limit that is not reached", 2480, 21, 2481, 2500, 20, 2500},
		{"none", 2500, 0, 0, 0, 0, 2500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, h := dxpuv1connect.NewPoolServiceHandler(&auditedPool{revision: 2500})
			api := dxpuv1connect.NewPoolServiceClient(&http.Client{Transport: inProcess{h}}, "http://pool")
			all, err := listAudit(t.Context(), api, &dxpuv1.ListAuditRequest{AfterRevision: tt.after}, tt.limit)
			if err != nil {
				t.Fatal(err)
			}
			got := revisions(all)
			if len(got) != tt.entries || all.Revision != tt.revision {
				t.Errorf("%d entries, continue after %d; want %d entries, %d", len(got), all.Revision, tt.entries, tt.revision)
			}
			if len(got) > 0 && (got[0] != tt.first || got[len(got)-1] != tt.last) {
				t.Errorf("entries %d to %d, want %d to %d", got[0], got[len(got)-1], tt.first, tt.last)
			}
			if slices.Sort(got); len(slices.Compact(got)) != tt.entries {
				t.Error("entries are there twice")
			}
		})
	}
}

func revisions(all *dxpuv1.ListAuditResponse) (r []uint64) {
	for _, e := range all.Entries {
		r = append(r, e.Revision)
	}
	return r
}

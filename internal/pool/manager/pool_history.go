package manager

import (
	"cmp"
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const (
	sampleInterval = time.Minute
	// keepSamples is the number of samples: those of a day.
	keepSamples = 24 * 60
)

// sampleRecord is the occupancy and the use of the pool at one time. It is not changed
// once stored.
type sampleRecord struct {
	Time    time.Time `json:"time"`
	GPUs    uint32    `json:"gpus"`
	Free    uint32    `json:"free,omitempty"`
	Bound   uint32    `json:"bound,omitempty"`
	Idle    uint32    `json:"idle,omitempty"`
	Held    uint32    `json:"held,omitempty"`
	Busy    uint32    `json:"busy,omitempty"`
	Active  uint32    `json:"active,omitempty"`
	Pending uint32    `json:"pending,omitempty"`
}

// takeSample adds a sample of the present minute, if there is none and if the nodes have
// had time to report to this manager. The ring has a place for each minute of a day.
func (m *Manager) takeSample(ctx context.Context) error {
	now := m.cfg.Now()
	key := sortable("", uint64(now.Unix()/int64(sampleInterval/time.Second))%keepSamples)
	due, alike := false, m.alike()
	_ = m.peek(func(t *tx) error {
		if t.alike = alike; !alike {
			return nil
		}
		old := t.samples.get(key)
		due = !now.Before(t.reconnected()) && (old == nil || now.Sub(old.Time).Abs() >= sampleInterval)
		return nil
	})
	if !due {
		return nil
	}
	return m.update(ctx, func(t *tx) error {
		p := &dxpuv1.Pool{}
		t.addTotals(p)
		t.samples.put(key, &sampleRecord{
			Time: now.Round(0), GPUs: p.Gpus, Free: p.GpusFree, Bound: p.GpusBound, Idle: p.GpusIdle, Held: p.GpusHeld, Busy: p.GpusBusy,
			Active: p.LeasesActive, Pending: p.LeasesPending,
		})
		return nil
	})
}

// GetPoolHistory implements dxpuv1connect.PoolServiceHandler.
func (s *poolService) GetPoolHistory(ctx context.Context, req *connect.Request[dxpuv1.GetPoolHistoryRequest]) (*connect.Response[dxpuv1.GetPoolHistoryResponse], error) {
	if n := req.Msg.Samples; n > keepSamples {
		return nil, invalid("samples: %d is more than %d, the minutes of a day", n, keepSamples)
	}
	return viewResponse(ctx, s.m, func(t *tx, res *dxpuv1.GetPoolHistoryResponse) error {
		var all []*sampleRecord
		for _, r := range t.samples.rows {
			if age := t.now.Sub(r.Time); age > -sampleInterval && age <= keepSamples*sampleInterval {
				all = append(all, r)
			}
		}
		slices.SortFunc(all, func(a, b *sampleRecord) int { return a.Time.Compare(b.Time) })
		width := 1 // samples in the mean of one
		if n := int(req.Msg.Samples); n > 0 {
			width = (len(all) + n - 1) / n
		}
		for part := range slices.Chunk(all, cmp.Or(width, 1)) {
			res.Samples = append(res.Samples, meanSample(part))
		}
		return nil
	})
}

// meanSample returns the mean of samples, at the time of the newest one.
func meanSample(of []*sampleRecord) *dxpuv1.PoolSample {
	mean := func(field func(*sampleRecord) uint32) uint32 {
		sum := uint64(0)
		for _, r := range of {
			sum += uint64(field(r))
		}
		return uint32((sum + uint64(len(of))/2) / uint64(len(of)))
	}
	out := &dxpuv1.PoolSample{
		Time: timestamppb.New(of[len(of)-1].Time),
		Gpus: mean(func(r *sampleRecord) uint32 { return r.GPUs }), GpusFree: mean(func(r *sampleRecord) uint32 { return r.Free }),
		GpusBound: mean(func(r *sampleRecord) uint32 { return r.Bound }), GpusIdle: mean(func(r *sampleRecord) uint32 { return r.Idle }),
		GpusHeld: mean(func(r *sampleRecord) uint32 { return r.Held }), GpusBusy: mean(func(r *sampleRecord) uint32 { return r.Busy }),
		LeasesActive: mean(func(r *sampleRecord) uint32 { return r.Active }), LeasesPending: mean(func(r *sampleRecord) uint32 { return r.Pending }),
	}
	out.GpusUnavailable = out.Gpus - min(out.Gpus, out.GpusFree+out.GpusBound)
	return out
}

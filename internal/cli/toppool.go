package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/plural"
)

// poolTop is one table of "dxpu top" for a pool.
type poolTop struct {
	Time   time.Time   `json:"time"`
	Pool   poolCounts  `json:"pool"`
	Leases []topLease  `json:"leases"` // unhealthy ones first, then by traffic
	Queue  []topQueued `json:"queue"`
	More   int         `json:"leases_left_out"` // because of --rows
}

type poolCounts struct {
	Leader         string `json:"leader,omitempty"`
	Hosts          uint32 `json:"hosts"`
	HostsConnected uint32 `json:"hosts_connected"`
	Boxes          uint32 `json:"boxes"`
	BoxesConnected uint32 `json:"boxes_connected"`
	GPUs           uint32 `json:"gpus"`
	Free           uint32 `json:"gpus_free"`
	Bound          uint32 `json:"gpus_bound"`
	Unavailable    uint32 `json:"gpus_unavailable"`
	Spares         uint32 `json:"spares_held"`
}

// topLease is a lease with the sums of its links, as its host counts them.
type topLease struct {
	ID     string        `json:"id"`
	Tenant string        `json:"tenant"`
	State  string        `json:"state"`
	Host   string        `json:"host"`
	GPUs   int           `json:"gpus"` // attached
	Want   uint32        `json:"gpus_wanted"`
	Age    time.Duration `json:"age_ns"`
	RTT    time.Duration `json:"round_trip_ns"` // the longest of its links
	Out    uint64        `json:"bytes_out_per_s"`
	In     uint64        `json:"bytes_in_per_s"`
	Resent uint64        `json:"datagrams_resent"`
}

type topQueued struct {
	Position uint32        `json:"position"`
	ID       string        `json:"id"`
	Tenant   string        `json:"tenant"`
	GPUs     uint32        `json:"gpus"`
	Priority int32         `json:"priority"`
	Age      time.Duration `json:"age_ns"`
	Why      string        `json:"why"`
}

// fetchPoolTop asks the manager for the data of a table.
func fetchPoolTop(ctx context.Context, api poolAPI, rows int) (*poolTop, error) {
	ctx, cancel := context.WithTimeout(ctx, fetchLimit)
	defer cancel()
	pool, err := callOn(ctx, api, poolAPI.GetPool, &dxpuv1.GetPoolRequest{})
	if err != nil {
		return nil, err
	}
	leases, err := callAll(ctx, api, poolAPI.ListLeases, &dxpuv1.ListLeasesRequest{PageSize: 1000})
	if err != nil {
		return nil, err
	}
	links, err := linksByLease(ctx, api)
	if err != nil {
		return nil, err
	}
	return newPoolTop(time.Now(), pool.Pool, leases.Leases, links, rows), nil
}

// linksByLease returns the host slots of each lease.
func linksByLease(ctx context.Context, api poolAPI) (map[string][]*dxpuv1.HostSlot, error) {
	out := map[string][]*dxpuv1.HostSlot{}
	return out, callPages(ctx, api, poolAPI.ListHosts, &dxpuv1.ListHostsRequest{PageSize: 1000}, func(page *dxpuv1.ListHostsResponse) error {
		for _, h := range page.Hosts {
			for _, s := range h.Slots {
				if s.LeaseId != "" {
					out[s.LeaseId] = append(out[s.LeaseId], s)
				}
			}
		}
		return nil
	})
}

// newPoolTop sorts leases and queue, and keeps at most rows leases; 0: all.
func newPoolTop(now time.Time, p *dxpuv1.Pool, leases []*dxpuv1.Lease, links map[string][]*dxpuv1.HostSlot, rows int) *poolTop {
	t := &poolTop{Time: now, Leases: []topLease{}, Queue: []topQueued{}, Pool: poolCounts{
		Leader: p.LeaderUrl, Hosts: p.Hosts, HostsConnected: p.HostsConnected, Boxes: p.Boxes, BoxesConnected: p.BoxesConnected,
		GPUs: p.Gpus, Free: p.GpusFree, Bound: p.GpusBound, Unavailable: p.GpusUnavailable, Spares: p.SparesHeld,
	}}
	for _, l := range leases {
		age := now.Sub(l.CreateTime.AsTime())
		if reserved(l) {
			continue
		}
		if l.State == dxpuv1.LeaseState_LEASE_STATE_PENDING {
			t.Queue = append(t.Queue, topQueued{l.QueuePosition, l.Id, l.Spec.Tenant, l.Spec.Count, l.Spec.Priority, age, l.StateReason})
			continue
		}
		row := topLease{ID: l.Id, Tenant: l.Spec.Tenant, State: enumWord(l.State), Host: l.HostId, Want: l.Spec.Count, Age: age}
		for _, s := range links[l.Id] {
			row.add(s)
		}
		t.Leases = append(t.Leases, row)
	}
	slices.SortStableFunc(t.Leases, func(a, b topLease) int {
		return cmp.Or(cmp.Compare(urgency(a.State), urgency(b.State)), cmp.Compare(b.Out+b.In, a.Out+a.In))
	})
	slices.SortStableFunc(t.Queue, func(a, b topQueued) int { return cmp.Compare(a.Position, b.Position) })
	if rows > 0 && len(t.Leases) > rows {
		t.More = len(t.Leases) - rows
		t.Leases = t.Leases[:rows]
	}
	return t
}

// urgency orders the states of leases: those that need attention come first.
func urgency(state string) int {
	order := []string{"degraded", "releasing", "binding"}
	if i := slices.Index(order, state); i >= 0 {
		return i
	}
	return len(order)
}

func (l *topLease) add(s *dxpuv1.HostSlot) {
	if s.ObservedState == dxpuv1.BindingState_BINDING_STATE_ATTACHED {
		l.GPUs++
	}
	c := s.GetCounters()
	l.RTT = max(l.RTT, time.Duration(c.GetRttNs()))
	l.Out += c.GetSendRate()
	l.In += c.GetReceiveRate()
	l.Resent += c.GetDatagramsRetransmitted()
}

func (t *poolTop) write(w io.Writer) {
	p := &t.Pool
	head := fmt.Sprintf("%s  hosts %d/%d  boxes %d/%d  gpus %d: %d bound, %d free (%s), %d unavailable",
		t.Time.Format(time.TimeOnly), p.HostsConnected, p.Hosts, p.BoxesConnected, p.Boxes, p.GPUs, p.Bound, p.Free, plural.Count(p.Spares, "spare", "spares"), p.Unavailable)
	if p.Leader != "" {
		head += "  leader " + p.Leader
	}
	fmt.Fprintf(w, "%s\n\n", fitLine(w, head))
	leases := newTable(w, "LEASE", "TENANT", "STATE", "HOST", "GPUS", "AGE", "NETWORK", "OUT MB/S", "IN MB/S", "RESENT")
	for _, l := range t.Leases {
		rtt := ""
		if l.RTT > 0 {
			rtt = duration(l.RTT)
		}
		leases.row(l.ID, l.Tenant, l.State, l.Host, fmt.Sprintf("%d/%d", l.GPUs, l.Want), l.Age.Round(time.Second), rtt, megabytes(l.Out), megabytes(l.In), l.Resent)
	}
	leases.flush()
	if t.More > 0 {
		fmt.Fprintf(w, "and %d more leases (--rows)\n", t.More)
	}
	if len(t.Queue) == 0 {
		return
	}
	fmt.Fprintln(w)
	queue := newTable(w, "QUEUE", "LEASE", "TENANT", "GPUS", "PRIORITY", "AGE", "WHY")
	for i, q := range t.Queue {
		position := q.Position
		if position == 0 {
			position = uint32(i + 1)
		}
		queue.row(position, q.ID, q.Tenant, q.GPUs, q.Priority, q.Age.Round(time.Second), strings.TrimPrefix(q.Why, "in the queue: "))
	}
	queue.flush()
}

// megabytes prints bytes per second in units of 10^6.
func megabytes(b uint64) string { return fmt.Sprintf("%.1f", float64(b)/1e6) }

package torture

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
)

const (
	clients = 5                    // which have leases
	callers = clients + admins + 2 // and the operator and the watcher
	boxes   = 3
	gpus    = 2 // of each box
	hosts   = 2
	slots   = 4 // of each host
	quota   = 5 // GPUs of a tenant during the storm
	// callTimeout is the time after which a caller asks another manager.
	callTimeout = 700 * time.Millisecond
	// calm is the limit of the time from the last fault until the pool is healthy
	// again. It takes seconds; other processes may use the processors meanwhile.
	calm = 30 * time.Second
	// pollEvery is the interval of looks at a pool that becomes healthy.
	pollEvery = 50 * time.Millisecond
	// leaderLease is how long a leader may be silent before another manager leads.
	leaderLease = 2 * time.Second
	// checkLimit is the limit of the check of one history, which takes
	// milliseconds of processor time.
	checkLimit = 3 * time.Minute
)

// pool is a complete pool: managers, nodes and clients.
type pool struct {
	*cluster
	nodes []*simNode
	apis  [][]dxpuv1connect.PoolServiceClient // by client, then by manager

	mu         sync.Mutex
	violations []string
	// epochs and places are those of all bindings that a node was to have, by ID and by kind and ID.
	epochs  map[string]uint64
	places  map[string]string
	limited string // the tenant that has a quota
}

func (p *pool) isLimited(tenant string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limited == tenant
}

// limit sets the tenant that has a quota.
func (p *pool) limit(tenant string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.limited = tenant
}

func newPool(t *testing.T, index int) *pool {
	n := newNetwork(t, index, 3, boxes+hosts+callers)
	p := &pool{cluster: newCluster(t, n, 3), epochs: map[string]uint64{}, places: map[string]string{}}
	dir := t.TempDir()
	for i := range boxes + hosts {
		s := &simNode{
			name: fmt.Sprintf("b%d", i), kind: dxpuv1.NodeKind_NODE_KIND_BOX, slots: gpus,
			managers: p.urls(i % len(p.managers)), http: n.client(i + 1), violation: p.violate, rng: rand.New(rand.NewPCG(1, uint64(i))),
		}
		if i >= boxes {
			s.name, s.kind, s.slots = fmt.Sprintf("h%d", i-boxes), dxpuv1.NodeKind_NODE_KIND_HOST, slots
		}
		s.placed = func(b *dxpuv1.DesiredBinding, at string) { p.place(s.kind, b, at) }
		s.stateDir = filepath.Join(dir, s.name)
		must(t, os.Mkdir(s.stateDir, 0o700))
		must(t, s.start())
		t.Cleanup(s.halt)
		p.nodes = append(p.nodes, s)
	}
	for c := range callers {
		var apis []dxpuv1connect.PoolServiceClient
		for _, m := range p.managers {
			apis = append(apis, dxpuv1connect.NewPoolServiceClient(n.client(boxes+hosts+c+1), m.url))
		}
		p.apis = append(p.apis, apis)
	}
	return p
}

// violate records a violation of an invariant.
func (p *pool) violate(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.violations = append(p.violations, fmt.Sprintf(format, args...))
}

// place checks that a binding is at one slot of a box and one of a host, for ever.
func (p *pool) place(kind dxpuv1.NodeKind, b *dxpuv1.DesiredBinding, at string) {
	p.mu.Lock()
	before, known := p.places[kind.String()+b.BindingId]
	p.places[kind.String()+b.BindingId], p.epochs[b.BindingId] = at, b.Epoch
	p.mu.Unlock()
	if known && before != at {
		p.violate("binding %s is at %s, and was at %s", b.BindingId, at, before)
	}
}

// bindingsSeen returns the epochs of all bindings that a node was to have.
func (p *pool) bindingsSeen() map[string]uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return maps.Clone(p.epochs)
}

func (p *pool) violated() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	v := p.violations
	p.violations = nil
	return v
}

func (p *pool) pick(r *rand.Rand) *manager { return p.managers[r.IntN(len(p.managers))] }

// leader returns the leading manager, or the first one when none answers.
func (p *pool) leader() *manager {
	for _, api := range p.apis[0] {
		ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
		res, err := api.GetPool(ctx, connect.NewRequest(&dxpuv1.GetPoolRequest{}))
		cancel()
		if err != nil {
			continue
		}
		for _, m := range p.managers {
			if strings.Contains(res.Msg.Pool.LeaderUrl, strings.TrimPrefix(m.url, "http://")) {
				return m
			}
		}
	}
	return p.managers[0]
}

// errNoAnswer means that no manager answered within the deadline.
var errNoAnswer = errors.New("no manager answered")

// ask calls one manager after another until an answer is certain. ambiguous
// reports whether an earlier attempt may still take effect.
func ask[T any](ctx context.Context, p *pool, client, first int, call func(context.Context, dxpuv1connect.PoolServiceClient) (T, error)) (out T, ambiguous bool, err error) {
	var last error
	for i := first; ctx.Err() == nil; i++ {
		attempt, cancel := context.WithTimeout(ctx, callTimeout)
		out, err = call(attempt, p.apis[client][i%len(p.managers)])
		cancel()
		if err == nil {
			return out, ambiguous, nil
		}
		switch connect.CodeOf(err) {
		case connect.CodeUnavailable:
			ambiguous = ambiguous || !connect.IsWireError(err) // an error from a manager: the call had no effect
		case connect.CodeDeadlineExceeded, connect.CodeCanceled, connect.CodeUnknown, connect.CodeInternal:
			ambiguous = true
		default:
			return out, ambiguous, err // a certain answer
		}
		last = err
		wait(ctx, 20*time.Millisecond)
	}
	return out, ambiguous, fmt.Errorf("%w: %w", errNoAnswer, last)
}

// list returns all leases of a tenant, from one call.
func (p *pool) list(ctx context.Context, client, first int, tenant string) ([]*dxpuv1.Lease, error) {
	res, err := p.listPage(ctx, client, first, tenant)
	if err != nil {
		return nil, err
	}
	return res.Leases, nil
}

func (p *pool) listPage(ctx context.Context, client, first int, tenant string) (*dxpuv1.ListLeasesResponse, error) {
	res, _, err := ask(ctx, p, client, first, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.ListLeasesResponse], error) {
		return api.ListLeases(ctx, connect.NewRequest(&dxpuv1.ListLeasesRequest{PageSize: 1000, Tenant: tenant, IncludeEnded: true}))
	})
	if err != nil {
		return nil, err
	}
	if res.Msg.NextPageToken != "" {
		return nil, errors.New("the leases do not fit in one page")
	}
	p.checkOnce(res.Msg.Leases)
	return res.Msg, nil
}

// checkOnce reports GPUs and host slots that are in two bindings.
func (p *pool) checkOnce(leases []*dxpuv1.Lease) {
	holder := map[string]string{}
	for _, l := range leases {
		for _, b := range l.Bindings {
			switch b.State {
			case preparing, ready, copying, switching, attached:
			default:
				continue
			}
			resources := []string{"GPU " + b.GpuId}
			if b.FollowsBindingId == "" { // otherwise it shares the slot until it follows
				resources = append(resources, fmt.Sprintf("slot %s/%d", b.HostId, b.HostSlot))
			}
			for _, resource := range resources {
				if other, taken := holder[resource]; taken {
					p.violate("%s is in bindings %s and %s of one list", resource, other, b.Id)
				}
				holder[resource] = b.Id
			}
		}
	}
	p.checkPromises(leases)
	p.checkCounts(leases)
}

// checkCounts checks that no lease has more GPUs than its count, nor a tenant more than its quota.
func (p *pool) checkCounts(leases []*dxpuv1.Lease) {
	held := map[string]uint32{}
	for _, l := range leases {
		n := uint32(0)
		for _, b := range l.Bindings {
			if b.FollowsBindingId == "" && (b.State == preparing || b.State == ready || b.State == attached) {
				n++
			}
		}
		if n > l.Spec.Count {
			p.violate("lease %s of %d GPUs has %d: %v", l.Id, l.Spec.Count, n, l.Bindings)
		}
		if l.State != pending && phaseOf(l) == live {
			held[l.Spec.Tenant] += l.Spec.Count
		}
	}
	for tenant, n := range held {
		if n > quota && p.isLimited(tenant) {
			p.violate("tenant %s has %d GPUs, and may have %d", tenant, n, quota)
		}
	}
}

// phaseOf returns the phase of a lease's state.
func phaseOf(l *dxpuv1.Lease) phase {
	switch l.State {
	case dxpuv1.LeaseState_LEASE_STATE_RELEASING, dxpuv1.LeaseState_LEASE_STATE_RELEASED, dxpuv1.LeaseState_LEASE_STATE_FAILED:
		return ended
	default:
		return live
	}
}

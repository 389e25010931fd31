// Package pool follows the state of a DxPU pool: its GPUs, its hosts, and the leases of
// one Kubernetes cluster.
package pool

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"

	"github.com/dxpu-project/dxpu/deploy/kubernetes/internal/claims"
)

// Snapshot is the pool at one time. It is not changed any more.
type Snapshot struct {
	GPUs  []*dxpuv1.GPU
	Hosts map[string]*dxpuv1.Host // by ID
	Racks map[string]string       // of the boxes, by ID
	// BoxTaints are the taints of the boxes, by ID.
	BoxTaints map[string][]*dxpuv1.Taint
	BoxLabels map[string]map[string]string // by ID
	// LostBoxes are the boxes that reported to the manager that leads, and do no longer.
	LostBoxes map[string]bool
	// Settled is whether a node that has not reported to the manager is off: it has led for long.
	Settled bool
	Spares  []*dxpuv1.SpareStatus
	byID    map[string]*dxpuv1.GPU
	leaving map[string]int  // by host: the slots whose GPUs are being released
	inSlots map[string]bool // the leases that have slots of hosts
	began   time.Time       // its read
}

// GPU returns a GPU by its ID, nil if the pool does not have it.
func (s *Snapshot) GPU(id string) *dxpuv1.GPU {
	if s == nil {
		return nil
	}
	return s.byID[id]
}

// connected reports whether a host reported to the manager.
func (s *Snapshot) connected(host string) bool {
	return s != nil && s.Hosts[host].GetNode().GetConnected()
}

// index fills what is looked up.
func (s *Snapshot) index() {
	s.byID, s.leaving, s.inSlots = make(map[string]*dxpuv1.GPU, len(s.GPUs)), map[string]int{}, map[string]bool{}
	for _, h := range s.Hosts {
		for _, slot := range h.Slots {
			s.inSlots[slot.LeaseId] = true
		}
	}
	for _, g := range s.GPUs {
		s.byID[g.Id] = g
		if g.State == dxpuv1.GPUState_GPU_STATE_RELEASING {
			s.leaving[g.HostId]++
		}
		for _, p := range g.Parts {
			if !p.Serving {
				s.leaving[p.HostId]++
			}
		}
	}
}

// Watcher follows a pool. Run fills it.
type Watcher struct {
	api     dxpuv1connect.PoolServiceClient
	cluster string
	// leaseChanged is called with the UID of the claim, poolChanged after a change of the
	// snapshot. Both must not block.
	leaseChanged func(claim string)
	poolChanged  func()

	mu       sync.Mutex
	snapshot *Snapshot
	leases   map[string]*dxpuv1.Lease   // those that have not ended, and ended ones of claims that exist
	byClaim  map[string]map[string]bool // claim -> leases
	// away is whether the leases cannot be followed at present. gone is since when they last could
	// not, returned when they could be at first, or again.
	away           bool
	gone, returned time.Time
	// unheard are the nodes that the snapshot shows as they were before, by ID: since when they
	// have not reported to the manager that leads.
	unheard  map[string]time.Time
	complete bool // each node had reported once, or had the time to
	synced   chan struct{}
	once     sync.Once
}

// New returns a watcher for the leases with the label of a cluster.
func New(api dxpuv1connect.PoolServiceClient, cluster string, leaseChanged func(claim string), poolChanged func()) *Watcher {
	return &Watcher{
		api: api, cluster: cluster, leaseChanged: leaseChanged, poolChanged: poolChanged,
		leases: map[string]*dxpuv1.Lease{}, byClaim: map[string]map[string]bool{}, synced: make(chan struct{}),
	}
}

const (
	// retryPause is the time between two attempts to reach the manager.
	retryPause = time.Second
	// refreshPause and refreshShare bound the work of listing GPUs: a burst of events causes
	// one list, and lists take a tenth of the time at most.
	refreshPause = 200 * time.Millisecond
	refreshShare = 10
	// refreshEvery is the time after which the GPUs are listed without an event: spares and
	// quarantines change with the time.
	refreshEvery = 15 * time.Second
	// PageSize is the largest of the API.
	PageSize = 1000
)

// ErrEnded is the error of a stream that has ended: the manager was there until then.
var ErrEnded = errors.New("the stream ended")

// Run follows the pool until ctx ends. It calls failed after each failure, before it tries again,
// reached each time that the manager has listed the leases: it is there, or there again, and follows
// when leases and GPUs can be read again after failures. None of them may block.
func (w *Watcher) Run(ctx context.Context, failed func(error), reached, follows func()) {
	var loops sync.WaitGroup
	defer loops.Wait()
	var down atomic.Int32 // loops that have failed
	leases := func(ctx context.Context, read func()) error {
		return w.followLeases(ctx, func() { read(); reached() })
	}
	for _, follow := range []func(context.Context, func()) error{leases, w.followGPUs} {
		loops.Go(func() {
			failing := false
			read := func() {
				if failing && down.Add(-1) == 0 {
					follows()
				}
				failing = false
			}
			for ctx.Err() == nil {
				if err := follow(ctx, read); err != nil && ctx.Err() == nil {
					if !failing {
						failing = true
						down.Add(1)
					}
					failed(err)
				}
				select {
				case <-ctx.Done():
				case <-time.After(retryPause):
				}
			}
		})
	}
}

// Synced is closed when leases and GPUs have been read once.
func (w *Watcher) Synced() <-chan struct{} { return w.synced }

// Snapshot returns the newest snapshot, nil before the first.
func (w *Watcher) Snapshot() *Snapshot {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.snapshot
}

// SetSnapshot records a snapshot, which is not changed any more. It returns the claims that have a
// GPU whose health is another one now, and those that wait for a host which does not take all of them,
// or is lost.
func (w *Watcher) SetSnapshot(s *Snapshot) (changed []string) {
	s.index()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.keepUnheardLocked(s)
	old := w.snapshot
	w.snapshot = s
	pending, taken := w.waitingLocked()
	for _, l := range w.leases {
		host := l.GetSpec().GetHostId()
		if l.State == dxpuv1.LeaseState_LEASE_STATE_PENDING && (w.shutLocked(s, host, taken[host]) != "" || s.room(host, taken[host]) < pending[host]) ||
			l.State == dxpuv1.LeaseState_LEASE_STATE_BINDING && s.Hosts[host] != nil && w.lostLocked(s, host) {
			changed = append(changed, l.Spec.Labels[claims.LabelClaim])
			continue
		}
		for _, id := range l.GetSpec().GetGpuIds() {
			if s.GPU(id).GetHealth() != old.GPU(id).GetHealth() {
				changed = append(changed, l.Spec.Labels[claims.LabelClaim])
			}
		}
	}
	return changed
}

// Leases returns the leases of a claim.
func (w *Watcher) Leases(claim string) []*dxpuv1.Lease {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []*dxpuv1.Lease
	for id := range w.byClaim[claim] {
		out = append(out, w.leases[id])
	}
	return out
}

// Ours returns the IDs of all leases of the cluster that the watcher knows, and the
// claims that have them.
func (w *Watcher) Ours() (leases map[string]bool, claimUIDs []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	leases = make(map[string]bool, len(w.leases))
	for id := range w.leases {
		leases[id] = true
	}
	for c := range maps.Keys(w.byClaim) {
		claimUIDs = append(claimUIDs, c)
	}
	return leases, claimUIDs
}

// GangRuns reports whether a lease of a gang has GPUs, or gets them now: also that of the successor
// of a pod, which was not one of the gang in the queue.
func (w *Watcher) GangRuns(gang string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range w.leases {
		if spec := l.GetSpec(); spec.GetGang().GetName() != gang && spec.GetLabels()[claims.LabelGang] != gang {
			continue
		}
		switch l.State {
		case dxpuv1.LeaseState_LEASE_STATE_BINDING, dxpuv1.LeaseState_LEASE_STATE_ACTIVE, dxpuv1.LeaseState_LEASE_STATE_DEGRADED:
			return true
		}
	}
	return false
}

// Put records a lease that a call has returned, which the watch may report later.
func (w *Watcher) Put(l *dxpuv1.Lease) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.putLocked(l)
}

func (w *Watcher) putLocked(l *dxpuv1.Lease) (claim string) {
	at := l.GetSpec().GetLabels()
	if at[claims.LabelCluster] != w.cluster {
		return ""
	}
	if old := w.leases[l.Id]; old != nil && old.ResourceVersion > l.ResourceVersion {
		return "" // the answer of a call overtook the watch, or the reverse
	}
	if claim = at[claims.LabelClaim]; claim == "" {
		return "" // a user's, with the label of the cluster
	}
	w.leases[l.Id] = l
	if w.byClaim[claim] == nil {
		w.byClaim[claim] = map[string]bool{}
	}
	w.byClaim[claim][l.Id] = true
	return claim
}

// Forget drops the ended leases of a claim that does not exist any more.
func (w *Watcher) Forget(claim string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.byClaim[claim] {
		if s := w.leases[id].State; s == dxpuv1.LeaseState_LEASE_STATE_RELEASED || s == dxpuv1.LeaseState_LEASE_STATE_FAILED {
			delete(w.leases, id)
			delete(w.byClaim[claim], id)
		}
	}
	if len(w.byClaim[claim]) == 0 {
		delete(w.byClaim, claim)
	}
}

// followLeases lists the leases and watches them until the stream ends.
func (w *Watcher) followLeases(ctx context.Context, reached func()) error {
	defer w.lost()
	all, revision, err := w.listLeases(ctx)
	if err != nil {
		return fmt.Errorf("list the leases: %w", err)
	}
	w.replace(all)
	w.ready()
	reached()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := w.api.WatchLeases(ctx, connect.NewRequest(&dxpuv1.WatchLeasesRequest{AfterRevision: revision}))
	if err != nil {
		return fmt.Errorf("watch the leases: %w", err)
	}
	defer stream.Close()
	for stream.Receive() {
		if l := stream.Msg().Lease; l != nil {
			w.mu.Lock()
			claim := w.putLocked(l)
			w.mu.Unlock()
			if claim != "" {
				w.leaseChanged(claim)
			}
		}
	}
	return errors.Join(fmt.Errorf("leases: %w", ErrEnded), stream.Err())
}

func (w *Watcher) listLeases(ctx context.Context) (all []*dxpuv1.Lease, revision uint64, err error) {
	req := &dxpuv1.ListLeasesRequest{PageSize: PageSize, IncludeEnded: true}
	for first := true; ; first = false {
		res, err := w.api.ListLeases(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, 0, err
		}
		if first {
			revision = res.Msg.Revision
		}
		all = append(all, res.Msg.Leases...)
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			return all, revision, nil
		}
	}
}

// lost records that the leases cannot be followed any more.
func (w *Watcher) lost() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.away {
		w.away, w.gone = true, time.Now()
	}
}

// replace takes a complete list: leases that it lacks have ended and are forgotten by
// the manager.
func (w *Watcher) replace(all []*dxpuv1.Lease) {
	w.mu.Lock()
	if w.away || w.returned.IsZero() {
		w.away, w.returned = false, time.Now()
	}
	changed := map[string]bool{}
	for c := range w.byClaim {
		changed[c] = true
	}
	w.leases, w.byClaim = map[string]*dxpuv1.Lease{}, map[string]map[string]bool{}
	for _, l := range all {
		if c := w.putLocked(l); c != "" {
			changed[c] = true
		}
	}
	w.mu.Unlock()
	for c := range changed {
		w.leaseChanged(c)
	}
}

// followGPUs lists GPUs and nodes, again after each event, until the stream of events ends. It calls
// read after each list.
func (w *Watcher) followGPUs(ctx context.Context, read func()) error {
	ctx, cancel := context.WithCancel(ctx)
	events := make(chan struct{}, 1)
	var receiver sync.WaitGroup
	defer receiver.Wait()
	defer cancel()
	stream, err := w.api.WatchEvents(ctx, connect.NewRequest(&dxpuv1.WatchEventsRequest{}))
	if err != nil {
		return fmt.Errorf("watch the events: %w", err)
	}
	ended := make(chan error, 1)
	receiver.Go(func() {
		defer stream.Close()
		for stream.Receive() {
			if stream.Msg().Event == nil {
				continue
			}
			select {
			case events <- struct{}{}:
			default:
			}
		}
		ended <- errors.Join(fmt.Errorf("events: %w", ErrEnded), stream.Err())
	})
	for {
		began := time.Now()
		s, err := w.read(ctx)
		if err != nil {
			return err
		}
		for _, claim := range w.SetSnapshot(s) {
			w.leaseChanged(claim)
		}
		w.ready()
		w.poolChanged()
		read()
		if err := waitFor(ctx, max(refreshPause, refreshShare*time.Since(began)), w.refreshIn(), events, ended); err != nil {
			return err
		}
	}
}

// waitFor returns after a pause and an event, or a longest time.
func waitFor(ctx context.Context, pause, longest time.Duration, events <-chan struct{}, ended <-chan error) error {
	timeout := time.After(max(pause, longest))
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-ended:
		return err
	case <-time.After(pause):
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case err := <-ended:
		return err
	case <-events:
	case <-timeout:
	}
	return nil
}

func (w *Watcher) ready() {
	w.mu.Lock()
	ok := w.snapshot != nil
	w.mu.Unlock()
	if ok {
		w.once.Do(func() { close(w.synced) })
	}
}

// read lists everything that the inventory needs.
func (w *Watcher) read(ctx context.Context) (*Snapshot, error) {
	s := &Snapshot{began: time.Now(), Hosts: map[string]*dxpuv1.Host{}, Racks: map[string]string{}, BoxTaints: map[string][]*dxpuv1.Taint{}, BoxLabels: map[string]map[string]string{}, LostBoxes: map[string]bool{}}
	first, err := w.readPool(ctx)
	if err != nil {
		return nil, err
	}
	for req := (&dxpuv1.ListGPUsRequest{PageSize: PageSize}); ; {
		res, err := w.api.ListGPUs(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, fmt.Errorf("list the GPUs: %w", err)
		}
		s.GPUs = append(s.GPUs, res.Msg.Gpus...)
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			break
		}
	}
	for req := (&dxpuv1.ListHostsRequest{PageSize: PageSize}); ; {
		res, err := w.api.ListHosts(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, fmt.Errorf("list the hosts: %w", err)
		}
		for _, h := range res.Msg.Hosts {
			s.Hosts[h.Node.Id] = h
		}
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			break
		}
	}
	for req := (&dxpuv1.ListBoxesRequest{PageSize: PageSize}); ; {
		res, err := w.api.ListBoxes(ctx, connect.NewRequest(req))
		if err != nil {
			return nil, fmt.Errorf("list the boxes: %w", err)
		}
		for _, b := range res.Msg.Boxes {
			s.Racks[b.Node.Id], s.BoxLabels[b.Node.Id] = b.Node.Rack, b.Node.Labels
			if len(b.Node.Taints) > 0 {
				s.BoxTaints[b.Node.Id] = b.Node.Taints
			}
			if !b.Node.Connected && b.Node.LastReportTime != nil {
				s.LostBoxes[b.Node.Id] = true
			}
		}
		if req.PageToken = res.Msg.NextPageToken; req.PageToken == "" {
			break
		}
	}
	last, err := w.readPool(ctx)
	if err != nil {
		return nil, err
	}
	// The lists may take seconds: for each of them, the same manager has led for long.
	s.Settled = first.GetNodesSettled() && last.GetNodesSettled() && first.GetLeaderId() == last.GetLeaderId()
	s.Spares = last.GetSpares()
	return s, nil
}

func (w *Watcher) readPool(ctx context.Context) (*dxpuv1.Pool, error) {
	res, err := w.api.GetPool(ctx, connect.NewRequest(&dxpuv1.GetPoolRequest{}))
	if err != nil {
		return nil, fmt.Errorf("read the pool: %w", err)
	}
	return res.Msg.GetPool(), nil
}

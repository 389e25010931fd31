package torture

import (
	"cmp"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/anishathalye/porcupine"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/cli"
)

var (
	histories = flag.Int("histories", 3, "histories to check")
	seed      = flag.Uint64("seed", 0, "seed of the first history; 0: from the clock")
	pools     = flag.Int("pools", 1, "pools to torture at the same time")
	lasting   = flag.Duration("lasting", 4*time.Second, "time for which clients call and faults happen in each history")
)

// childVariable names the environment variable that makes a process of the test
// binary a manager.
const childVariable = "DXPU_TORTURE_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		os.Exit(cli.Main(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

// history is one round of concurrent calls under faults.
type history struct {
	*pool
	tenant string
	start  time.Time

	mu    sync.Mutex
	ops   []porcupine.Operation
	known []string       // created leases
	maybe map[string]int // indexes of refused creations that may have happened, by request ID
	trail []string       // faults
	// settling is the time from the last fault until the pool was healthy again.
	settling time.Duration
	unstable bool // most nodes were lost several times, so there was no exam

	access
	accessOps []porcupine.Operation
	from      uint64 // the revision at which the history began
	watched   watch
	backup    *saved // nil: the history restores none
	restored  int    // restores
}

func TestTorture(t *testing.T) {
	first := *seed
	if first == 0 {
		first = uint64(time.Now().UnixNano())
	}
	all := &tally{began: time.Now(), faults: map[string]int{}}
	var next atomic.Int64
	t.Cleanup(func() { t.Log(all) })
	for i := range min(*pools, *histories) {
		t.Run(fmt.Sprintf("pool %d", i), func(t *testing.T) {
			t.Parallel()
			p := newPool(t, i)
			ready, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			if err := p.settled(ready, "", 0); err != nil {
				t.Fatalf("the pool does not start: %v; %s", err, strings.Join(p.violated(), "; "))
			}
			for n := next.Add(1); n <= int64(*histories); n = next.Add(1) {
				p.torture(t, first+uint64(n-1), all)
			}
		})
	}
}

// torture makes and checks one history.
func (p *pool) torture(t *testing.T, seed uint64, all *tally) {
	t.Helper()
	h := &history{pool: p, tenant: fmt.Sprintf("t%d", seed), start: time.Now(), maybe: map[string]int{}}
	h.deletions = map[string]time.Time{}
	if err := h.run(t.Context(), seed); err != nil {
		t.Fatalf("history %d (-seed %d -histories 1): %v\nfaults:\n%s\nnodes:\n%v\nhistory:\n%s",
			seed, seed, err, strings.Join(h.trail, "\n"), p.nodes, describe(model, h.ops))
	}
	if n := all.add(h); n%10 == 0 {
		t.Log(all)
	}
}

// tally sums up the histories so far.
type tally struct {
	mu        sync.Mutex
	began     time.Time
	histories int
	calls     int
	moves     int // migrations that began
	unstable  int // histories without an exam
	faults    map[string]int
	restores  int
	uses      int             // calls with tokens
	settling  []time.Duration // from the last fault until the pool was healthy
}

func (a *tally) add(h *history) (histories int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.histories++
	a.calls += len(h.ops) + len(h.accessOps)
	a.restores += h.restored
	a.uses += len(h.uses)
	if h.unstable {
		a.unstable++
	}
	for _, o := range h.ops {
		if o.Input.(opInput).kind == "migrate" {
			a.moves++
		}
	}
	for _, f := range h.trail {
		if _, name, ok := strings.Cut(f, ": "); ok && name != "healed" {
			a.faults[name]++
		}
	}
	a.settling = append(a.settling, h.settling)
	return a.histories
}

func (a *tally) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.histories == 0 {
		return "no history was completed"
	}
	slices.Sort(a.settling)
	faults := 0
	for _, n := range a.faults {
		faults += n
	}
	return fmt.Sprintf("%d histories (%d without an exam) with %d calls, %d of them migrations, and %d with tokens, under %d faults and %d restores are linearizable, after %v; healthy again %v after the last fault (median; %v at most); %v",
		a.histories, a.unstable, a.calls, a.moves, a.uses, faults, a.restores, time.Since(a.began).Round(time.Second),
		a.settling[len(a.settling)/2].Round(time.Millisecond), a.settling[len(a.settling)-1].Round(time.Millisecond), a.faults)
}

func (h *history) run(ctx context.Context, seed uint64) error {
	for _, n := range h.nodes {
		if err := n.keepState(); err != nil {
			return err
		}
	}
	storming, calmDown := context.WithTimeout(ctx, *lasting)
	defer calmDown()
	deadline, cancel := context.WithTimeout(ctx, *lasting+calm+2*time.Second)
	defer cancel()
	if err := h.begin(deadline); err != nil {
		return err
	}
	errs := make([]error, callers+2)
	var work sync.WaitGroup
	random := func(who uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, who)) }
	for c := range clients {
		work.Go(func() { errs[c] = h.client(storming, deadline, c, random(uint64(c))) })
	}
	for c := clients; c < clients+admins; c++ {
		work.Go(func() { errs[c] = h.admin(storming, deadline, c, random(uint64(c))) })
	}
	work.Go(func() { errs[operator] = h.operate(storming, deadline, random(operator)) })
	work.Go(func() { errs[watcher] = h.watched.run(storming, h.pool) })
	work.Go(func() { h.trail, errs[callers] = h.storm(storming, random(99)) })
	if seed%restoreEvery == 0 {
		wait(storming, time.Duration(random(98).Int64N(int64(*lasting))))
		errs[callers+1] = h.backUp(deadline)
	}
	work.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return h.finish(ctx)
}

// begin gives the tenant a quota and the watch its revision.
func (h *history) begin(ctx context.Context) error {
	if _, _, err := h.callPutTenant(ctx, 0, 0, &dxpuv1.Tenant{Id: h.tenant, Quota: &dxpuv1.Quota{MaxGpus: quota}}); err != nil {
		return err
	}
	res, _, err := ask(ctx, h.pool, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.ListEventsResponse], error) {
		return api.ListEvents(ctx, connect.NewRequest(&dxpuv1.ListEventsRequest{PageSize: 1}))
	})
	if err != nil {
		return err
	}
	h.limit(h.tenant)
	h.from = res.Msg.Revision
	h.watched.at = h.from
	return nil
}

// finish waits until the pool is healthy, lists the leases, checks the history and
// deletes the leases.
func (h *history) finish(ctx context.Context) error {
	calmed := time.Now()
	ctx, cancel := context.WithTimeout(ctx, 3*calm)
	defer cancel()
	settling, done := context.WithTimeout(ctx, calm)
	defer done()
	if err := h.settled(settling, h.tenant, -1); err != nil {
		return fmt.Errorf("not healthy %v after the last fault: %w", calm, err)
	}
	h.settling = time.Since(calmed)
	leases, err := h.listAll(ctx, 0, 0)
	if err != nil {
		return err
	}
	h.resolve(leases)
	if v := h.violated(); len(v) > 0 {
		return fmt.Errorf("violations: %s", strings.Join(v, "; "))
	}
	h.resolveAccess()
	if err := cmp.Or(h.checkModels(), h.checkTokens(), h.checkEvents(ctx)); err != nil {
		return err
	}
	e := &exam{history: h, ctx: ctx}
	for _, l := range leases {
		if phaseOf(l) == ended {
			continue
		}
		if err := e.end(l.Id); err != nil {
			return err
		}
	}
	if err := h.settled(ctx, h.tenant, 0); err != nil {
		return fmt.Errorf("after all leases were deleted: %w", err)
	}
	if err := h.examineTokens(ctx); err != nil {
		return err
	}
	if err := e.run(); err != nil {
		return err
	}
	if err := h.settled(ctx, h.tenant, 0); err != nil {
		return fmt.Errorf("after the exam: %w", err)
	}
	if err := e.restoring(); err != nil {
		return fmt.Errorf("restore: %w", err)
	}
	if v := h.violated(); len(v) > 0 {
		return fmt.Errorf("violations: %s", strings.Join(v, "; "))
	}
	return nil
}

// resolve completes the creations that were refused after an attempt without an
// answer: that attempt may have created a lease later.
func (h *history) resolve(leases []*dxpuv1.Lease) {
	for _, l := range leases {
		if i, ok := h.maybe[l.RequestId]; ok {
			h.ops[i].Output = opOutput{lease: l.Id}
			h.ops[i].Return = time.Since(h.start).Nanoseconds()
		}
	}
}

// settled waits until the pool is healthy (see check).
func (p *pool) settled(ctx context.Context, tenant string, want int) error {
	var last error
	for {
		err := p.check(ctx, tenant, want)
		if err == nil {
			return nil
		}
		if ctx.Err() != nil {
			return cmp.Or(last, err)
		}
		last = err
		wait(ctx, pollEvery)
	}
}

// check returns an error unless every node reports, every live lease of the tenant
// has its GPUs and no others are bound. want is the number of live leases; -1: any.
func (p *pool) check(ctx context.Context, tenant string, want int) error {
	got, _, err := ask(ctx, p, 0, 0, func(ctx context.Context, api dxpuv1connect.PoolServiceClient) (*connect.Response[dxpuv1.GetPoolResponse], error) {
		return api.GetPool(ctx, connect.NewRequest(&dxpuv1.GetPoolRequest{}))
	})
	if err != nil {
		return err
	}
	s := got.Msg.Pool
	if s.HostsConnected != hosts || s.BoxesConnected != boxes || s.GpusUnavailable > 0 {
		return fmt.Errorf("some nodes do not report: %v", s)
	}
	leases, err := p.list(ctx, 0, 0, tenant)
	if err != nil {
		return err
	}
	n, held := 0, 0
	for _, l := range leases {
		if phaseOf(l) == live {
			n++
		}
		if reserved(l) {
			continue
		}
		if phaseOf(l) == live {
			held += int(l.Spec.Count)
		}
		switch l.State {
		case dxpuv1.LeaseState_LEASE_STATE_ACTIVE, dxpuv1.LeaseState_LEASE_STATE_RELEASED, dxpuv1.LeaseState_LEASE_STATE_FAILED:
		default:
			return fmt.Errorf("lease %s is %v: %s", l.Id, l.State, l.StateReason)
		}
	}
	switch {
	case want >= 0 && n != want:
		return fmt.Errorf("%d leases are live, want %d", n, want)
	case int(s.GpusBound) != held || int(s.GpusFree) != boxes*gpus-held:
		return fmt.Errorf("%d GPUs are bound and %d free, while leases hold %d of %d", s.GpusBound, s.GpusFree, held, boxes*gpus)
	}
	if want == 0 {
		for _, node := range p.nodes {
			if !node.idle() {
				return fmt.Errorf("node %s still has a binding", node.name)
			}
		}
	}
	return nil
}

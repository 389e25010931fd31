package agent_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

const token = "token-for-tests"

// proxy is a handler that reaches each desired state at once.
type proxy struct {
	box bool

	mu      sync.Mutex
	desired *dxpuv1.DesiredState
	applied []uint64 // revisions in the order of the calls
}

func (p *proxy) Apply(d *dxpuv1.DesiredState) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.desired = d
	p.applied = append(p.applied, d.Revision)
}

func (p *proxy) Observe() *dxpuv1.ObservedState {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := &dxpuv1.ObservedState{AppliedRevision: p.desired.GetRevision(), BoxKind: dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH}
	s := &dxpuv1.ObservedSlot{Health: dxpuv1.Health_HEALTH_OK}
	state := dxpuv1.BindingState_BINDING_STATE_ATTACHED
	if p.box {
		s.Device = &dxpuv1.Device{Model: "DX100"}
		state = dxpuv1.BindingState_BINDING_STATE_READY
	}
	for _, b := range p.desired.GetBindings() {
		s.Binding = &dxpuv1.ObservedBinding{BindingId: b.BindingId, Epoch: b.Epoch, State: state}
	}
	o.Slots = append(o.Slots, s)
	return o
}

func (p *proxy) bindings() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.desired.GetBindings())
}

// pool is an address at which a manager may or may not serve.
type pool struct {
	t       *testing.T
	url     string
	handler atomic.Pointer[http.Handler]
	enrols  atomic.Int32 // calls of Enroll that were answered
	stop    func()
}

func newPool(t *testing.T) *pool {
	p := &pool{t: t, stop: func() {}}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if h := p.handler.Load(); h != nil {
			(*h).ServeHTTP(w, r)
			if r.URL.Path == dxpuv1connect.NodeServiceEnrollProcedure {
				p.enrols.Add(1)
			}
			return
		}
		http.Error(w, "away", http.StatusServiceUnavailable)
	}))
	p.url = srv.URL
	t.Cleanup(func() {
		p.leave()
		srv.Close()
	})
	return p
}

// arrive starts a manager with this state at the address.
func (p *pool) arrive(store manager.Store) { p.arriveWith(store, token) }

// arriveWith starts a manager with this state and join token.
func (p *pool) arriveWith(store manager.Store, joinToken string) {
	p.t.Helper()
	m, err := manager.New(p.t.Context(), manager.Config{JoinToken: joinToken, Store: store, Open: manager.OpenLoopback, Heartbeat: 20 * time.Millisecond})
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = m.Run(ctx) })
	p.stop = func() {
		cancel()
		wg.Wait()
	}
	h := m.Handler()
	p.handler.Store(&h)
}

func (p *pool) leave() {
	p.handler.Store(nil)
	p.stop()
}

// start runs a node until the test ends or the result is called.
func (p *pool) start(name, dir string, h *proxy) (*agent.Agent, func()) {
	p.t.Helper()
	kind := dxpuv1.NodeKind_NODE_KIND_HOST
	if h.box {
		kind = dxpuv1.NodeKind_NODE_KIND_BOX
	}
	c, err := agent.New(agent.Config{Manager: p.url, JoinToken: token, Kind: kind, Name: name, StateDir: dir}, h)
	if err != nil {
		p.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := c.Run(ctx); err != nil {
			p.t.Errorf("Run: %v", err)
		}
	})
	stop := sync.OnceFunc(func() {
		cancel()
		wg.Wait()
	})
	p.t.Cleanup(stop)
	return c, stop
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(15 * time.Second); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("timeout: %s", what)
		}
	}
}

func (p *pool) lease(t *testing.T) {
	t.Helper()
	p.active(t, p.create(t))
}

// create creates a lease of one GPU and returns its ID.
func (p *pool) create(t *testing.T) string {
	t.Helper()
	api := dxpuv1connect.NewPoolServiceClient(http.DefaultClient, p.url)
	var id string
	eventually(t, "create a lease", func() bool {
		res, err := api.CreateLease(t.Context(), connect.NewRequest(&dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{Count: 1}}))
		if err == nil {
			id = res.Msg.Lease.Id
		}
		return err == nil
	})
	return id
}

// active waits until a lease has its GPU.
func (p *pool) active(t *testing.T, id string) {
	t.Helper()
	api := dxpuv1connect.NewPoolServiceClient(http.DefaultClient, p.url)
	eventually(t, "the lease is active", func() bool {
		res, err := api.GetLease(t.Context(), connect.NewRequest(&dxpuv1.GetLeaseRequest{LeaseId: id}))
		return err == nil && res.Msg.Lease.State == dxpuv1.LeaseState_LEASE_STATE_ACTIVE
	})
}

func TestConversation(t *testing.T) {
	p := newPool(t)
	hostDir, boxDir := t.TempDir(), t.TempDir()
	host, box := &proxy{}, &proxy{box: true}
	hc, stopHost := p.start("h1", hostDir, host)
	bc, _ := p.start("b1", boxDir, box) // before a manager serves
	store := &manager.MemoryStore{}
	p.arrive(store)
	p.lease(t)
	if id, n := hc.Identity(); id != "h1" || n == 0 {
		t.Errorf("got identity %q, %d", id, n)
	}

	// Bindings survive the end of the manager.
	p.leave()
	eventually(t, "the node notices", func() bool { return !bc.Connected() })
	if box.bindings() != 1 || host.bindings() != 1 {
		t.Error("a binding ended with the manager")
	}

	// A host that restarts meanwhile uses the state on its disk.
	stopHost()
	host = &proxy{}
	hc, _ = p.start("h1", hostDir, host)
	eventually(t, "the state on disk is applied", func() bool { return host.bindings() == 1 })
	for _, name := range []string{"node.json", "desired.pb"} {
		if fi, err := os.Stat(filepath.Join(hostDir, name)); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", name, fi.Mode(), err)
		}
	}

	// They survive the restart of the manager with its state.
	p.arrive(store)
	eventually(t, "both report again", func() bool { return hc.Connected() && bc.Connected() })
	if box.bindings() != 1 || host.bindings() != 1 {
		t.Error("a binding ended when the manager came back")
	}

	// A manager without state is another pool: the nodes enrol, and their bindings end.
	p.leave()
	p.arrive(&manager.MemoryStore{})
	eventually(t, "bindings of the old pool end", func() bool { return box.bindings() == 0 && host.bindings() == 0 })
	p.lease(t)
}

// A node whose state has not changed reports to a restarted manager at once.
func TestReportsWhenTheWatchEnds(t *testing.T) {
	p := newPool(t)
	store := &manager.MemoryStore{}
	p.arrive(store)
	h := &proxy{}
	c, err := agent.New(agent.Config{
		Manager: p.url, JoinToken: token, Kind: dxpuv1.NodeKind_NODE_KIND_HOST, Name: "h1", Heartbeat: time.Hour,
	}, h)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() { _ = c.Run(ctx) })
	defer wg.Wait()
	defer cancel()
	eventually(t, "the first report", c.Connected)
	p.leave()
	eventually(t, "the node notices", func() bool { return !c.Connected() })
	p.arrive(store)
	eventually(t, "it reports", c.Connected)
}

func TestRunFails(t *testing.T) {
	p := newPool(t)
	p.arrive(&manager.MemoryStore{})
	box, _ := p.start("b1", "", &proxy{box: true})
	eventually(t, "the box reports", box.Connected)
	host, _ := p.start("h1", "", &proxy{})
	eventually(t, "the host reports", host.Connected)
	tests := []struct {
		name  string
		cfg   agent.Config
		wants string
	}{
		{"wrong token", agent.Config{Name: "h2", JoinToken: "wrong"}, "join_token: wrong"},
		{"bad name", agent.Config{Name: "No Name", JoinToken: token}, "name:"},
		{"the name of a box", agent.Config{Name: "b1", JoinToken: token}, "name: b1 is a box of this pool, and this node is a host: choose another name, or delete the box"},
		{"the name of another host", agent.Config{Name: "h1", JoinToken: token}, "name: h1 is in use by another node"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.cfg.Manager, tt.cfg.Kind = p.url, dxpuv1.NodeKind_NODE_KIND_HOST
			c, err := agent.New(tt.cfg, &proxy{})
			if err != nil {
				t.Fatal(err)
			}
			c.SetNameTimeout(time.Millisecond)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second) // a node that asks for ever
			defer cancel()
			if err := c.Run(ctx); err == nil || !strings.Contains(err.Error(), tt.wants) {
				t.Errorf("Run: %v, want %q", err, tt.wants)
			}
		})
	}
}

// A node that has enrolled goes on when a manager with another state and another join token
// is in the place of its own, and finds its own again: its guests keep their GPUs.
func TestForeignManager(t *testing.T) {
	p := newPool(t)
	store := &manager.MemoryStore{}
	p.arrive(store)
	h := &proxy{}
	c, _ := p.start("h1", t.TempDir(), h) // fails the test if Run returns
	box, _ := p.start("b1", t.TempDir(), &proxy{box: true})
	eventually(t, "both report", func() bool { return c.Connected() && box.Connected() })
	p.lease(t)
	eventually(t, "the host has the binding", func() bool { return h.bindings() == 1 })
	p.leave()
	p.enrols.Store(0)
	p.arriveWith(&manager.MemoryStore{}, "another-token")
	eventually(t, "each has been refused twice", func() bool { return p.enrols.Load() >= 4 })
	p.leave()
	p.arrive(store)
	eventually(t, "both report again", func() bool { return c.Connected() && box.Connected() })
	if h.bindings() != 1 {
		t.Error("the host has lost its binding")
	}
}

// A node follows every pool that is restored from one backup, also one that counts
// from a lower number than the pool before.
func TestRestoredPools(t *testing.T) {
	p := newPool(t)
	host, dir := &proxy{}, t.TempDir()
	_, stop := p.start("h1", dir, host)
	store := &manager.MemoryStore{}
	p.arrive(store)
	incarnation := func() uint64 {
		host.mu.Lock()
		defer host.mu.Unlock()
		return revision.Incarnation(host.desired.GetRevision())
	}
	eventually(t, "the node is told something", func() bool {
		host.mu.Lock()
		defer host.mu.Unlock()
		return host.desired != nil
	})
	p.leave()
	backup, err := store.Load(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	restore := func(want func(uint64) bool) {
		t.Helper()
		for range 100 {
			records, err := manager.Restored(backup)
			if err != nil {
				t.Fatal(err)
			}
			var meta struct{ Incarnation uint64 }
			if err := json.Unmarshal(records["meta"], &meta); err != nil {
				t.Fatal(err)
			}
			if !want(meta.Incarnation) {
				continue
			}
			store := &manager.MemoryStore{}
			if err := store.Commit(t.Context(), records, nil); err != nil {
				t.Fatal(err)
			}
			p.arrive(store)
			eventually(t, "the node takes the state of the restored pool", func() bool { return incarnation() == meta.Incarnation })
			p.leave()
			return
		}
		t.Fatal("100 restores chose no such incarnation")
	}
	restore(func(i uint64) bool { return i > 1<<23 })
	restore(func(i uint64) bool { return i < 1<<23 })

	// The state that it keeps is of the newest pool, and gives way to another one.
	stop()
	host = &proxy{}
	p.start("h1", dir, host)
	eventually(t, "the state on disk is applied", func() bool { return incarnation() > 0 && incarnation() < 1<<23 })
	restore(func(i uint64) bool { return i > 1<<23 })
}

func TestNewFails(t *testing.T) {
	good := agent.Config{Manager: "http://127.0.0.1:1", Name: "n", Kind: dxpuv1.NodeKind_NODE_KIND_BOX}
	write := func(name, text string) string {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if name != "node.json" {
			id := `{"version": 1, "cluster_id": "c", "node_id": "n"}`
			if err := os.WriteFile(filepath.Join(dir, "node.json"), []byte(id), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		return dir
	}
	tests := []struct {
		name   string
		change func(*agent.Config)
		wants  string
	}{
		{"no URL", func(c *agent.Config) { c.Manager = "somewhere" }, "is not the URL of a manager"},
		{"no kind", func(c *agent.Config) { c.Kind = 0 }, "host or box"},
		{"no name", func(c *agent.Config) { c.Name = "" }, "needs a name"},
		{"damaged identity", func(c *agent.Config) { c.StateDir = write("node.json", "{") }, "node.json is damaged"},
		{"newer identity", func(c *agent.Config) { c.StateDir = write("node.json", `{"version": 2}`) }, "has version 2"},
		{"damaged state", func(c *agent.Config) { c.StateDir = write("desired.pb", "\xff\xff") }, "desired.pb is damaged"},
		{"directory is a file", func(c *agent.Config) { c.StateDir = filepath.Join(write("x", ""), "x") }, "state directory"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := good
			tt.change(&cfg)
			if _, err := agent.New(cfg, &proxy{}); err == nil || !strings.Contains(err.Error(), tt.wants) {
				t.Errorf("New: %v, want %q", err, tt.wants)
			}
		})
	}
}

// Package manager is DXPU_MANAGER, which owns the pool. It knows every box, slot and
// host, allocates GPUs to hosts, binds and unbinds them, and replaces broken GPUs by
// spares (paper, sections 3.1 to 3.3.1 and 5.2).
//
// The Manager consists of a set of records, a pure placement policy and a few state
// transitions. Three inputs drive it: calls of the API, reports of the nodes, and the
// clock. Each input is one transaction on the Store, which changes records; the
// desired states of the nodes follow from the records, and events tell what happened.
// The Manager sends nothing by itself: nodes and persons watch.
//
// Files are named by concern:
//
//	state*       the schema of the pool in memory, its tables, indexes and transactions
//	store*, lead the store, backups, and the leadership of one manager
//	settle*      the rules that follow a change, until nothing more follows
//	lease*, queue*, placement, tenant*   leases, their queue and preemption, quotas
//	binding*     the states of a binding, and what the guest does with its device
//	node*, gpu*, maintain*               reports and health, cordons and drains
//	api*, access*, events*, metrics*     calls, callers and what they may do, events
//	gpu_history, pool_history            what is remembered of GPUs for weeks, of the pool for a day
//
// Invariant: a box slot belongs to at most one binding whose removal the box has not
// confirmed. The desired state of a host has at most one binding for a host slot.
package manager

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
	"github.com/dxpu-project/dxpu/internal/pool/oidc"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// Config configures a Manager. Every field but JoinToken has a usable default.
type Config struct {
	// JoinToken authorizes nodes to enrol. It is required.
	JoinToken string
	// JoinTokens returns all tokens that authorize nodes at the moment, the current one
	// first; nil: only JoinToken.
	JoinTokens func() []string
	// SignIn verifies the ID tokens of single sign-on; nil: there is none. SignInLife is the
	// lifetime of the tokens that persons get for them; 0: twelve hours.
	SignIn     *oidc.Provider
	SignInLife time.Duration
	// Store keeps the state; nil: in memory.
	Store Store
	// Reserve is the number of GPUs that are held back as spares.
	Reserve placement.Reserve
	// RackUplink is the number of GPUs that the connection of a rack with the other
	// racks serves at full bandwidth. 0: not known.
	RackUplink int
	// Interference is the measured slow-down of programs that share a GPU, which the
	// placement of parts counts as a cost. It must not change. Nil: not known.
	Interference placement.Interference
	// Heartbeat is the interval of the nodes' reports. 0: 250 ms.
	Heartbeat time.Duration
	// ReportRate is the number of reports a second that the manager accepts. If there
	// are more nodes, each reports less often, and may be silent for longer. 0: 4,000.
	ReportRate int
	// LostAfter is how long a node may be silent before it counts as lost. 0: 1 s. A
	// lost box costs its bindings only if their hosts have lost the link too.
	LostAfter time.Duration
	// HostTimeout is how long a lease waits for a host that does not report, once its
	// GPUs do not work. 0: 10 minutes; negative: for ever.
	HostTimeout time.Duration
	// LinkGrace is how long a host may report a lost link while the box
	// reports, before the GPU is replaced. 0: 2 s.
	LinkGrace time.Duration
	// AttachTimeout bounds PREPARING and READY each. 0: 20 s.
	AttachTimeout time.Duration
	// UnplugTimeout is how long a guest may take to release a device. 0: 15 s.
	UnplugTimeout time.Duration
	// MTU is the largest UDP payload, in bytes, of a path without a value of
	// its own. 0: 1472.
	MTU uint32
	// KeepEnded bounds the number of ended leases that are kept. 0: 20,000.
	KeepEnded int
	// Quarantine is how long a GPU with grave errors stays out of service. It starts
	// again at Base for a GPU that served for Max. 0: 10 minutes to a day.
	Quarantine gpuerr.Backoff
	// Probation is how long a node that was lost repeatedly must report before
	// it gets new bindings. 0: 30 s to 10 minutes.
	Probation gpuerr.Backoff
	// Open selects what callers without a credential may do. The zero value
	// lets them only enrol nodes.
	Open Open
	// CallRate is the number of calls a second for each person or program in the long
	// run; the calls of five seconds may come at once. 0: 500; negative: no limit.
	CallRate float64
	// CertificateLife is how long certificates of nodes and managers are valid.
	// 0: 30 days.
	CertificateLife time.Duration
	// Version is the program's version, for display.
	Version string
	// OnLead is called by Run each time the manager has become the leader and
	// has read the state; nil: nothing. An error ends Run.
	OnLead func(ctx context.Context) error
	// OnRotate gets the trusted authorities in PEM after each step of a rotation that this
	// manager has carried out; nil: nothing.
	OnRotate func(pem []byte)
	// Echo sends a message by the way of the reports, and returns when it has arrived: it
	// shows how late the manager hears its nodes. Nil: that is not measured.
	Echo func(ctx context.Context) error
	// Log receives the events; nil: nothing. Secrets are never logged.
	Log *slog.Logger
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Defaults of Config.
const (
	defaultHeartbeat     = 250 * time.Millisecond
	defaultReportRate    = 4_000            // 0.11 ms of a processor each, with the network: dxpu bench manager
	defaultLostAfter     = time.Second      // four heartbeats
	defaultHostTimeout   = 10 * time.Minute // longer than the restart of a server
	defaultLinkGrace     = 2 * time.Second  // longer than LostAfter
	defaultAttachTimeout = 20 * time.Second
	// defaultUnplugTimeout is above the 5 s that Linux' native PCIe hot-plug waits
	// before it begins (pciehp, for a second press of the button), and its work.
	defaultUnplugTimeout = 15 * time.Second
	defaultMTU           = 1472 // Ethernet's 1500 without the headers of IPv4 and UDP
	// unplugSlack is the time that the host gets beyond UnplugTimeout for the
	// forced removal and its report, before the box fences it off.
	unplugSlack = 3 * time.Second
	// maxAttempts bounds the number of failed bindings per GPU of a lease
	// before it is first ACTIVE. Beyond it the GPUs are hardly the cause.
	maxAttempts = 3
	// attachRetry is the pause before a lease in use tries again to attach a
	// GPU: the fault is likely to last.
	attachRetry = 5 * time.Second
	keepEnded   = time.Hour // how long ended leases are kept
	// defaultKeepEnded bounds their number: a hundred megabytes.
	defaultKeepEnded = 20_000
	keepReleased     = 8                     // the number of released bindings that a lease keeps
	tickInterval     = 50 * time.Millisecond // the resolution of deadlines
)

func (c *Config) setDefaults() {
	c.Heartbeat = cmp.Or(c.Heartbeat, defaultHeartbeat)
	c.ReportRate = cmp.Or(c.ReportRate, defaultReportRate)
	c.LostAfter = cmp.Or(c.LostAfter, defaultLostAfter)
	c.HostTimeout = cmp.Or(c.HostTimeout, defaultHostTimeout)
	c.LinkGrace = cmp.Or(c.LinkGrace, defaultLinkGrace)
	c.AttachTimeout = cmp.Or(c.AttachTimeout, defaultAttachTimeout)
	c.UnplugTimeout = cmp.Or(c.UnplugTimeout, defaultUnplugTimeout)
	c.MTU = cmp.Or(c.MTU, defaultMTU)
	c.CertificateLife = cmp.Or(c.CertificateLife, defaultCertificateLife)
	c.KeepEnded = cmp.Or(c.KeepEnded, defaultKeepEnded)
	c.Quarantine = cmp.Or(c.Quarantine, gpuerr.Backoff{Base: 10 * time.Minute, Max: 24 * time.Hour})
	c.Probation = cmp.Or(c.Probation, gpuerr.Backoff{Base: 30 * time.Second, Max: 10 * time.Minute})
	if c.Store == nil {
		c.Store = &MemoryStore{}
	}
	c.Log = cmp.Or(c.Log, slog.New(slog.DiscardHandler))
	if c.Now == nil {
		c.Now = time.Now
	}
}

// joinTokens returns the tokens that authorize nodes at the moment, the current one first.
func (c *Config) joinTokens() []string {
	if c.JoinTokens == nil {
		return []string{c.JoinToken}
	}
	return c.JoinTokens()
}

// Manager owns the pool.
type Manager struct {
	cfg     Config
	store   Store
	log     *slog.Logger
	metrics *metrics
	events  *eventLog
	stop    chan struct{} // closed when Run ends
	cluster Cluster       // the store, if several managers share it; nil: this manager is alone
	stores  sync.WaitGroup

	mu    sync.Mutex
	state *state               // nil: not read yet
	live  map[string]*liveNode // what nodes reported
	awake time.Time            // when this manager last ran; zero: that is not watched (node_stall.go)
	// wallWas is the wall clock at that time, as wall tells it; zero: not watched. jumped is by how
	// much it was set, as far as no event has said so (clock.go).
	wallWas time.Time
	jumped  time.Duration
	wall    func(now time.Time) time.Time
	// echoed is when the last message to itself that came back was sent; zero: that is not
	// measured (node_hearing.go).
	echoed time.Time
	// Transactions on their way to the store, the newest last. storing is set while
	// a goroutine stores them.
	waiting  []*commit
	last     *commit // the newest transaction, stored or not; nil: none since the state was read
	storing  bool
	stateErr error // why state is nil
	running  bool
	leads    bool          // always true without a cluster
	term     chan struct{} // closed when the leadership ends

	ca       ca
	renewals renewals // guarded by mu
	refused  refusals
	limits   *limits
}

// New loads the state, or creates a new pool if there is none.
func New(ctx context.Context, cfg Config) (*Manager, error) {
	if len(cfg.JoinToken) < 8 {
		return nil, errors.New("manager: a join token of at least 8 characters is needed")
	}
	cfg.setDefaults()
	m := &Manager{
		cfg: cfg, store: cfg.Store, log: cfg.Log, stop: make(chan struct{}), term: make(chan struct{}),
		events: newEventLog(), live: map[string]*liveNode{}, limits: newLimits(cfg.CallRate, cfg.Open), wall: wallOf,
	}
	m.metrics = newMetrics(m)
	if c, ok := cfg.Store.(Cluster); ok {
		m.cluster = c
		close(m.term)
		return m, nil
	}
	m.leads = true
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.loadLocked(ctx); err != nil {
		return nil, err
	}
	return m, nil
}

// Tick carries out what is due now, in as many transactions as necessary. Run
// calls it, and so do tests with their own clock.
func (m *Manager) Tick(ctx context.Context) error {
	for m.unfinished() {
		if err := m.update(ctx, func(*tx) error { return nil }); err != nil {
			return err
		}
	}
	return m.takeSample(ctx)
}

func (m *Manager) unfinished() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state != nil && (m.jumped != 0 || m.readLocked(m.cfg.Now()).unfinished())
}

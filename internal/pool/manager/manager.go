// Package manager is DXPU_MANAGER: it owns the pool. It knows every box, slot
// and host, allocates GPUs to hosts, binds and unbinds them, and replaces broken
// ones from the spares (paper, sections 3.1 to 3.3.1 and 5.2).
//
// The Manager is a set of records, a pure placement policy and a few transitions
// that are driven by three inputs: calls of the API, reports of the nodes and the
// clock. Each input is one transaction on the Store: records change, the desired
// state of nodes follows from the records, events tell what happened. Nothing
// is sent to anybody from within: nodes and people watch.
//
// Files are named by concern:
//
//	state*       the schema of the pool in memory, its tables, indexes and transactions
//	store*, lead the store, backups, and the leadership of one manager
//	settle*      the rules that follow a change, until nothing more follows
//	lease*, queue*, placement, tenant*   leases, their queue and preemption, quotas
//	binding*     the states of a binding, and what the guest does with its device
//	node*, gpu*, maintain*               reports and health, cordons and drains
//	api*, access*, events*, metrics      calls, callers and what they may do, events
//
// Invariant: a box slot belongs to at most one binding that its box has not
// confirmed to be rid of; a host slot is wanted by the host for at most one binding.
package manager

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/internal/pool/gpuerr"
	"github.com/dxpu-project/dxpu/internal/pool/placement"
)

// Config has usable defaults for everything but the join token.
type Config struct {
	// JoinToken lets nodes enrol. Needed.
	JoinToken string
	// Store keeps the state; nil: memory.
	Store Store
	// Reserve is what is held back as spares.
	Reserve placement.Reserve
	// Heartbeat is how often nodes report. 0: 250 ms.
	Heartbeat time.Duration
	// ReportRate is how many reports a second the manager takes: where there are
	// more nodes, each reports less often, and may be silent for longer. 0: 4,000.
	ReportRate int
	// LostAfter is how long a node may be silent before it counts as lost. 0: 1 s.
	// A lost box costs its bindings only when their hosts have lost the link too.
	LostAfter time.Duration
	// LinkGrace is how long a host may say that a link is lost while the box
	// goes on reporting, before the GPU is replaced. 0: 2 s.
	LinkGrace time.Duration
	// AttachTimeout bounds PREPARING and READY each. 0: 20 s.
	AttachTimeout time.Duration
	// UnplugTimeout is how long a guest may take to let go of a device. 0: 5 s.
	UnplugTimeout time.Duration
	// MTU is the largest UDP payload of a path that names none, in bytes. 0: 1472.
	MTU uint32
	// KeepEnded is how many leases that are over are remembered at the most. 0: 50,000.
	KeepEnded int
	// Quarantine is how long a GPU with grave errors is kept out of service; a
	// GPU that was good for Max begins anew. 0: 10 minutes to a day.
	Quarantine gpuerr.Backoff
	// Probation is how long a node that was lost again and again must be there
	// before it gets new bindings. 0: 30 s to 10 minutes.
	Probation gpuerr.Backoff
	// Open says what callers without a credential may do; the zero value lets
	// them enrol nodes and nothing else.
	Open Open
	// CallRate is how many calls a second each person or program may make in the
	// long run; five seconds' worth of them may come at once. 0: 500; negative: no limit.
	CallRate float64
	// CertificateLife is how long certificates of nodes and managers last. 0: 30 days.
	CertificateLife time.Duration
	// Version is shown to people.
	Version string
	// OnLead is called by Run each time the manager begins to lead, once its
	// state is read; nil: nothing. An error ends Run.
	OnLead func(ctx context.Context) error
	// Log gets the events; nil: nothing. Secrets are never logged.
	Log *slog.Logger
	// Now is the clock; nil: time.Now.
	Now func() time.Time
}

// Defaults of Config.
const (
	defaultHeartbeat     = 250 * time.Millisecond
	defaultReportRate    = 4_000           // 0.11 ms of a processor each, with the network: dxpu bench manager
	defaultLostAfter     = time.Second     // four heartbeats
	defaultLinkGrace     = 2 * time.Second // longer than a box takes to be counted as lost
	defaultAttachTimeout = 20 * time.Second
	defaultUnplugTimeout = 5 * time.Second
	defaultMTU           = 1472 // Ethernet's 1500 without the headers of IPv4 and UDP
	// unplugSlack is what the host gets on top of UnplugTimeout for the forced
	// removal and its report, before the box fences it off.
	unplugSlack = 3 * time.Second
	// maxAttempts bounds how many bindings per GPU of a lease may fail before it
	// has been ACTIVE; then the fault is hardly the GPUs'.
	maxAttempts = 3
	// attachRetry is the pause of a lease that works before it tries again to
	// attach what failed: the fault is likely to last.
	attachRetry = 5 * time.Second
	// keepEnded is how long leases that are over are remembered.
	keepEnded = time.Hour
	// defaultKeepEnded is how many of them at the most: some hundred megabytes.
	defaultKeepEnded = 50_000
	// keepReleased is how many released bindings a lease remembers.
	keepReleased = 8
	// tickInterval is how finely deadlines are kept.
	tickInterval = 50 * time.Millisecond
)

func (c *Config) setDefaults() {
	setDefault(&c.Heartbeat, defaultHeartbeat)
	setDefault(&c.ReportRate, defaultReportRate)
	setDefault(&c.LostAfter, defaultLostAfter)
	setDefault(&c.LinkGrace, defaultLinkGrace)
	setDefault(&c.AttachTimeout, defaultAttachTimeout)
	setDefault(&c.UnplugTimeout, defaultUnplugTimeout)
	setDefault(&c.MTU, defaultMTU)
	setDefault(&c.CertificateLife, defaultCertificateLife)
	setDefault(&c.KeepEnded, defaultKeepEnded)
	setDefault(&c.Quarantine, gpuerr.Backoff{Base: 10 * time.Minute, Max: 24 * time.Hour})
	setDefault(&c.Probation, gpuerr.Backoff{Base: 30 * time.Second, Max: 10 * time.Minute})
	if c.Store == nil {
		c.Store = &MemoryStore{}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		c.Now = time.Now
	}
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// Manager owns the pool.
type Manager struct {
	cfg     Config
	store   Store
	log     *slog.Logger
	metrics *metrics
	events  *eventLog
	stop    chan struct{} // closed when Run ends
	cluster Cluster       // the store, where managers share it; nil: this manager is the only one
	stores  sync.WaitGroup

	mu    sync.Mutex
	state *state               // nil: to be read first
	live  map[string]*liveNode // what nodes reported
	// What is on its way to the store, the newest last; storing: somebody stores it.
	waiting []*commit
	last    *commit // the newest, stored or not; nil: none since the state was read
	storing bool
	trouble error // why there is no state
	running bool
	leads   bool          // always true without a cluster
	term    chan struct{} // closed when the manager does not lead any more

	ca      ca
	refused refusals
	limits  *limits
}

// New loads the state, or makes a new pool where there is none.
func New(ctx context.Context, cfg Config) (*Manager, error) {
	if len(cfg.JoinToken) < 8 {
		return nil, errors.New("manager: a join token of at least 8 characters is needed")
	}
	cfg.setDefaults()
	m := &Manager{
		cfg:    cfg,
		store:  cfg.Store,
		log:    cfg.Log,
		stop:   make(chan struct{}),
		term:   make(chan struct{}),
		events: newEventLog(),
		live:   map[string]*liveNode{},
	}
	m.limits = newLimits(cfg.CallRate, cfg.Open)
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

// Tick does what is due now, in as many transactions as that takes. Run calls
// it; tests with a clock of their own do too.
func (m *Manager) Tick(ctx context.Context) error {
	for m.unfinished() {
		if err := m.update(ctx, func(*tx) error { return nil }); err != nil {
			return err
		}
	}
	return nil
}

func (m *Manager) unfinished() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state != nil && m.readLocked(m.cfg.Now()).unfinished()
}

// Handler serves the API, /healthz, /readyz and /metrics.
func (m *Manager) Handler() http.Handler { return m.handler() }

// Package agent is the part of a proxy that talks to the manager: it enrols the
// node, receives the node's desired state, reports the observed state, and keeps
// the last known desired state while the manager cannot be reached.
//
// A proxy implements Handler and runs an Agent:
//
//	a, err := agent.New(agent.Config{Manager: "http://127.0.0.1:7470", ...}, handler)
//	...
//	err = a.Run(ctx) // until ctx ends
//
// Everything is level-triggered: Apply and Observe exchange whole snapshots, and
// any of them may be skipped.
package agent

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/client"
)

// Handler is a proxy, as the agent sees it.
type Handler interface {
	// Apply receives the node's desired state. It stores the snapshot and returns
	// without waiting; the proxy's own loops do the work, and the proxy calls
	// Agent.Changed when it has made progress. Calls are sequential: first the
	// snapshot kept on disk, if there is one (before the manager is called), then
	// each new one. A snapshot with another ClusterId or NodeId comes from another
	// pool: all bindings of the previous snapshot end. d belongs to the handler,
	// which does not change it.
	Apply(d *dxpuv1.DesiredState)

	// Observe returns the state of the node. AppliedRevision must be the revision
	// of the last snapshot that Apply received, or 0. A binding that a snapshot no
	// longer contains is listed until nothing of it is left. The agent sets NodeId,
	// InstanceId, Sequence and Version; the result belongs to the agent. Any
	// goroutine may call Observe.
	Observe() *dxpuv1.ObservedState
}

// Config describes the node and its manager.
type Config struct {
	// Manager is the manager's URL, such as "http://127.0.0.1:7470". Several are
	// separated by commas; the agent calls the one that leads.
	Manager string
	// JoinToken is needed until the node has enrolled.
	JoinToken string
	// Kind is host or box.
	Kind dxpuv1.NodeKind
	// Name becomes the node ID: 1 to 63 of a-z, 0-9, '-' and '.'.
	Name string
	// NameGiven is set if a person chose the name, which is not only that of the machine.
	NameGiven bool
	// Version of the proxy, for operators.
	Version string
	// StateDir keeps the enrolment and the last desired state, which contain keys.
	// The directory is created with mode 0700. Empty: nothing is kept.
	StateDir string
	// Heartbeat is the longest time between two reports. 0: the interval that the
	// manager asks for.
	Heartbeat time.Duration
	// CA is the PEM of the authority that signed the manager's certificate. nil: the
	// authority that enrolment returned; until then, those that the system
	// trusts.
	CA []byte
	// CAHash is the hash of that authority, as the manager prints it: "sha256:" and
	// 64 hexadecimal digits. It takes precedence over CA.
	CAHash string
	// HTTPClient sends the requests. nil: a client of the agent's own, which shows
	// the node's certificate.
	HTTPClient *http.Client
	// Log receives log records; nil: none are written. Credentials, tokens and keys
	// are never logged.
	Log *slog.Logger
}

// Agent talks to the manager on behalf of a proxy.
type Agent struct {
	cfg      Config
	managers []string
	handler  Handler
	log      *slog.Logger
	instance string
	changed  chan struct{} // one element: report now
	rewatch  chan struct{} // one element: open a new watch
	renewNow chan struct{} // one element: renew the certificate
	reached  chan struct{} // one element: the manager answers again

	unlock      func() error  // gives the state directory to the next process
	nameTimeout time.Duration // the constant, except in tests

	connected atomic.Bool
	known     atomic.Uint64 // revision of the last snapshot applied
	unsaved   atomic.Bool   // the state directory cannot be written, and the log says so

	keeping sync.Mutex // held while the identity changes, here and in the state directory

	mu       sync.Mutex // guards the fields below
	identity identity   // the result of enrolment; zero before it
	refused  bool       // the manager does not accept the identity
	client   *client.Client
	applied  *dxpuv1.DesiredState
}

// New checks the configuration, locks the state directory until the end of Run, and reads it.
// The error is a [dirlock.HeldError] if another process has the directory.
func New(cfg Config, h Handler) (*Agent, error) {
	managers, err := client.ParseManagers(cfg.Manager)
	if err != nil {
		return nil, fmt.Errorf("agent: manager: %w: write it like http://127.0.0.1:7470, several as URL,URL,URL", err)
	}
	if cfg.Kind != dxpuv1.NodeKind_NODE_KIND_HOST && cfg.Kind != dxpuv1.NodeKind_NODE_KIND_BOX {
		return nil, errors.New("agent: Kind must be host or box")
	}
	if cfg.Name == "" {
		return nil, errors.New("agent: the node needs a name")
	}
	if cfg.StateDir != "" {
		if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
			return nil, fmt.Errorf("agent: state directory: %w", err)
		}
	}
	a := &Agent{
		cfg: cfg, managers: managers, handler: h, log: cfg.Log, instance: rand.Text()[:12],
		changed: make(chan struct{}, 1), rewatch: make(chan struct{}, 1), renewNow: make(chan struct{}, 1), reached: make(chan struct{}, 1),
		unlock: func() error { return nil }, nameTimeout: nameTimeout,
	}
	if a.log == nil {
		a.log = slog.New(slog.DiscardHandler)
	}
	if err := a.lock(); err != nil {
		return nil, err
	}
	if err := a.load(); err != nil {
		return nil, errors.Join(err, a.unlock())
	}
	a.sweep()
	if a.client, err = a.newClient(a.identity); err != nil {
		return nil, errors.Join(fmt.Errorf("agent: manager: %w", err), a.unlock())
	}
	return a, nil
}

// Changed requests a report now; calls in quick succession share one report. It
// never blocks and may be called before and after Run.
func (a *Agent) Changed() { signal(a.changed) }

// Connected reports whether the last report reached the manager. Advisory.
func (a *Agent) Connected() bool { return a.connected.Load() }

// KnowsLocalPeers reports whether the manager knows ObservedState.LocalPeer: it said so when
// this node enrolled, or since.
func (a *Agent) KnowsLocalPeers() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.identity.LocalPeers
}

// noteLocalPeers records that the manager knows local peers, and reports with that. If it
// cannot be saved, the next report tries again.
func (a *Agent) noteLocalPeers() {
	if a.keep(func(id *identity) { id.LocalPeers = true }) == nil {
		a.Changed()
	}
}

// current returns the identity and a client that shows it.
func (a *Agent) current() (identity, *client.Client) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.identity, a.client
}

// redundant reports whether the pool has several managers.
func (a *Agent) redundant() bool { return len(a.managers) > 1 }

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (a *Agent) path(name string) string { return filepath.Join(a.cfg.StateDir, name) }

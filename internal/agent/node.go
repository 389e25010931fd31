// Package agent is the side of a proxy that talks to the manager: it enrols the
// node, receives what the node should have, reports what it has, and goes on
// with the last known desired state while the manager is away.
//
// A proxy implements Handler and runs a Client:
//
//	c, err := node.New(node.Config{Manager: "http://127.0.0.1:7470", ...}, handler)
//	...
//	err = c.Run(ctx) // until ctx ends
//
// Everything is level-triggered: Apply gets whole snapshots, of which any number
// may have been skipped; Observe gives whole snapshots.
package agent

import (
	"cmp"
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
	"github.com/dxpu-project/dxpu/api/dxpu/v1/dxpuv1connect"
	"github.com/dxpu-project/dxpu/client"
)

// Handler is a proxy, as the client sees it.
type Handler interface {
	// Apply tells what the node should have. It takes the snapshot in and
	// returns soon; the work goes on in the proxy's own loops, and Client.Changed
	// announces its progress. Calls come one at a time: first, where there is
	// one, the snapshot kept on disk (before the manager is asked), then each
	// new one. A snapshot of another ClusterId or NodeId than the one before is
	// another pool's: all bindings of the one before go. d belongs to the
	// handler, which does not change it.
	Apply(d *dxpuv1.DesiredState)

	// Observe tells what the node has now. AppliedRevision must be the
	// revision of the last snapshot that Apply took in, or 0; whatever is left
	// of a binding that a snapshot no longer has is listed until it is gone.
	// The client sets NodeId, InstanceId, Sequence and Version; the result belongs
	// to it. May be called from any goroutine.
	Observe() *dxpuv1.ObservedState
}

// Config says who the node is and where the manager is.
type Config struct {
	// Manager is the manager's URL, such as "http://127.0.0.1:7470", or those of
	// several, separated by commas: the node talks to the one that leads.
	Manager string
	// JoinToken is needed until the node has enrolled.
	JoinToken string
	// Kind is host or box.
	Kind dxpuv1.NodeKind
	// Name becomes the node ID: 1 to 63 of a-z, 0-9, '-' and '.'.
	Name string
	// Version of the proxy, for people.
	Version string
	// StateDir keeps the enrolment and the last desired state, with keys in it:
	// it is made with mode 0700. Empty: nothing is kept.
	StateDir string
	// Heartbeat is the longest time between two reports. 0: what the manager says.
	Heartbeat time.Duration
	// CA is who may vouch for the manager, in PEM. Empty: the authority that
	// enrolment named, and before it whom the system trusts.
	CA []byte
	// CAHash is the hash of the manager's authority, as the manager prints it:
	// "sha256:" and 64 hexadecimal digits. With it CA is not needed.
	CAHash string
	// HTTPClient talks to the manager; nil: a new one of the package's own,
	// which shows the node's certificate.
	HTTPClient *http.Client
	// Log gets what happens; nil: nothing. Credentials, tokens and keys are never logged.
	Log *slog.Logger
}

// Client runs the conversation with the manager.
type Client struct {
	cfg      Config
	handler  Handler
	api      dxpuv1connect.NodeServiceClient
	channel  *channel // nil: Config.HTTPClient is used
	several  bool     // managers
	log      *slog.Logger
	instance string
	changed  chan struct{} // holds at most one wish to report
	rewatch  chan struct{} // holds at most one wish to open the watch anew
	reached  chan struct{} // holds at most one word that the manager answers again

	connected atomic.Bool
	known     atomic.Uint64 // revision of the last snapshot applied

	mu       sync.Mutex
	identity identity // what enrolment gave; zero before it
	refused  bool     // the manager does not know it
	applied  *dxpuv1.DesiredState
}

// New checks the configuration and reads the state directory.
func New(cfg Config, h Handler) (*Client, error) {
	managers, err := client.Parse(cfg.Manager)
	if err != nil {
		return nil, fmt.Errorf("node: manager: %w: write it like http://127.0.0.1:7470, several as URL,URL,URL", err)
	}
	if cfg.Kind != dxpuv1.NodeKind_NODE_KIND_HOST && cfg.Kind != dxpuv1.NodeKind_NODE_KIND_BOX {
		return nil, errors.New("node: Kind must be host or box")
	}
	if cfg.Name == "" {
		return nil, errors.New("node: a name is needed")
	}
	if cfg.StateDir != "" {
		if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
			return nil, fmt.Errorf("node: state directory: %w", err)
		}
	}
	c := &Client{
		cfg:      cfg,
		handler:  h,
		log:      cfg.Log,
		instance: newInstanceID(),
		changed:  make(chan struct{}, 1),
		rewatch:  make(chan struct{}, 1),
		reached:  make(chan struct{}, 1),
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	hc := cfg.HTTPClient
	if hc == nil {
		if c.channel, err = newChannel(&cfg, managers[0]); err != nil {
			return nil, err
		}
		hc = &http.Client{Transport: c.channel}
	}
	leader := &http.Client{Transport: client.New(managers, cmp.Or(hc.Transport, http.DefaultTransport), reportTimeout)}
	c.several = len(managers) > 1
	c.api = dxpuv1connect.NewNodeServiceClient(leader, managers[0].String())
	if err := c.load(); err != nil {
		return nil, err
	}
	if c.channel != nil {
		c.channel.use(c.identity)
	}
	return c, nil
}

// Changed asks for a report now; many calls in a row make few reports. It never
// blocks and may be called before and after Run.
func (c *Client) Changed() { poke(c.changed) }

// Connected reports whether the last report reached the manager. Advisory.
func (c *Client) Connected() bool { return c.connected.Load() }

// Identity returns the node ID and number that enrolment gave, "" and 0 before it.
func (c *Client) Identity() (id string, number uint32) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.identity.NodeID, c.identity.NodeNumber
}

func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

func (c *Client) path(name string) string { return filepath.Join(c.cfg.StateDir, name) }

package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

const (
	// defaultHeartbeat is used until the manager says otherwise: four reports
	// within the second after which a manager counts a node as lost.
	defaultHeartbeat = 250 * time.Millisecond
	// maxHeartbeat is the longest pause between reports, whatever a manager says.
	maxHeartbeat = time.Minute
	// Back-off between attempts to reach the manager. The first is short
	// because a restarting manager should find its nodes again at once; the last
	// keeps a thousand nodes from asking more than some hundred times a second.
	firstBackoff = 50 * time.Millisecond
	lastBackoff  = 3 * time.Second
	// silence is how long a watch may owe a snapshot that reports speak of.
	silence = time.Second
	// callTimeout bounds a unary call; an answer takes milliseconds.
	callTimeout = 5 * time.Second
	// reportTimeout bounds a report where there are other managers to turn to.
	reportTimeout = 2 * time.Second
)

// errEnrolAgain says that the manager does not know the node's credential.
var errEnrolAgain = errors.New("node: the manager does not know this node")

// Run applies the state on disk, then talks to the manager until ctx ends. It
// returns nil then, and an error only for what retrying cannot mend: a refused
// join token or name, or a state directory that cannot be written.
func (c *Client) Run(ctx context.Context) error {
	c.mu.Lock()
	kept := c.applied
	c.mu.Unlock()
	if kept != nil {
		c.log.Info("going on with the desired state on disk", "revision", kept.Revision, "bindings", len(kept.Bindings))
		c.handler.Apply(proto.CloneOf(kept))
	}
	pause := newBackoff()
	for {
		err := c.session(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var fatal *fatalError
		if errors.As(err, &fatal) {
			return fatal.err
		}
		if errors.Is(err, errEnrolAgain) {
			c.log.Warn("the manager does not know this node: enrolling again")
			pause.reset()
		} else {
			c.log.Info("no conversation with the manager", "err", err)
		}
		if !pause.wait(ctx, nil) {
			return nil
		}
	}
}

// session enrols when needed and then watches and reports until one of both
// needs a new enrolment.
func (c *Client) session(ctx context.Context) error {
	if err := c.enrol(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return c.watchLoop(ctx) })
	g.Go(func() error { return c.reportLoop(ctx) })
	g.Go(func() error { return c.renewLoop(ctx) })
	return g.Wait()
}

func (c *Client) enrol(ctx context.Context) error {
	c.mu.Lock()
	old, known := c.identity, !c.refused
	c.mu.Unlock()
	if old.NodeID != "" && known {
		return nil
	}
	csr, key, err := c.request()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := c.api.Enroll(ctx, connect.NewRequest(&dxpuv1.EnrollRequest{
		JoinToken: c.cfg.JoinToken,
		Kind:      c.cfg.Kind,
		Name:      c.cfg.Name,
		Version:   c.cfg.Version,

		PreviousCredential: old.Credential,
		CsrPem:             csr,
	}))
	switch connect.CodeOf(err) {
	case connect.CodeUnauthenticated, connect.CodePermissionDenied, connect.CodeInvalidArgument:
		return &fatalError{fmt.Errorf("node: enrol %q: %w", c.cfg.Name, err)}
	}
	if err != nil {
		return fmt.Errorf("node: enrol: %w", err)
	}
	id := identity{
		Version:     identityVersion,
		ClusterID:   res.Msg.ClusterId,
		NodeID:      res.Msg.NodeId,
		NodeNumber:  res.Msg.NodeNumber,
		Credential:  res.Msg.Credential,
		HeartbeatMS: res.Msg.HeartbeatInterval.AsDuration().Milliseconds(),
		Certificate: res.Msg.CertificatePem,
		Key:         key,
		CA:          res.Msg.CaPem,
	}
	if err := id.check(); err != nil {
		return err
	}
	if err := c.saveIdentity(id); err != nil {
		return &fatalError{err}
	}
	c.mu.Lock()
	c.identity, c.refused = id, false
	if c.applied != nil && (c.applied.ClusterId != id.ClusterID || c.applied.NodeId != id.NodeID) {
		c.known.Store(0) // another pool: its revisions are not comparable
	}
	c.mu.Unlock()
	if c.channel != nil {
		c.channel.use(id)
	}
	c.log.Info("enrolled", "node", id.NodeID, "number", id.NodeNumber, "cluster", id.ClusterID)
	return nil
}

// forget notes that the manager refused the node's identity. The desired state
// stays: only a new desired state takes bindings down. The credential is still
// good to say which node it was.
func (c *Client) forget() {
	c.mu.Lock()
	c.refused = true
	ca := c.identity.CA
	c.mu.Unlock()
	if c.channel != nil {
		c.channel.use(identity{CA: ca}) // a bad certificate would spoil the handshake
	}
}

func (c *Client) watchLoop(ctx context.Context) error {
	pause := newBackoff()
	for {
		err := c.watch(ctx, pause)
		if err := c.sessionError(err); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		c.log.Debug("watch ended", "err", err)
		// The manager may have restarted: it should hear of this node now, not
		// with the next heartbeat, which may be far off.
		c.Changed()
		if !pause.wait(ctx, c.reached) {
			return ctx.Err()
		}
	}
}

// watch receives snapshots until the stream ends or reportLoop finds that it
// has gone silent.
func (c *Client) watch(ctx context.Context, pause *backoff) error {
	ctx, cancel := context.WithCancel(ctx)
	select {
	case <-c.rewatch: // meant for the watch before this one
	default:
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-c.rewatch:
			cancel()
		case <-ctx.Done():
		}
	})
	defer wg.Wait()
	defer cancel()

	c.mu.Lock()
	id := c.identity
	c.mu.Unlock()
	req := connect.NewRequest(&dxpuv1.WatchDesiredRequest{
		NodeId: id.NodeID, KnownRevision: c.known.Load(), ClusterId: id.ClusterID,
	})
	authorize(req.Header().Set, id)
	stream, err := c.api.WatchDesired(ctx, req)
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		pause.reset()
		if err := c.take(id, stream.Msg()); err != nil {
			return err
		}
	}
	return stream.Err()
}

// take keeps a snapshot on disk and then applies it. Disk first: a node that
// crashes in between comes back with what it was told last.
func (c *Client) take(id identity, d *dxpuv1.DesiredState) error {
	if d.NodeId != id.NodeID || d.ClusterId != id.ClusterID {
		return fmt.Errorf("node: the manager sent the desired state of node %q in cluster %q", d.NodeId, d.ClusterId)
	}
	c.mu.Lock()
	stale := c.applied != nil && c.applied.ClusterId == d.ClusterId && c.applied.NodeId == d.NodeId &&
		!revision.Replaces(d.Revision, c.applied.Revision)
	c.mu.Unlock()
	if stale {
		return nil
	}
	kept := proto.CloneOf(d)
	if err := c.saveDesired(kept); err != nil {
		return &fatalError{err}
	}
	c.mu.Lock()
	c.applied = kept
	c.mu.Unlock()
	c.known.Store(d.Revision)
	c.log.Debug("desired state", "revision", d.Revision, "bindings", len(d.Bindings))
	c.handler.Apply(proto.CloneOf(kept))
	c.Changed()
	return nil
}

func (c *Client) reportLoop(ctx context.Context) error {
	c.mu.Lock()
	interval := time.Duration(c.identity.HeartbeatMS) * time.Millisecond
	c.mu.Unlock()
	defer c.connected.Store(false)
	tick := time.NewTimer(maxHeartbeat)
	defer tick.Stop()
	pause := newBackoff()
	var seq uint64
	var behind time.Time // since when answers speak of a revision that we do not have
	reached := true
	for {
		seq++
		want, every, err := c.reportOnce(ctx, seq)
		c.connected.Store(err == nil)
		if err := c.sessionError(err); err != nil {
			return err
		}
		if err != nil {
			c.log.Debug("report failed", "err", err)
			reached = false
			if !pause.wait(ctx, nil) {
				return ctx.Err()
			}
			continue
		}
		pause.reset()
		if !reached {
			poke(c.reached) // the watch need not wait its turn
			if c.several {
				poke(c.rewatch) // nor stay with a manager that is frozen
			}
		}
		reached = true
		// A watch that says nothing while there is something to say is dead,
		// whatever TCP thinks of it.
		if !revision.Replaces(want, c.known.Load()) {
			behind = time.Time{}
		} else if behind.IsZero() {
			behind = time.Now()
		} else if time.Since(behind) > silence {
			poke(c.rewatch)
			behind = time.Time{}
		}
		if every > 0 {
			interval = every
		}
		tick.Reset(c.nextReport(interval, behind))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-c.changed:
		}
	}
}

// nextReport is the pause before the next report where nothing changes: what the
// manager says, less while it owes a snapshot.
func (c *Client) nextReport(interval time.Duration, behind time.Time) time.Duration {
	switch {
	case c.cfg.Heartbeat > 0:
		interval = c.cfg.Heartbeat
	case interval <= 0:
		interval = defaultHeartbeat
	}
	if !behind.IsZero() {
		interval = min(interval, silence)
	}
	return min(interval, maxHeartbeat)
}

// reportOnce makes a report and returns which desired state there is for the node,
// and how often it is to report, 0 for as before.
func (c *Client) reportOnce(ctx context.Context, seq uint64) (desired uint64, every time.Duration, err error) {
	timeout := callTimeout
	if c.several {
		timeout = reportTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	c.mu.Lock()
	id := c.identity
	ours := c.applied != nil && c.applied.ClusterId == id.ClusterID && c.applied.NodeId == id.NodeID
	c.mu.Unlock()
	state := c.handler.Observe()
	if !ours {
		state.AppliedRevision = 0 // of another pool
	}
	state.NodeId = id.NodeID
	state.InstanceId = c.instance
	state.Sequence = seq
	state.Version = c.cfg.Version
	req := connect.NewRequest(&dxpuv1.ReportRequest{State: state})
	authorize(req.Header().Set, id)
	res, err := c.api.Report(ctx, req)
	if err != nil {
		return 0, 0, err
	}
	return res.Msg.DesiredRevision, res.Msg.HeartbeatInterval.AsDuration(), nil
}

// sessionError returns the errors that end a session, nil for the rest.
func (c *Client) sessionError(err error) error {
	var fatal *fatalError
	if errors.As(err, &fatal) {
		return err
	}
	if err != nil && (connect.CodeOf(err) == connect.CodeUnauthenticated || refused(err)) {
		c.forget()
		return errEnrolAgain
	}
	return nil
}

func authorize(set func(k, v string), id identity) {
	set("Authorization", "Bearer "+id.Credential)
}

// fatalError is what retrying cannot mend.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

// backoff waits longer each time, with jitter so that nodes do not come back in step.
type backoff struct{ next time.Duration }

func newBackoff() *backoff { return &backoff{next: firstBackoff} }

func (b *backoff) reset() { b.next = firstBackoff }

// wait waits for its time or for early, after which it begins from the start. It
// returns false when ctx has ended.
func (b *backoff) wait(ctx context.Context, early <-chan struct{}) bool {
	d := b.next/2 + rand.N(b.next/2+1)
	b.next = min(b.next*2, lastBackoff)
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-early:
		b.reset()
		return true
	case <-t.C:
		return true
	}
}

package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/cenkalti/backoff/v5"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/revision"
)

const (
	// defaultHeartbeat is used until the manager sets another interval: four
	// reports within the second after which a manager counts a node as lost.
	defaultHeartbeat = 250 * time.Millisecond
	// maxHeartbeat bounds the interval that a manager can set.
	maxHeartbeat = time.Minute
	// The mean pauses between attempts to reach the manager. The first is short
	// so that a restarted manager finds its nodes again at once; the last keeps a
	// thousand nodes below some hundred calls a second.
	firstBackoff = 40 * time.Millisecond
	lastBackoff  = 2 * time.Second
	// snapshotTimeout is how long the snapshot of a revision that the manager has
	// announced in a report may take to arrive.
	snapshotTimeout = time.Second
	// callTimeout bounds a unary call; an answer takes milliseconds.
	callTimeout = 5 * time.Second
	// reportTimeout bounds a report if the pool has other managers.
	reportTimeout = 2 * time.Second
	// nameTimeout is how long a node asks for a name that another node has. A node that
	// has lost its state directory gets its name when the manager counts its former self
	// as lost, which takes a second. A node that asked for ever would take the name of
	// another one at the first restart of that one.
	nameTimeout = 30 * time.Second
	// lastRefusedBackoff is the longest pause of an enrolled node whose join token is
	// refused: only an operator can end that.
	lastRefusedBackoff = 30 * time.Second
)

// errEnrolAgain reports that the manager does not know the node's credential.
var errEnrolAgain = errors.New("agent: the manager does not know this node")

// Run applies the state on disk, then talks to the manager until ctx ends. It
// returns nil then, and an error only where a retry cannot help: a refused join
// token of a node that has not enrolled, a refused name, a name that another node keeps,
// or a state directory in which a node that enrols for the first time cannot write.
func (a *Agent) Run(ctx context.Context) error { return errors.Join(a.run(ctx), a.unlock()) }

func (a *Agent) run(ctx context.Context) error {
	a.mu.Lock()
	kept := a.applied
	a.mu.Unlock()
	if kept != nil {
		a.log.Info("using the desired state on disk", "revision", kept.Revision, "bindings", len(kept.Bindings))
		a.handler.Apply(proto.CloneOf(kept))
	}
	for r := newRetries(a); ; {
		err := a.converse(ctx)
		if ctx.Err() != nil {
			return nil
		}
		var fatal *fatalError
		if errors.As(err, &fatal) {
			return fatal.err
		}
		pause := r.after(err)
		if pause == nil {
			return err
		}
		if !wait(ctx, pause, nil) {
			return nil
		}
	}
}

// retries is how a node goes on after conversations with the manager that failed.
type retries struct {
	agent          *Agent
	retry, refused *backoff.ExponentialBackOff
	taken          time.Time // since when another node has the name; zero: none has
	said           string    // the last refusal of the join token that the log has
}

func newRetries(a *Agent) *retries {
	r := &retries{agent: a, retry: newBackoff(), refused: newBackoff()}
	r.refused.MaxInterval = lastRefusedBackoff
	return r
}

// after writes to the log why a conversation ended, and returns the pause before the next
// one; nil if there is none.
func (r *retries) after(err error) *backoff.ExponentialBackOff {
	log := r.agent.log
	code := connect.CodeOf(err)
	if code != connect.CodeAlreadyExists {
		r.taken = time.Time{}
	}
	switch {
	case errors.Is(err, errEnrolAgain):
		log.Warn("the manager does not know this node: enrolling again")
		r.retry.Reset()
		r.refused.Reset()
		r.said = ""
	case code == connect.CodeUnauthenticated:
		if err.Error() != r.said {
			r.said = err.Error()
			log.Error("the manager does not know this node, and refuses its join token: attached GPUs work on", "err", err)
		}
		return r.refused
	case code == connect.CodeAlreadyExists:
		return r.nameTaken(err)
	case errors.As(err, new(*unsavedError)): // notSaved has told the log
	default:
		log.Warn("no connection to the manager", "err", err)
	}
	return r.retry
}

// nameTaken is after for a name that another node has.
func (r *retries) nameTaken(err error) *backoff.ExponentialBackOff {
	switch limit := r.agent.nameTimeout; {
	case r.taken.IsZero():
		r.taken = time.Now()
		r.agent.log.Warn("another node has the name of this one: trying again, then ending", "for", limit, "err", err)
	case time.Since(r.taken) >= limit:
		return nil
	}
	return r.retry
}

// converse enrols when needed, then watches, reports and renews the certificate
// until one of them needs a new enrolment.
func (a *Agent) converse(ctx context.Context) error {
	if err := a.enrol(ctx); err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return a.watchLoop(ctx) })
	g.Go(func() error { return a.reportLoop(ctx) })
	g.Go(func() error { return a.renewLoop(ctx) })
	return g.Wait()
}

func (a *Agent) enrol(ctx context.Context) error {
	a.mu.Lock()
	old, known, api := a.identity, !a.refused, a.client
	a.mu.Unlock()
	if old.NodeID != "" && known {
		return nil
	}
	csr, key, err := a.newRequest()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := api.Node.Enroll(ctx, connect.NewRequest(&dxpuv1.EnrollRequest{
		JoinToken: a.cfg.JoinToken, Kind: a.cfg.Kind, Name: a.cfg.Name, Version: a.cfg.Version,
		PreviousCredential: old.Credential, CsrPem: csr,
	}))
	switch code := connect.CodeOf(err); {
	case code == connect.CodeUnauthenticated && old.NodeID != "":
		// The manager has another state than the one that knew this node: a mistake that an
		// operator will find. The node's guests keep their GPUs meanwhile.
	case code == connect.CodeUnauthenticated, code == connect.CodePermissionDenied, code == connect.CodeInvalidArgument:
		return &fatalError{fmt.Errorf("enrol %q: %w", a.cfg.Name, err)}
	}
	if err != nil {
		return fmt.Errorf("enrol: %w", err)
	}
	id := identity{
		Version: identityVersion, Kind: kindName(a.cfg.Kind), ClusterID: res.Msg.ClusterId, NodeID: res.Msg.NodeId, NodeNumber: res.Msg.NodeNumber,
		Credential: res.Msg.Credential, HeartbeatMS: res.Msg.HeartbeatInterval.AsDuration().Milliseconds(),
		Certificate: res.Msg.CertificatePem, Key: key, CA: res.Msg.CaPem, LocalPeers: res.Msg.KnowsLocalPeers,
	}
	if err := a.keep(func(old *identity) { *old = id }); err != nil {
		return err
	}
	a.mu.Lock()
	if a.applied != nil && !id.owns(a.applied) {
		a.known.Store(0) // another pool: its revisions are not comparable
	}
	a.mu.Unlock()
	a.log.Info("enrolled", "node", id.NodeID, "number", id.NodeNumber, "cluster", id.ClusterID)
	return nil
}

// forget records that the manager refused the node's identity. The desired state
// stays, because only a new desired state ends bindings. The credential stays,
// too: enrolment proves with it which node this was.
func (a *Agent) forget() error {
	a.mu.Lock()
	a.refused = true
	ca := a.identity.CA
	a.mu.Unlock()
	return a.use(identity{CA: ca}) // a refused certificate would end the handshake
}

func (a *Agent) watchLoop(ctx context.Context) error {
	retry := newBackoff()
	for {
		err := a.watch(ctx, retry)
		if err := a.sessionError(err); err != nil {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		a.log.Debug("watch ended", "err", err)
		// The manager may have restarted. A report now tells it of this node earlier
		// than the next heartbeat.
		a.Changed()
		if !wait(ctx, retry, a.reached) {
			return ctx.Err()
		}
	}
}

// watch receives snapshots until the stream ends or reportLoop finds that
// snapshots are missing.
func (a *Agent) watch(ctx context.Context, retry *backoff.ExponentialBackOff) error {
	ctx, cancel := context.WithCancel(ctx)
	select {
	case <-a.rewatch: // meant for the previous watch
	default:
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		select {
		case <-a.rewatch:
			cancel()
		case <-ctx.Done():
		}
	})
	defer wg.Wait()
	defer cancel()

	id, api := a.current()
	stream, err := api.Node.WatchDesired(ctx, connect.NewRequest(&dxpuv1.WatchDesiredRequest{
		NodeId: id.NodeID, KnownRevision: a.known.Load(), ClusterId: id.ClusterID,
	}))
	if err != nil {
		return err
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		if err := a.take(id, stream.Msg()); err != nil {
			return err
		}
		retry.Reset()
	}
	return stream.Err()
}

// take writes a snapshot to disk and then applies it. In this order, a node that
// crashes in between restarts with the latest snapshot. A snapshot that cannot be written
// does not apply: the manager sends it again, and waits for what it ends.
func (a *Agent) take(id identity, d *dxpuv1.DesiredState) error {
	if !id.owns(d) {
		return fmt.Errorf("agent: the manager sent the desired state of node %q in cluster %q", d.NodeId, d.ClusterId)
	}
	a.mu.Lock()
	stale := id.owns(a.applied) && !revision.Replaces(d.Revision, a.applied.Revision)
	a.mu.Unlock()
	if stale {
		return nil
	}
	kept := proto.CloneOf(d)
	if err := a.saveDesired(kept); err != nil {
		a.notSaved(err)
		return err
	}
	a.mu.Lock()
	a.applied = kept
	a.mu.Unlock()
	a.known.Store(d.Revision)
	a.log.Debug("desired state", "revision", d.Revision, "bindings", len(d.Bindings))
	a.handler.Apply(proto.CloneOf(kept))
	a.Changed()
	return nil
}

func (a *Agent) reportLoop(ctx context.Context) error {
	a.mu.Lock()
	interval := time.Duration(a.identity.HeartbeatMS) * time.Millisecond
	a.mu.Unlock()
	defer a.connected.Store(false)
	tick := time.NewTimer(maxHeartbeat)
	defer tick.Stop()
	retry := newBackoff()
	var seq uint64
	var behind time.Time // since when the manager announces a revision that has not arrived
	reached := true
	for {
		seq++
		want, every, err := a.reportOnce(ctx, seq)
		a.connected.Store(err == nil)
		if err := a.sessionError(err); err != nil {
			return err
		}
		if err != nil {
			a.log.Debug("report failed", "err", err)
			reached = false
			if !wait(ctx, retry, nil) {
				return ctx.Err()
			}
			continue
		}
		retry.Reset()
		if !reached {
			signal(a.reached) // the watch is opened again at once
			if a.redundant() {
				signal(a.rewatch) // and leaves a manager that hangs
			}
		}
		reached = true
		// A watch that does not deliver an announced snapshot is broken, even if its
		// TCP connection is open.
		if !revision.Replaces(want, a.known.Load()) {
			behind = time.Time{}
		} else if behind.IsZero() {
			behind = time.Now()
		} else if time.Since(behind) > snapshotTimeout {
			signal(a.rewatch)
			behind = time.Time{}
		}
		if every > 0 {
			interval = every
		}
		tick.Reset(a.nextReport(interval, behind))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-a.changed:
		}
	}
}

// nextReport returns the pause before the next report if nothing changes: the
// manager's interval, or less while an announced snapshot has not arrived.
func (a *Agent) nextReport(interval time.Duration, behind time.Time) time.Duration {
	switch {
	case a.cfg.Heartbeat > 0:
		interval = a.cfg.Heartbeat
	case interval <= 0:
		interval = defaultHeartbeat
	}
	if !behind.IsZero() {
		interval = min(interval, snapshotTimeout)
	}
	return min(interval, maxHeartbeat)
}

// reportOnce sends a report. It returns the revision of the node's desired state
// and the report interval that the manager asks for, 0 for no change.
func (a *Agent) reportOnce(ctx context.Context, seq uint64) (desired uint64, interval time.Duration, err error) {
	timeout := callTimeout
	if a.redundant() {
		timeout = reportTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	a.mu.Lock()
	id, api := a.identity, a.client
	ours := id.owns(a.applied)
	a.mu.Unlock()
	state := a.handler.Observe()
	if !ours {
		state.AppliedRevision = 0 // of another pool
	}
	state.NodeId, state.InstanceId, state.Sequence, state.Version = id.NodeID, a.instance, seq, a.cfg.Version
	res, err := api.Node.Report(ctx, connect.NewRequest(&dxpuv1.ReportRequest{State: state}))
	if err != nil {
		return 0, 0, err
	}
	if res.Msg.RenewCertificate {
		a.renewSoon(id)
	}
	if res.Msg.KnowsLocalPeers && !id.LocalPeers {
		a.noteLocalPeers()
	}
	return res.Msg.DesiredRevision, res.Msg.HeartbeatInterval.AsDuration(), nil
}

// sessionError returns the errors that end the conversation, nil for others.
func (a *Agent) sessionError(err error) error {
	var fatal *fatalError
	if errors.As(err, &fatal) {
		return err
	}
	if err != nil && (connect.CodeOf(err) == connect.CodeUnauthenticated || certificateRefused(err)) {
		return cmp.Or(a.forget(), errEnrolAgain)
	}
	return nil
}

// fatalError is an error that a retry cannot repair.
type fatalError struct{ err error }

func (e *fatalError) Error() string { return e.err.Error() }
func (e *fatalError) Unwrap() error { return e.err }

// newBackoff returns pauses with jitter, so that nodes do not retry in step.
func newBackoff() *backoff.ExponentialBackOff {
	return &backoff.ExponentialBackOff{InitialInterval: firstBackoff, MaxInterval: lastBackoff, Multiplier: 2, RandomizationFactor: 0.5}
}

// wait waits for the next pause of b, or for early, after which b starts again. It
// returns false when ctx has ended.
func wait(ctx context.Context, b *backoff.ExponentialBackOff, early <-chan struct{}) bool {
	t := time.NewTimer(b.NextBackOff())
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-early:
		b.Reset()
	case <-t.C:
	}
	return true
}

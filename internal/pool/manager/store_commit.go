package manager

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// Transactions change the state in memory one after another, under Manager.mu, and
// then wait for the store without the lock: while one batch is being stored, the next
// one gathers. A change becomes visible only once it is durable: answers, events and
// watches follow it, and a reader waits until the state that it read is durable.
//
// A batch that cannot be stored makes the state in memory worthless: the manager
// discards it with all waiting transactions and reads it from the store again.

const (
	// maxWaiting bounds the transactions that wait for the store. At 1,000 a
	// second these are four seconds, longer than a caller should wait.
	maxWaiting = 4096
	// maxBatch bounds the transactions that are stored together.
	maxBatch = 1024
)

// commit is a transaction on its way to the store.
type commit struct {
	records        map[string]any
	events         []*dxpuv1.Event
	bindings       []*bindingRecord // of each event; nil: none
	desiredChanged map[string]bool
	undo           []func()      // if it is not stored
	done           chan struct{} // closed once err is set
	err            error
}

// queueLocked ends a successful transaction and returns the commit for which
// its caller must wait; nil: none.
func (m *Manager) queueLocked(t *tx) *commit {
	if t.changes() == 0 {
		t.done()
		return m.last
	}
	if t.jump != 0 {
		m.jumped -= t.jump
		t.undo = append(t.undo, func() { m.jumped += t.jump })
	}
	c := &commit{
		records: t.records(), events: t.events, desiredChanged: t.desiredChanged, undo: t.undo, done: make(chan struct{}),
	}
	for _, e := range t.events {
		c.bindings = append(c.bindings, t.bindings.get(e.BindingId))
	}
	t.done()
	m.waiting = append(m.waiting, c)
	m.last = c
	if !m.storing {
		m.storing = true
		m.stores.Go(m.storeAll)
	}
	return c
}

// storeAll stores batches until none waits.
func (m *Manager) storeAll() {
	for {
		m.mu.Lock()
		batch := m.nextBatchLocked()
		if len(batch) == 0 {
			m.storing = false
			m.mu.Unlock()
			return
		}
		m.mu.Unlock()
		began := time.Now()
		err := m.storeBatch(batch)
		m.metrics.stored(len(batch), time.Since(began), err)
		if err != nil {
			m.abandon(batch, err)
			continue
		}
		m.publish(batch)
	}
}

// nextBatchLocked returns the transactions that fit into one transaction of the store.
func (m *Manager) nextBatchLocked() []*commit {
	most := maxWaiting
	if b, ok := m.store.(Batcher); ok {
		most = b.MaxRecords()
	}
	n, records := 0, 0
	for n < len(m.waiting) && n < maxBatch {
		records += len(m.waiting[n].records)
		if n > 0 && records > most {
			break
		}
		n++
	}
	batch := m.waiting[:n:n]
	m.waiting = m.waiting[n:]
	return batch
}

// storeBatch stores transactions together. If several of them change a record,
// the last one counts.
func (m *Manager) storeBatch(batch []*commit) error {
	records := batch[0].records
	if len(batch) > 1 {
		records = map[string]any{}
		for _, c := range batch {
			maps.Copy(records, c.records)
		}
	}
	put, remove, err := encode(records)
	if err != nil {
		return err
	}
	return m.store.Commit(context.Background(), put, remove)
}

// publish makes a durable batch visible.
func (m *Manager) publish(batch []*commit) {
	m.mu.Lock()
	m.stateErr = nil
	for _, c := range batch {
		for node := range c.desiredChanged {
			l := m.liveLocked(node)
			if n, ok := c.records[nodePrefix+node].(*nodeRecord); ok {
				l.published = n.DesiredRevision
			}
			l.notifyDesired()
		}
	}
	m.mu.Unlock()
	for _, c := range batch {
		m.events.add(c.events)
		close(c.done)
		for i, e := range c.events {
			m.metrics.event(e)
			traceEvent(e, c.bindings[i])
			m.log.Info(e.Message, "event", strings.TrimPrefix(e.Type.String(), "EVENT_TYPE_"), "revision", e.Revision,
				"lease", e.LeaseId, "binding", e.BindingId, "gpu", e.GpuId)
		}
	}
}

// abandon discards the state that could not be stored, and all transactions
// that build on it.
func (m *Manager) abandon(batch []*commit, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.log.Error("the state could not be stored", "err", err, "changes", len(batch)+len(m.waiting))
	var known NothingStored
	nothing := errors.As(err, &known) && known.NothingStored()
	lost := slices.Concat(batch, m.waiting)
	for _, c := range slices.Backward(lost) {
		undoAll(c.undo)
	}
	for i, c := range lost {
		if nothing || i >= len(batch) { // the store has not seen those that wait
			c.err = unavailable("the change could not be stored, and has not happened: %w", err)
		} else {
			c.err = unknownFate(connect.CodeUnavailable, "the change could not be stored, and may not have happened: %w", err)
		}
		close(c.done)
	}
	m.waiting = nil
	m.dropStateLocked(err)
}

// dropStateLocked discards the state. All calls are refused until it is read again.
func (m *Manager) dropStateLocked(why error) {
	if m.state != nil && !m.state.ended.complete {
		close(m.state.ended.changed)
	}
	m.state, m.stateErr = nil, why
	for _, l := range m.live {
		l.digest = nil // process the next report in full
	}
}

// wait waits for a transaction and returns its error.
func (m *Manager) wait(ctx context.Context, c *commit) error {
	if c == nil {
		return nil
	}
	select {
	case <-c.done:
		return c.err
	case <-ctx.Done():
		code := connect.CodeCanceled
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			code = connect.CodeDeadlineExceeded
		}
		return unknownFate(code, "the call ended before its change was stored: the change may still happen")
	}
}

// update makes a transaction: fn changes records, the rules follow, and the
// result is stored. The pool changes in no other way.
func (m *Manager) update(ctx context.Context, fn func(*tx) error) error {
	return m.withEnded(ctx, func() error {
		m.mu.Lock()
		c, err := m.updateLocked(ctx, fn)
		m.mu.Unlock()
		return m.answer(ctx, c, err)
	})
}

// answer waits until everything is durable on which the answer builds, be it
// err or success, and checks that this manager is still the leader.
func (m *Manager) answer(ctx context.Context, c *commit, err error) error {
	if werr := m.wait(ctx, c); werr != nil {
		if err != nil && connect.CodeOf(werr) == connect.CodeUnavailable {
			return unavailable("the state on which the answer builds could not be stored: try again (%s)", message(werr))
		}
		return werr
	}
	if m.deposed() {
		return errDeposed()
	}
	return err
}

// updateLocked makes a transaction and returns the commit for which the caller
// must wait before it answers, also with an error.
func (m *Manager) updateLocked(ctx context.Context, fn func(*tx) error) (*commit, error) {
	if err := m.readyLocked(ctx); err != nil {
		return nil, err
	}
	if len(m.waiting) >= maxWaiting {
		return nil, errorf(connect.CodeResourceExhausted, "%d changes are waiting to be stored; try again in a second", len(m.waiting))
	}
	t := m.beginLocked(m.cfg.Now())
	t.markAlarmed()
	t.announceJump(m.jumped) // which is not the work of the caller
	t.traceContext, t.call = traceparent(ctx), callFrom(ctx)
	err := fn(t)
	if err == nil {
		err = t.checkNodes()
	}
	if err == nil {
		t.audit()
		err = t.settle()
	}
	if err == nil {
		err = t.storeEvents()
	}
	if err == nil {
		err = t.checkRecords()
	}
	if err != nil {
		t.rollback()
		return m.last, err
	}
	return m.queueLocked(t), nil
}

// view runs fn on the present state, which it must not change. The state that
// fn saw is durable when view returns.
func (m *Manager) view(fn func(*tx) error) error { return m.viewIn(context.Background(), fn) }

func (m *Manager) viewIn(ctx context.Context, fn func(*tx) error) error {
	return m.withEnded(ctx, func() error { return m.viewOnce(ctx, fn) })
}

func (m *Manager) viewOnce(ctx context.Context, fn func(*tx) error) error {
	m.mu.Lock()
	err := m.readyLocked(ctx)
	if err != nil {
		m.mu.Unlock()
		return err
	}
	err = fn(m.readLocked(m.cfg.Now()))
	c := m.last
	m.mu.Unlock()
	if werr := m.wait(ctx, c); connect.CodeOf(werr) == connect.CodeUnavailable {
		return unavailable("the state that was read could not be stored: try again (%s)", message(werr))
	} else if werr != nil {
		return withEffect(connect.NewError(connect.CodeOf(werr), errors.New("the call ended before its answer was certain")), dxpuv1.CallEffect_CALL_EFFECT_NONE)
	}
	return m.answer(ctx, nil, err)
}

// peek is view without the wait, for deciding whether to admit a call. It sees revoked
// rights at once, and granted rights as soon as any caller can know of them.
func (m *Manager) peek(fn func(*tx) error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.readyLocked(context.Background()); err != nil {
		return err
	}
	return fn(m.readLocked(m.cfg.Now()))
}

// readyLocked returns an error unless there is a state to work on.
func (m *Manager) readyLocked(ctx context.Context) error {
	m.excuseNodesLocked()
	switch {
	case m.state != nil:
		return nil
	case m.cluster != nil && !m.leads:
		return m.notLeading()
	case m.running: // Run reads it again
		return unavailable("the state cannot be stored: %w", m.stateErr)
	default:
		return m.loadLocked(ctx)
	}
}

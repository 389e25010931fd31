package manager

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/client"
)

// storeRetryInterval is the pause before another attempt after the store has failed.
const storeRetryInterval = 500 * time.Millisecond

// Cluster is a Store that several managers share. One of them is the leader. It
// alone reads and writes; a write of a former leader fails.
type Cluster interface {
	Store
	// Campaign waits until this manager is the leader. lost is closed when it
	// no longer is, at the latest when another manager may be.
	Campaign(ctx context.Context) (lost <-chan struct{}, err error)
	// Valid reports whether this manager is certainly the leader. It is false as soon
	// as another manager might have been elected without this one knowing.
	Valid() bool
	// Resign lets another manager become the leader at once.
	Resign(ctx context.Context) error
	// Managers returns the managers of the pool, as far as they are known.
	Managers() []*dxpuv1.ManagerInfo
	// Absent returns the names of the managers that keep a copy of the state, but do not
	// run, as far as they are known.
	Absent() []string
}

// alike reports whether all managers of the pool have the version of this one. A manager
// of the previous version cannot load the tables histories and samples, and must be able
// to take over during an upgrade: until its end this one writes neither.
func (m *Manager) alike() bool {
	if m.cluster == nil {
		return true
	}
	all := m.cluster.Managers()
	return len(all) > 0 && !slices.ContainsFunc(all, func(i *dxpuv1.ManagerInfo) bool { return i.Version != m.cfg.Version })
}

// notLeading returns the answer of a manager that is not the leader.
func (m *Manager) notLeading() error {
	if m.cluster == nil {
		return unavailable("the manager is stopping")
	}
	url := m.leaderURL()
	if url == "" {
		return unavailable("no manager is the leader at the moment; try again in a second")
	}
	return unavailable("this manager is not the leader; %s is", url)
}

// errDeposed is the answer to a call that was under way when the leadership ended.
func errDeposed() error {
	return unknownFate(connect.CodeUnavailable,
		"%w; the call may or may not have been carried out: look it up, or repeat it with the same request_id", errNotLeading)
}

var errNotLeading = errors.New("this manager is no longer the leader")

// forLog returns an error of a change that the manager itself made, for its log: without
// the code of the API and the advice, which are for callers.
func forLog(err error) error {
	var call *connect.Error
	switch {
	case errors.Is(err, errNotLeading):
		return errNotLeading
	case errors.As(err, &call):
		return call.Unwrap()
	}
	return err
}

// leaderURL returns the URL of the leader, "" if it is not known.
func (m *Manager) leaderURL() string {
	for _, i := range m.cluster.Managers() {
		if i.Leader {
			return i.Url
		}
	}
	return ""
}

// Run works as the leader, after an election if there are several managers, and
// keeps the clock: deadlines, lost nodes, the queue. It returns nil when ctx
// ends; all watches have ended then and everything is stored. Call it once.
func (m *Manager) Run(ctx context.Context) error {
	m.mu.Lock()
	m.running = true
	m.mu.Unlock()
	defer close(m.stop)
	said := "" // the last reason for not leading, which is logged once
	for ctx.Err() == nil {
		var lost <-chan struct{}
		if m.cluster != nil {
			var err error
			if lost, err = m.cluster.Campaign(ctx); err != nil {
				var final interface{ Permanent() bool }
				if errors.As(err, &final) && final.Permanent() {
					return err
				}
				if ctx.Err() == nil && err.Error() != said {
					said = err.Error()
					m.log.Warn("could not become the leader", "err", err)
				}
				pause(ctx, nil, storeRetryInterval)
				continue
			}
			said = ""
			m.beginTerm()
		}
		err := m.lead(ctx, lost)
		m.endTerm()
		if m.cluster != nil {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
			if err := m.cluster.Resign(stop); err != nil {
				m.log.Warn("could not hand over the leadership; it will expire", "err", err)
			}
			cancel()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// beginTerm makes the manager the leader. It drops the reports of nodes from an
// earlier term.
func (m *Manager) beginTerm() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.leads = true
	m.term = make(chan struct{})
	m.live = map[string]*liveNode{}
	m.stateErr = errLoading
	m.jumped = 0
	m.log.Info("this manager is now the leader")
}

var errLoading = errors.New("it is being loaded")

// endTerm refuses all calls from now on and waits until the store has finished.
func (m *Manager) endTerm() {
	m.mu.Lock()
	m.dropStateLocked(errors.New("the manager is stopping"))
	m.leads = false
	close(m.term)
	m.mu.Unlock()
	m.stores.Wait()
	if m.cluster != nil {
		m.log.Info("this manager is no longer the leader")
	}
}

// lead keeps the clock until ctx or the leadership ends.
func (m *Manager) lead(ctx context.Context, lost <-chan struct{}) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	stop, running := m.watchOwnStalls()
	defer running.Wait()
	defer stop()
	if m.cfg.Echo != nil {
		running.Go(func() { m.measureHearing(ctx) })
		defer end()
	}
	tick := time.NewTicker(tickInterval)
	defer tick.Stop()
	for told, begun := m.cluster == nil, m.cfg.OnLead == nil; ctx.Err() == nil && !isClosed(lost); {
		loaded := m.load(ctx)
		if loaded && !told {
			told = m.announceLeader(ctx) == nil // Tick logs the error of the store
		}
		switch {
		case !loaded:
			pause(ctx, lost, storeRetryInterval)
		case !begun:
			err := m.cfg.OnLead(ctx)
			if begun = err == nil; err != nil && ctx.Err() == nil && connect.CodeOf(err) != connect.CodeUnavailable {
				return err
			}
		default:
			if err := m.Tick(ctx); err != nil && ctx.Err() == nil {
				m.log.Warn("could not store the changes of a clock tick", "err", forLog(err))
			}
		}
		// A select among several channels that are ready chooses at random. The loop
		// condition makes the end of the term win against the clock.
		select {
		case <-ctx.Done():
		case <-lost:
		case <-tick.C:
		}
	}
	return nil
}

// managerAt names a manager. One that shares its state with no others has no URL.
func managerAt(url string) string {
	if url == "" {
		return "the manager"
	}
	return "the manager at " + url
}

// announceLeader makes the event of a new leader. It is also the first write of
// a term: a manager that was deposed before then learns of it here.
func (m *Manager) announceLeader(ctx context.Context) error {
	who := managerAt(m.leaderURL())
	return m.update(ctx, func(t *tx) error {
		note := ""
		if t.joinTokenChanged() {
			note = "; its join token is not that of the leader before: all managers need the same one"
		}
		note += m.clockNote(t)
		t.event(&dxpuv1.Event{Type: dxpuv1.EventType_EVENT_TYPE_LEADER_CHANGED}, "%s is now the leader%s", who, note)
		return nil
	})
}

// clockNote returns how the clock of a new leader differs from that of the leader before, "" if it
// does not, as far as the records of the pool tell.
func (m *Manager) clockNote(t *tx) (note string) {
	if by := m.events.newest().Sub(t.now); by > clockTolerance {
		note += fmt.Sprintf("; its clock is %v behind the pool's latest event: leases, tokens and plans end that much later; set the clocks of the managers by NTP", by.Round(time.Second))
	}
	if idle := t.idleFor(m.events.newest()); idle > clockLeap {
		note += fmt.Sprintf("; by its clock the pool's newest event or sample is %v old: unless no manager led in that time, none could store its changes, or managers of several versions ran, its clock is ahead, and leases, tokens and plans end that much earlier; set the clocks of the managers by NTP", idle.Round(time.Second))
	}
	return note
}

// clockTolerance is how far the clocks of two managers may differ without a word: leases,
// tokens and plans end by the clock of the leader.
const clockTolerance = 5 * time.Second

// clockLeap is how old the newest trace of a leader may be, by the clock of the next one, without
// a word.
const clockLeap = 10 * time.Minute

const (
	joinTokenID = "join-token" // the record of the check value of the join token
	// joinTokenCheck is its length in bytes: too short to help a caller with a backup to
	// guess the token.
	joinTokenCheck = 2
)

// joinTokenChanged reports whether this manager has another join token than the leader
// before, and records its own.
func (t *tx) joinTokenChanged() bool {
	sum := sha256.Sum256([]byte("join token of " + t.meta.ClusterID + "\x00" + t.cfg.joinTokens()[0]))
	check, old := sum[:joinTokenCheck], t.secrets.get(joinTokenID)
	if old != nil && bytes.Equal(old.Check, check) {
		return false
	}
	t.secrets.put(joinTokenID, &secretRecord{Check: check})
	return old != nil
}

// load reads the state if there is none and reports whether there is one now.
func (m *Manager) load(ctx context.Context) bool {
	m.mu.Lock()
	have := m.state != nil
	m.mu.Unlock()
	if have {
		return true
	}
	records, err := m.store.Load(ctx, endedPrefix) // may take a while, without the lock: calls are refused meanwhile
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		err = m.installLocked(records)
	}
	if err == nil {
		s := m.state
		m.stores.Go(func() { m.loadEnded(ctx, s) })
	}
	if err != nil && (m.stateErr == nil || err.Error() != m.stateErr.Error()) && ctx.Err() == nil {
		m.log.Error("cannot load the state", "err", err)
		m.stateErr = err
	}
	return err == nil
}

// pause waits for d, and no longer than ctx or until end is closed.
func pause(ctx context.Context, end <-chan struct{}, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-end:
	case <-time.After(d):
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// deposed reports whether another manager may lead by now.
func (m *Manager) deposed() bool { return m.cluster != nil && !m.cluster.Valid() }

// asLeader returns the error of a call as this manager may give it. A refusal is an answer
// too: a manager that may have been deposed does not know the tokens and the objects of the
// next leader, so it does not say that there is none.
func (m *Manager) asLeader(err error) error {
	if err == nil || !m.deposed() {
		return err
	}
	switch connect.CodeOf(err) {
	case connect.CodeUnavailable, connect.CodeCanceled, connect.CodeDeadlineExceeded, connect.CodeUnknown, connect.CodeInternal:
		return err
	}
	return unavailable("%w, so it does not refuse the call either; nothing was changed: try again", errNotLeading)
}

// leaderOnly refuses calls before anything is done for them while another
// manager is the leader, and names the leader in a header, so that package
// client can repeat the call there. An answer is the leader's answer: a manager
// that may have been deposed during the call, because it was frozen for
// example, does not give it. It implements connect.Interceptor.
type leaderOnly struct{ m *Manager }

// check returns the refusal and the value of the header, nil if this manager is
// the leader.
func (l leaderOnly) check() (header string, err error) {
	if l.m.cluster == nil {
		return "", nil
	}
	l.m.mu.Lock()
	leads := l.m.leads
	l.m.mu.Unlock()
	if leads {
		return "", nil
	}
	return cmp.Or(l.m.leaderURL(), client.NoLeader), l.m.notLeading()
}

func (l leaderOnly) WrapUnary(next connect.UnaryFunc) connect.UnaryFunc {
	return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
		if header, err := l.check(); err != nil {
			var refusal *connect.Error
			if errors.As(err, &refusal) {
				refusal.Meta().Set(client.LeaderHeader, header)
			}
			return nil, err
		}
		res, err := next(ctx, req)
		if err == nil && l.m.deposed() {
			return nil, errDeposed()
		}
		return res, l.m.asLeader(err)
	}
}

func (l leaderOnly) WrapStreamingHandler(next connect.StreamingHandlerFunc) connect.StreamingHandlerFunc {
	return func(ctx context.Context, conn connect.StreamingHandlerConn) error {
		if header, err := l.check(); err != nil {
			conn.ResponseHeader().Set(client.LeaderHeader, header)
			return err
		}
		return l.m.asLeader(next(ctx, conn))
	}
}

func (leaderOnly) WrapStreamingClient(next connect.StreamingClientFunc) connect.StreamingClientFunc {
	return next
}

// termEnded returns a channel that is closed when the present term ends, and the
// watches with it.
func (m *Manager) termEnded() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.term
}

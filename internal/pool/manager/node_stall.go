package manager

import (
	"context"
	"sync"
	"time"
)

// A manager that does not run cannot hear the nodes: it was suspended, its machine
// was busy, or a caller held the lock for long. The reports that arrived meanwhile
// still wait in the sockets when it runs again. So the time of a stall does not count
// as silence of the nodes.

// stallLimit is the shortest stall that is excused: it is less than a node's margin
// between two reports and the time after which it counts as lost.
const stallLimit = 4 * tickInterval

// watchOwnStalls looks at the clock at every tick until stop is called.
func (m *Manager) watchOwnStalls() (stop func(), running *sync.WaitGroup) {
	ctx, cancel := context.WithCancel(context.Background())
	running = &sync.WaitGroup{}
	running.Go(func() {
		tick := time.NewTicker(tickInterval)
		defer tick.Stop()
		for ctx.Err() == nil {
			m.mu.Lock()
			if m.awake.IsZero() {
				m.awake = m.cfg.Now()
				m.wallWas = m.wall(m.awake)
			}
			m.excuseNodesLocked()
			m.mu.Unlock()
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
		m.mu.Lock()
		m.awake, m.wallWas = time.Time{}, time.Time{}
		m.mu.Unlock()
	})
	return cancel, running
}

// excuseNodesLocked finds out whether this manager has stalled since the last call,
// and takes the time off the silence of the nodes. Everything that decides whether a
// node reports calls it first.
func (m *Manager) excuseNodesLocked() {
	if m.awake.IsZero() {
		return
	}
	now := m.cfg.Now()
	m.noticeJumpLocked(now)
	stall := now.Sub(m.awake)
	m.awake = now
	if stall < stallLimit {
		return
	}
	if m.state != nil {
		m.state.holders.excuse(stall)
	}
	for _, l := range m.live {
		if l.silentSince = l.silentSince.Add(stall); l.silentSince.After(now) {
			l.silentSince = now
		}
	}
	m.log.Warn("this manager did not run for some time: it does not count as silence of the nodes", "time", stall.Round(time.Millisecond))
}

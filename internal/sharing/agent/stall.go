//go:build linux

package agent

import "time"

// stallAfter is how long others wait for the end of a launch before the agent looks whether the
// process is stopped (Ctrl-Z, a debugger, a container that is paused).
const stallAfter = time.Second

// stallLocked tells the broker of stopped processes for whose launches others may wait.
func (a *Agent) stallLocked() {
	late := a.broker.Late(a.now(), stallAfter)
	for _, id := range late {
		if c := a.conns[id]; c != nil && c.pid > 0 && isStopped(c.pid) {
			a.config.Log.Info("a stopped program keeps no others waiting", "share", c.share, "pid", c.pid)
			a.broker.Stall(a.now(), id)
		}
	}
	if len(late) > 0 {
		a.flushLocked()
	}
}

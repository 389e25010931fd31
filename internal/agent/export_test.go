package agent

import "time"

// Identity returns the node ID and number that enrolment returned, "" and 0 before it.
func (a *Agent) Identity() (id string, number uint32) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.identity.NodeID, a.identity.NodeNumber
}

// SetNameTimeout changes how long the node asks for a name that another node has.
func (a *Agent) SetNameTimeout(d time.Duration) { a.nameTimeout = d }

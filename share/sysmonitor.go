package share

import (
	"fmt"
	"time"
)

// Health is a state of SysMonitor.
type Health uint8

// States of SysMonitor:
//
//	Init ─ok for T1─> Healthy ─over a limit─> Overlimit ─over for T2─> Unhealthy
//	                     ^──── ok for T1 ────────'                        │
//	                     ^──── ok for T3 ─────────────────────────────────'
//	any ─device fault─> Disabled ─reset done─> Init
const (
	HealthInit      Health = iota // no offline work yet
	Healthy                       // offline work runs
	HealthOverlimit               // offline launches are held
	HealthUnhealthy               // offline clients are evicted, new ones are held
	HealthDisabled                // the GPU needs a reset
	healths
)

// String names the state.
func (h Health) String() string {
	if h >= healths {
		return fmt.Sprintf("Health(%d)", uint8(h))
	}
	return [...]string{"init", "healthy", "overlimit", "unhealthy", "disabled"}[h]
}

// Limits and times of SysMonitor. All are ours: MuxFlow's are not published.
const (
	monitorT1          = time.Second      // fine until healthy
	monitorT2          = 2 * time.Second  // over a limit until unhealthy
	monitorT3          = 10 * time.Second // fine until healthy again
	monitorTemperature = 90               // degrees Celsius
	monitorClock       = Whole * 6 / 10   // below: the GPU throttles
	monitorMemory      = 50               // a part of the device that is to be free: 2 %
)

// SysMonitor is the protection of a whole GPU in MuxFlow (Zhao et al., arXiv 2303.13803):
// a state machine over its sensors that admits, holds or evicts offline work. The
// names and thresholds of the transitions are ours. The zero value is in HealthInit.
type SysMonitor struct {
	state Health
	since time.Duration // of the condition that leads to the next state
	fine  bool          // the last reading
	begun bool
}

// State returns the state.
func (m *SysMonitor) State() Health { return m.state }

// Observe takes a reading of the GPU's sensors.
func (m *SysMonitor) Observe(now time.Duration, s Sample, d Device) {
	fine := s.Temperature <= monitorTemperature && s.Clock >= monitorClock && s.Memory <= d.Memory-d.Memory/monitorMemory
	if !m.begun || fine != m.fine {
		m.begun, m.fine, m.since = true, fine, now
	}
	lasted := now - m.since
	switch {
	case m.state == HealthInit && fine && lasted >= monitorT1:
		m.state = Healthy
	case m.state == Healthy && !fine:
		m.state = HealthOverlimit
	case m.state == HealthOverlimit && fine && lasted >= monitorT1:
		m.state = Healthy
	case m.state == HealthOverlimit && !fine && lasted >= monitorT2:
		m.state = HealthUnhealthy
	case m.state == HealthUnhealthy && fine && lasted >= monitorT3:
		m.state = Healthy
	}
}

// Fail takes a fault of the device, or its end.
func (m *SysMonitor) Fail(f Fault) {
	switch {
	case f == FaultDevice || f == FaultContext:
		m.state = HealthDisabled
	case f == FaultCleared && m.state == HealthDisabled:
		*m = SysMonitor{}
	}
}

package agent

import (
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// BindingStatus is what one slot of a node reports of its binding; the zero
// value is nothing.
type BindingStatus struct {
	ID     string
	Epoch  uint64
	State  dxpuv1.BindingState
	Detail string
	Steps  []*dxpuv1.Step
}

// Observed makes the report of it, nil for nothing.
func (b *BindingStatus) Observed() *dxpuv1.ObservedBinding {
	if b.ID == "" {
		return nil
	}
	return &dxpuv1.ObservedBinding{BindingId: b.ID, Epoch: b.Epoch, State: b.State, Detail: b.Detail, Steps: b.Steps}
}

// Status keeps a BindingStatus and its timeline. The slot's controller writes
// it, reports read it.
type Status struct {
	mu    sync.Mutex
	s     BindingStatus
	trace string // W3C trace context of the binding; empty: not traced
}

// Get returns a copy.
func (s *Status) Get() BindingStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.s
	out.Steps = slices.Clone(s.s.Steps)
	return out
}

// Begin starts to report a binding.
func (s *Status) Begin(want *dxpuv1.DesiredBinding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s = BindingStatus{ID: want.GetBindingId(), Epoch: want.GetEpoch()}
	s.trace = want.GetTraceparent()
}

// Advance enters a state.
func (s *Status) Advance(state dxpuv1.BindingState, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s.State, s.s.Detail = state, detail
	s.stepLocked(StateName(state))
}

// Note says more about the present state, without being a step. It reports
// whether that is news.
func (s *Status) Note(detail string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	news := s.s.Detail != detail
	s.s.Detail = detail
	return news
}

// Step notes an inner step of making or unmaking the binding.
func (s *Status) Step(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stepLocked(name)
}

// maxSteps bounds a timeline: a VM that starts again and again gets its device
// each time.
const maxSteps = 64

func (s *Status) stepLocked(name string) {
	if len(s.s.Steps) >= maxSteps {
		return
	}
	now := time.Now()
	step := &dxpuv1.Step{Name: name, Time: timestamppb.New(now)}
	if n := len(s.s.Steps); n > 0 {
		step.Duration = durationpb.New(now.Sub(s.s.Steps[n-1].Time.AsTime()))
	}
	traceStep(s.trace, &s.s, step)
	s.s.Steps = append(s.s.Steps, step)
}

// End forgets the binding: nothing of it is left.
func (s *Status) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s = BindingStatus{}
}

// Wanted returns what a desired state has for a slot, nil for nothing.
func Wanted(d *dxpuv1.DesiredState, slot int) *dxpuv1.DesiredBinding {
	for _, w := range d.GetBindings() {
		if int(w.Slot) == slot {
			return w
		}
	}
	return nil
}

// Same reports whether what is wanted is the binding that is there: anything
// else in the slot is taken down first.
func Same(want *dxpuv1.DesiredBinding, have BindingStatus) bool {
	return want != nil && want.BindingId == have.ID && want.Epoch == have.Epoch
}

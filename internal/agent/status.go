package agent

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// BindingStatus is what a slot reports about its binding; the zero value is that of
// a slot without one.
type BindingStatus struct {
	ID     string
	Epoch  uint64
	State  dxpuv1.BindingState
	Detail string
	Steps  []*dxpuv1.Step
}

// Observed returns the status as the API reports it, nil for a slot without a binding.
func (b *BindingStatus) Observed() *dxpuv1.ObservedBinding {
	if b.ID == "" {
		return nil
	}
	return &dxpuv1.ObservedBinding{BindingId: b.ID, Epoch: b.Epoch, State: b.State, Detail: b.Detail, Steps: b.Steps}
}

// Status holds the BindingStatus of a slot and its timeline. The slot's controller
// writes it, reports read it.
type Status struct {
	mu    sync.Mutex // guards the fields below
	s     BindingStatus
	trace string // W3C trace context of the binding; empty: not traced
}

// Get returns a copy of the status.
func (s *Status) Get() BindingStatus {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := s.s
	out.Steps = slices.Clone(s.s.Steps)
	return out
}

// Begin starts the report and the timeline of a binding.
func (s *Status) Begin(want *dxpuv1.DesiredBinding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s = BindingStatus{ID: want.GetBindingId(), Epoch: want.GetEpoch()}
	s.trace = want.GetTraceparent()
}

// Advance records a new state of the binding, as a step of the timeline.
func (s *Status) Advance(state dxpuv1.BindingState, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s.State, s.s.Detail = state, detail
	s.stepLocked(StateName(state))
}

// Note changes the detail of the present state without adding a step. It reports
// whether the detail is new.
func (s *Status) Note(detail string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.s.Detail != detail
	s.s.Detail = detail
	return changed
}

// Step adds an inner step of an attach or detach to the timeline.
func (s *Status) Step(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stepLocked(name)
}

// maxSteps bounds a timeline: each restart of a VM adds steps.
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

// End records that nothing of the binding is left.
func (s *Status) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s = BindingStatus{}
}

// Wanted returns the binding of a slot in a desired state, nil for none.
func Wanted(d *dxpuv1.DesiredState, slot int) *dxpuv1.DesiredBinding {
	for _, w := range d.GetBindings() {
		if int(w.Slot) == slot {
			return w
		}
	}
	return nil
}

// Same reports whether the slot holds the desired binding. Any other binding in the
// slot has to end first.
func Same(want *dxpuv1.DesiredBinding, have BindingStatus) bool {
	return want != nil && want.BindingId == have.ID && want.Epoch == have.Epoch
}

// Desired holds the desired state of a proxy and wakes the controllers of its
// slots. It is the part of Handler that both proxies share, for embedding. The zero
// value has no bindings.
type Desired struct {
	mu      sync.Mutex // guards the fields below
	state   *dxpuv1.DesiredState
	wake    []func()
	changed func()
}

// OnWake registers a function that Apply calls, in Apply's goroutine, for a new
// snapshot. Call OnWake before the proxy runs.
func (d *Desired) OnWake(f func()) { d.wake = append(d.wake, f) }

// OnChange registers the function that Changed calls. Call OnChange before the
// proxy runs.
func (d *Desired) OnChange(f func()) { d.changed = f }

// Changed reports that Observe now returns another state.
func (d *Desired) Changed() {
	if d.changed != nil {
		d.changed()
	}
}

// Apply implements Handler.
func (d *Desired) Apply(state *dxpuv1.DesiredState) {
	d.mu.Lock()
	d.state = state
	d.mu.Unlock()
	for _, f := range d.wake {
		f()
	}
}

// Wanted returns the desired binding of a slot, nil for none, and the desired
// state.
func (d *Desired) Wanted(slot int) (*dxpuv1.DesiredBinding, *dxpuv1.DesiredState) {
	d.mu.Lock()
	state := d.state
	d.mu.Unlock()
	return Wanted(state, slot), state
}

// traceStep records the time since the previous step as a span, in the trace of the
// call that asked for the lease. Without a trace it costs nothing. Only attach and
// detach have steps, never the data path.
func traceStep(parent string, b *BindingStatus, step *dxpuv1.Step) {
	if parent == "" {
		return
	}
	ctx := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{"traceparent": parent})
	end := step.Time.AsTime()
	_, span := otel.Tracer("github.com/dxpu-project/dxpu/internal/agent").Start(ctx, step.Name,
		trace.WithTimestamp(end.Add(-step.Duration.AsDuration())),
		trace.WithAttributes(attribute.String("dxpu.binding", b.ID), attribute.String("dxpu.detail", b.Detail)))
	span.End(trace.WithTimestamp(end))
}

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
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/link"
)

// Report is the answer of a proxy's admin listener to GET /slots: the present state
// of the slots, and counters since the start of the proxy or of the link.
type Report struct {
	Role  string       `json:"role"` // "host" or "box"
	Time  time.Time    `json:"time"`
	Slots []SlotReport `json:"slots"`
}

// SlotReport is one slot.
type SlotReport struct {
	Slot     int            `json:"slot"`
	Device   string         `json:"device,omitempty"` // model, if the proxy knows it
	Counters SlotCounters   `json:"counters"`
	Tags     *TagsReport    `json:"tags,omitempty"`    // nil: not known
	Binding  *BindingReport `json:"binding,omitempty"` // nil: free
}

// SlotCounters count since the proxy started. A counter that only one role has is
// absent from the other role's report.
type SlotCounters struct {
	ToDevice        uint64 `json:"tlps_to_device"`
	FromDevice      uint64 `json:"tlps_from_device"`
	ToDeviceBytes   uint64 `json:"bytes_to_device"` // payload
	FromDeviceBytes uint64 `json:"bytes_from_device"`
	Peer            uint64 `json:"peer_tlps,omitempty"` // from device to device
	DMARefused      uint64 `json:"dma_refused,omitempty"`
	Unsupported     uint64 `json:"unsupported,omitempty"`
	Translated      uint64 `json:"translated_requests,omitempty"` // with a translated address or a prefix
	Poisoned        uint64 `json:"poisoned_tlps,omitempty"`
	Digests         uint64 `json:"ecrc_errors,omitempty"`
	Timeouts        uint64 `json:"completion_timeouts,omitempty"`
	Interrupts      uint64 `json:"interrupts,omitempty"`
	Errors          uint64 `json:"error_messages,omitempty"`
	Dropped         uint64 `json:"dropped_tlps,omitempty"`
}

// TagsReport counts the outstanding requests of the requester on this side: the
// host on a host, the device in a box.
type TagsReport struct {
	InFlight int `json:"in_flight"`
	Total    int `json:"total"`
}

// BindingReport is the binding of a slot.
type BindingReport struct {
	ID     string      `json:"id"`
	Epoch  uint64      `json:"epoch"`
	State  string      `json:"state"`
	Detail string      `json:"detail,omitempty"`
	Peer   PeerReport  `json:"peer"`
	Link   *LinkReport `json:"link,omitempty"` // nil: none is open
}

// PeerReport is the other end of a binding.
type PeerReport struct {
	Node      uint32   `json:"node"`
	Slot      uint32   `json:"slot"`
	Addresses []string `json:"addresses,omitempty"` // by path
}

// LinkReport describes the link of a binding. It counts since the link was opened.
type LinkReport struct {
	Number          uint32            `json:"number"` // with which datagrams name the binding
	State           string            `json:"state"`
	TLPsOut         uint64            `json:"tlps_out"`
	TLPsIn          uint64            `json:"tlps_in"`
	BytesOut        uint64            `json:"bytes_out"` // payload of the TLPs
	BytesIn         uint64            `json:"bytes_in"`
	DatagramsOut    uint64            `json:"datagrams_out"`
	DatagramsIn     uint64            `json:"datagrams_in"`
	WireBytesOut    uint64            `json:"wire_bytes_out"`
	WireBytesIn     uint64            `json:"wire_bytes_in"`
	Retransmissions uint64            `json:"retransmissions"`
	Duplicates      uint64            `json:"duplicates"`
	Lost            uint64            `json:"lost_datagrams"`
	Marked          uint64            `json:"marked_datagrams"` // that arrived with the mark of a congested network
	MarkCuts        uint64            `json:"mark_cuts"`        // of the window, for the peer's marks
	KeyChanges      uint64            `json:"key_changes"`
	Drops           map[string]uint64 `json:"drops,omitempty"` // by reason, those that are not zero
	SendBuffered    int               `json:"send_buffered"`
	ReceiveHeld     int               `json:"receive_held"`
	// Sent is the time that requests of this side waited for their completion,
	// Served the time that this side took to answer requests of the other. Sent
	// minus the round trip of the network is the time of the other side.
	Sent   RoundTripReport `json:"sent"`
	Served RoundTripReport `json:"served"`
	Paths  []PathReport    `json:"paths"`
}

// RoundTripReport is a sampled round trip, in nanoseconds; all fields are 0 without
// samples.
type RoundTripReport struct {
	Smoothed time.Duration `json:"smoothed_ns"`
	Min      time.Duration `json:"min_ns"`
	Last     time.Duration `json:"last_ns"`
	Samples  uint64        `json:"samples"`
}

// PathReport is the present state of a path of a link.
type PathReport struct {
	Usable   bool          `json:"usable"`
	SRTT     time.Duration `json:"srtt_ns"`
	MinRTT   time.Duration `json:"min_rtt_ns"`
	RTTVar   time.Duration `json:"rtt_var_ns"`
	MTU      int           `json:"mtu"`
	Cwnd     int           `json:"cwnd"`
	InFlight int           `json:"in_flight"`
	Failures uint64        `json:"failures,omitempty"`
}

// ReportBinding describes the binding of a slot from its status and the desired
// state. It returns nil for a free slot. The caller adds the link.
func ReportBinding(slot int, have BindingStatus, d *dxpuv1.DesiredState) *BindingReport {
	if have.ID == "" {
		return nil
	}
	out := &BindingReport{ID: have.ID, Epoch: have.Epoch, State: StateName(have.State), Detail: have.Detail}
	want := Wanted(d, slot)
	if !Same(want, have) {
		return out
	}
	peer := want.GetPeer()
	out.Peer = PeerReport{Node: peer.GetNodeNumber(), Slot: peer.GetSlot(), Addresses: make([]string, len(peer.GetAddresses()))}
	for _, a := range peer.GetAddresses() {
		if int(a.Path) < len(out.Peer.Addresses) {
			out.Peer.Addresses[a.Path] = a.Address
		}
	}
	return out
}

// ReportLink describes the link of a binding.
func ReportLink(e engine.Entry, b *engine.Binding) *LinkReport {
	s := b.Stats(e)
	sent, served := b.RoundTrips(e)
	out := &LinkReport{
		Number: b.ID(), State: b.State(e).String(),
		TLPsOut: s.TLPsSent, TLPsIn: s.TLPsReceived, BytesOut: s.BytesSent, BytesIn: s.BytesReceived,
		DatagramsOut: s.DatagramsSent, DatagramsIn: s.DatagramsReceived,
		WireBytesOut: s.WireBytesSent, WireBytesIn: s.WireBytesReceived,
		Retransmissions: s.Retransmissions, Duplicates: s.Duplicates, Lost: s.LostDatagrams, KeyChanges: s.KeyChanges,
		Marked: s.MarkedDatagrams, MarkCuts: s.MarkCuts,
		SendBuffered: s.SendBuffered, ReceiveHeld: s.ReceiveHeld,
		Sent: RoundTripReport(sent), Served: RoundTripReport(served),
	}
	for reason, n := range drops(&s.Drops) {
		if n > 0 {
			if out.Drops == nil {
				out.Drops = map[string]uint64{}
			}
			out.Drops[reason] = n
		}
	}
	for _, p := range s.Paths {
		out.Paths = append(out.Paths, PathReport{
			Usable: p.Usable, SRTT: p.SRTT, MinRTT: p.MinRTT, RTTVar: p.RTTVar,
			MTU: p.MTU, Cwnd: p.Cwnd, InFlight: p.InFlight, Failures: p.Failures,
		})
	}
	return out
}

// drops returns the dropped datagrams of a link by reason.
func drops(d *link.Drops) map[string]uint64 {
	return map[string]uint64{
		"flood": d.Flood, "downgrade": d.Downgrade, "not_mine": d.NotMine, "stale_epoch": d.StaleEpoch, "path": d.Path, "no_session": d.NoSession,
		"seal": d.Seal, "replay": d.Replay, "malformed": d.Malformed, "corrupt": d.Corrupt,
		"route": d.Route, "credit": d.Credit, "protocol": d.Protocol, "not_up": d.NotUp,
	}
}

// BindingStatus is what a slot reports about its binding; the zero value is that of
// a slot without one.
type BindingStatus struct {
	ID     string
	Epoch  uint64
	State  dxpuv1.BindingState
	Reason dxpuv1.Reason // of FAILED
	Detail string
	// Waiting is set while the binding waits for something outside the pool, such as
	// a VM that was not started yet; Detail names it.
	Waiting bool
	Steps   []*dxpuv1.Step
}

// Observed returns the status as the API reports it, nil for a slot without a binding.
func (b *BindingStatus) Observed() *dxpuv1.ObservedBinding {
	if b.ID == "" {
		return nil
	}
	return &dxpuv1.ObservedBinding{BindingId: b.ID, Epoch: b.Epoch, State: b.State, Reason: b.Reason, Detail: b.Detail, Waiting: b.Waiting, Steps: b.Steps}
}

// Status holds the BindingStatus of a slot and its timeline. The slot's controller
// writes it, reports read it.
type Status struct {
	// Clock gives the steps of the timeline their times: engine.Driver.WallTime.
	Clock func() time.Time

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

// Advance records a new state of the binding, as a step of the timeline. reason is 0
// for states that need none.
func (s *Status) Advance(state dxpuv1.BindingState, reason dxpuv1.Reason, detail string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.s.State, s.s.Reason, s.s.Detail, s.s.Waiting = state, reason, detail, false
	s.stepLocked(StateName(state))
}

// Note changes the detail of the present state without adding a step. It reports
// whether it changed anything.
func (s *Status) Note(detail string, waiting bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.s.Detail != detail || s.s.Waiting != waiting
	s.s.Detail, s.s.Waiting = detail, waiting
	return changed
}

// Step adds an inner step of an attach or detach to the timeline.
func (s *Status) Step(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stepLocked(name)
}

// StepOnce adds an inner step that attempts repeat, unless the timeline has it.
func (s *Status) StepOnce(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.s.Steps, func(o *dxpuv1.Step) bool { return o.Name == name }) {
		s.stepLocked(name)
	}
}

// maxSteps bounds a timeline: each restart of a VM adds steps.
const maxSteps = 64

func (s *Status) stepLocked(name string) {
	if len(s.s.Steps) >= maxSteps {
		return
	}
	now := s.Clock()
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

// Package share decides how several clients share one GPU. Each policy is a pure
// machine with the same interface: it receives events (clients come and go, launches
// wait at the gate, kernels complete, memory is requested, sensors report) and gives
// decisions (permits, shares, windows, holds, preemptions, evictions).
//
// A policy knows nothing of the enforcement behind it. The enforcement, which may be a
// simulator, the dispatcher of a software GPU or an agent beside a driver, keeps the
// queue of launches of each client and presents only the first one, with a Launch
// event. The launch starts after the policy's Permit; then the enforcement presents
// the next one. So a policy holds one waiting launch and at most MaxInFlight running
// ones of each client, whatever a client does.
//
// Events may come from hostile clients. Events that do not fit the state (the
// completion of a launch that does not run, a second waiting launch, an unknown
// client) change nothing and are counted. Shares and samples are integers in
// parts per million, so a sample can be wrong but not be NaN; values out of range
// are clamped. All state is bounded, and decisions depend on the events alone.
package share

import (
	"fmt"
	"time"
)

// Policy is a policy, as a machine (see package machine). Now never goes backwards; a
// policy treats an earlier one as the latest.
type Policy interface {
	// Receive hands the policy one event.
	Receive(now time.Duration, e Event)
	// Transmit appends the decisions that are due and returns the result. It is
	// called after events and at the time of Wake.
	Transmit(now time.Duration, out []Decision) []Decision
	// Wake returns when Transmit is due without further events, or machine.Never.
	Wake() time.Duration
	// Violations returns how many events did not fit the state of their client.
	Violations() uint64
}

// Bounds of a policy's state.
const (
	MaxClients  = 64 // clients of one GPU; MPS takes 48, or 60 since Hopper
	MaxInFlight = 64 // permitted launches of one client that have not completed
)

// PPM is a fraction in parts per million.
type PPM int64

// Whole is the fraction 1.
const Whole PPM = 1_000_000

// Of returns the fraction p of d, for 0 ≤ p ≤ Whole. It rounds down and does not
// overflow.
func (p PPM) Of(d time.Duration) time.Duration {
	return d/time.Duration(Whole)*time.Duration(p) + d%time.Duration(Whole)*time.Duration(p)/time.Duration(Whole)
}

// Percent returns n percent.
func Percent(n int) PPM { return PPM(n) * Whole / 100 }

// Ratio returns a/b, limited to 0..Whole; it is zero for b ≤ 0.
func Ratio(a, b time.Duration) PPM {
	switch {
	case a <= 0 || b <= 0:
		return 0
	case a >= b:
		return Whole
	}
	for a > maxFactor { // keep the product in range; the loss is below one part per million
		a, b = a>>1, b>>1
	}
	return PPM(a) * Whole / PPM(b)
}

// maxFactor is the largest value whose product with Whole is an int64.
const maxFactor = time.Duration(1<<63-1) / time.Duration(Whole)

// ClientID names a client of one GPU. The enforcement chooses it.
type ClientID uint32

// LaunchID names a launch of one client. The enforcement chooses it, and does not use
// it again while the launch waits or runs.
type LaunchID uint64

// Class is the class of a client's work.
type Class uint8

// Classes of work.
const (
	Online  Class = iota // latency-critical: production, real-time, inference
	Offline              // best-effort: opportunistic, batch
	classes
)

// String names the class.
func (c Class) String() string {
	if c >= classes {
		return fmt.Sprintf("Class(%d)", uint8(c))
	}
	return [...]string{"online", "offline"}[c]
}

// ClientSpec describes a client.
type ClientSpec struct {
	Class   Class
	Request PPM   // share of the GPU's time or multiprocessors that it is to get
	Limit   PPM   // highest share; 0 means Whole
	Memory  int64 // highest memory in bytes; 0 means all
	Weight  int32 // relative turn length in the round of the time slices; 0 means 1
}

// clamp puts the fields of a client's description in range.
func (s ClientSpec) clamp(d Device) ClientSpec {
	if s.Class >= classes {
		s.Class = Offline
	}
	if s.Limit <= 0 || s.Limit > Whole {
		s.Limit = Whole
	}
	s.Request = min(max(s.Request, 0), s.Limit)
	if s.Memory <= 0 || s.Memory > d.Memory {
		s.Memory = d.Memory
	}
	s.Weight = min(max(s.Weight, 1), 100)
	return s
}

// Device describes the GPU, as far as policies need it.
type Device struct {
	SMs          int32 // multiprocessors
	ThreadsPerSM int32
	Memory       int64 // bytes
}

// A100 is the device of the examples: 108 multiprocessors and 40 GiB.
var A100 = Device{SMs: 108, ThreadsPerSM: 2048, Memory: 40 << 30}

// V100 has 80 multiprocessors and 16 GiB.
var V100 = Device{SMs: 80, ThreadsPerSM: 2048, Memory: 16 << 30}

// Validate checks the description.
func (d Device) Validate() error {
	if d.SMs < 1 || d.SMs > 4096 || d.ThreadsPerSM < 1 || d.ThreadsPerSM > 1<<16 || d.Memory < 1 || d.Memory > 1<<50 {
		return fmt.Errorf("share: device with %d multiprocessors of %d threads and %d bytes: want 1 to 4096, 1 to 65536, 1 byte to 1 PiB", d.SMs, d.ThreadsPerSM, d.Memory)
	}
	return nil
}

// Execution says how the clients' kernels are to reach the GPU.
type Execution uint8

// Forms of execution.
const (
	// Contexts: each client has its own context. Kernels of two clients never run at
	// the same time; the GPU switches between contexts.
	Contexts Execution = iota
	// OneContext: all clients share a context (MPS, or streams of one process), and
	// their kernels run side by side.
	OneContext
	// Partitions: each client has multiprocessors and memory bandwidth of its own.
	Partitions
	executions
)

// String names the form.
func (x Execution) String() string {
	if x >= executions {
		return fmt.Sprintf("Execution(%d)", uint8(x))
	}
	return [...]string{"contexts", "one context", "partitions"}[x]
}

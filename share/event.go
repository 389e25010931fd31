package share

import (
	"fmt"
	"time"
)

// EventKind is the kind of an event.
type EventKind uint8

// Kinds of events, and the fields that they use beside Client.
const (
	Join      EventKind = iota // Spec
	Leave                      // the client ended; its launches and memory are gone
	Launch                     // Launch, Kernel, Ran: the client's next launch waits at the gate, or started by a credit at most so long ago
	Completed                  // Launch, Ran: a permitted launch ended
	Killed                     // Launch: a Preempt ended a permitted launch. Withdraws the waiting launch: the enforcement presents the killed one first
	Idle                       // the client's host waits, and all its launches completed: the end of a burst
	Allocate                   // Bytes: the client asks for memory
	Free                       // Bytes: the client freed memory
	Sampled                    // Sample: a reading of the sensors; Client 0 is the whole GPU
	Failed                     // Fault
	Waited                     // Launch, Ran: a permitted launch waited this long, since the last such event, because others ran
	Resized                    // Spec: the new limits of the client; it keeps its class, its usage, its launches and its memory
	eventKinds
)

// String names the kind.
func (k EventKind) String() string {
	if k >= eventKinds {
		return fmt.Sprintf("EventKind(%d)", uint8(k))
	}
	return [...]string{"join", "leave", "launch", "completed", "killed", "idle", "allocate", "free", "sampled", "failed", "waited", "resized"}[k]
}

// Bound says which resource limits a kernel, by its profile.
type Bound uint8

// Bounds of kernels.
const (
	BoundUnknown Bound = iota
	BoundCompute
	BoundMemory
	bounds
)

// String names the resource.
func (b Bound) String() string {
	if b >= bounds {
		return fmt.Sprintf("Bound(%d)", uint8(b))
	}
	return [...]string{"unknown", "compute", "memory"}[b]
}

// Kernel describes a launch as the gate sees it. The grid is known for each launch; the
// rest is from a profile, and zero without one.
type Kernel struct {
	Blocks    int64         // thread blocks
	SMs       int32         // multiprocessors that it fills: ⌈blocks / blocks per multiprocessor⌉
	Bound     Bound         // by profile
	First     bool          // it begins a job: a request, or an iteration of training
	Update    bool          // it belongs to the update phase at the end of an iteration
	Expected  time.Duration // by profile, alone on the GPU
	Remaining time.Duration // expected time of the job from this kernel on
}

const maxBlocks = 1 << 40 // CUDA's grids reach 2^31 × 2^16 × 2^16; the counters need a bound

// maxExpected bounds durations from profiles and from reports.
const maxExpected = time.Hour

func (k Kernel) clamp(d Device) Kernel {
	k.Blocks = min(max(k.Blocks, 1), maxBlocks)
	k.SMs = min(max(k.SMs, 0), d.SMs)
	k.Expected = min(max(k.Expected, 0), maxExpected)
	k.Remaining = min(max(k.Remaining, k.Expected), maxExpected)
	if k.Bound >= bounds {
		k.Bound = BoundUnknown
	}
	return k
}

// Sample is a reading of the sensors, over the time since the last one or as the sensor
// averages.
type Sample struct {
	Utilisation PPM   // time with a kernel running
	SMActivity  PPM   // multiprocessors in use, averaged
	Memory      int64 // bytes in use
	Clock       PPM   // of the highest clock; only of the whole GPU
	Temperature int32 // degrees Celsius; only of the whole GPU
}

func (s Sample) clamp(d Device) Sample {
	s.Utilisation = min(max(s.Utilisation, 0), Whole)
	s.SMActivity = min(max(s.SMActivity, 0), Whole)
	s.Memory = min(max(s.Memory, 0), d.Memory)
	s.Clock = min(max(s.Clock, 0), Whole)
	s.Temperature = min(max(s.Temperature, -100), 1000)
	return s
}

// Fault is the kind of an error.
type Fault uint8

// Faults.
const (
	FaultNone      Fault = iota
	FaultClient          // ends the client alone
	FaultTerminate       // the client got a signal to end (SIGINT, SIGTERM) and asks to leave
	FaultContext         // ends all clients of a shared context
	FaultDevice          // needs a reset of the GPU
	FaultCleared         // the reset is done
	faults
)

// String names the fault.
func (f Fault) String() string {
	if f >= faults {
		return fmt.Sprintf("Fault(%d)", uint8(f))
	}
	return [...]string{"none", "client", "terminate", "context", "device", "cleared"}[f]
}

// Event is one input of a policy. The comment of its kind says which fields count.
type Event struct {
	Kind   EventKind
	Fault  Fault
	Client ClientID
	Launch LaunchID
	Ran    time.Duration
	Bytes  int64
	Spec   ClientSpec
	Kernel Kernel
	Sample Sample
}

// DecisionKind is the kind of a decision.
type DecisionKind uint8

// Kinds of decisions, and the fields that they use beside Client.
const (
	Permit    DecisionKind = iota // Launch, High, SMs: the waiting launch may start
	SetShare                      // Share: of the multiprocessors
	SetWindow                     // Window: launches that may be in flight
	SetRate                       // Rate: thread blocks per second; negative: no limit
	Hold                          // no launch starts; those in flight continue
	Resume                        // ends a Hold
	Preempt                       // ends the launches in flight now and reports each as Killed
	Evict                         // Reason: ends the client, after its launches in flight
	Grant                         // Bytes: the memory that the client asked for
	Refuse                        // Bytes: the memory that the client asked for is refused
	SetMemory                     // Bytes: how much of the client's memory stays on the GPU
	Reset                         // the GPU needs a reset; Client is 0
	decisionKinds
)

// String names the kind.
func (k DecisionKind) String() string {
	if k >= decisionKinds {
		return fmt.Sprintf("DecisionKind(%d)", uint8(k))
	}
	return [...]string{"permit", "share", "window", "rate", "hold", "resume", "preempt", "evict", "grant", "refuse", "memory", "reset"}[k]
}

// Reason says why a client is evicted.
type Reason uint8

// Reasons.
const (
	NoReason     Reason = iota
	ReasonFull          // the GPU has MaxClients clients, or no room for this one
	ReasonStuck         // a launch has not completed within StuckAfter
	ReasonHealth        // the GPU is over its limits
	ReasonFault         // the client or the GPU failed
	ReasonLeaves        // the client asked to leave, and nothing of it runs
	reasons
)

// String names the reason.
func (r Reason) String() string {
	if r >= reasons {
		return fmt.Sprintf("Reason(%d)", uint8(r))
	}
	return [...]string{"none", "full", "stuck", "health", "fault", "leaves"}[r]
}

// Decision is one output of a policy. The comment of its kind says which fields count.
type Decision struct {
	Kind   DecisionKind
	Reason Reason
	High   bool // the launch goes to a queue of high priority
	Client ClientID
	SMs    int32 // most multiprocessors for the launch; 0: as the client's share says
	Window int32
	Launch LaunchID
	Share  PPM
	Rate   int64
	Bytes  int64
}

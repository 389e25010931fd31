// Package mps decides what happens to the Multi-Process Service (MPS) of one NVIDIA GPU:
// its control daemon and server are started, configured, restarted after a fatal fault
// and stopped, and the clients get their limits. It is a machine: it compares the
// wanted state with the observed one, so any command may fail, be lost or be repeated.
//
//	            ┌───────── absent ◀── quit ──┐
//	            ▼                            │
//	Stopped ─▶ Starting ─▶ Initializing ─▶ Active ─▶ Draining
//	            ▲              ▲             │ ▲
//	            │              └─ shut down ─┤ │ all clients left
//	            └── killed ── Silent ◀───────▼ │
//	                                        Fault
//
// Each GPU has a daemon of its own, because a fatal fault makes a server refuse new
// clients on all of its GPUs until its old clients have left. Facts about MPS are from
// NVIDIA's guide "Multi-Process Service" and the manual page nvidia-cuda-mps-control(1).
package mps

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/share"
)

// State is a state of the service of a GPU.
type State uint8

// States.
const (
	Stopped      State = iota // no daemon is wanted, and none runs
	Starting                  // the daemon, or its server, starts
	Initializing              // the server creates its context; it refuses clients
	Active                    // the server takes clients
	Fault                     // a fatal fault: the server refuses clients until the old ones have left
	Held                      // faults came too often: the service rests
	Silent                    // the daemon does not answer
	Draining                  // the service is to stop: its clients leave
	states
)

// String names the state.
func (s State) String() string {
	if s >= states {
		return fmt.Sprintf("State(%d)", uint8(s))
	}
	return [...]string{"stopped", "starting", "initializing", "active", "fault", "held", "silent", "draining"}[s]
}

// Bounds and times. All are ours, except MaxClients.
const (
	// MaxClients bounds the clients of a GPU: an MPS server takes 48 on GPUs of
	// compute capability 7.0 to 9.0, by nvidia-cuda-mps-control(1).
	MaxClients = 48

	poll          = 2 * time.Second        // between two looks at a service at rest
	quickPoll     = 250 * time.Millisecond // while something changes
	startLimit    = 30 * time.Second       // for the daemon or the server to start
	initLimit     = 2 * time.Minute        // without the persistence daemon a GPU takes tens of seconds
	silentLimit   = 30 * time.Second       // until a daemon that does not answer is killed
	endGrace      = 10 * time.Second       // from the request to end to terminate_client, and from there to the kill
	recoverLimit  = 10 * time.Second       // for a server without clients to leave its fault
	joinLimit     = 30 * time.Second       // for an admitted client to connect
	unaskedLimit  = 30 * time.Second       // for a client whose limits cannot be told to the daemon
	quitLimit     = 20 * time.Second       // for the daemon to quit
	retry         = 5 * time.Second        // between two attempts at the same command
	faultWindow   = 10 * time.Minute
	maxFaults     = 3 // within faultWindow, until the service rests
	stableAfter   = time.Minute
	restBase      = time.Minute
	restMost      = time.Hour
	minimumMemory = 1 << 20 // MPS takes limits in MiB
)

// Limits are what a client of MPS may use, from its start to its end.
type Limits struct {
	Share  share.PPM // of the multiprocessors: CUDA_MPS_ACTIVE_THREAD_PERCENTAGE
	Memory int64     // bytes of device memory, rounded down to MiB; 0: all of it
}

func (l Limits) check() error {
	if l.Share < share.Whole/100 || l.Share > share.Whole {
		return fmt.Errorf("a share of %d ppm: want 1 to 100 %%", l.Share)
	}
	if l.Memory != 0 && l.Memory < minimumMemory {
		return fmt.Errorf("a limit of %d bytes of memory: want at least 1 MiB", l.Memory)
	}
	return nil
}

// Want is the wanted state of the service.
type Want struct {
	Run    bool
	UID    uint32 // user of the server and of its clients
	Others Limits // of clients that were not admitted
	Memory int64  // bytes of the GPU: the limit of clients without one; 0: no client has one
}

// Reach says how the control daemon answers.
type Reach uint8

// Answers of the daemon.
const (
	Absent  Reach = iota // there is none
	Mute                 // it does not answer in time, or with garbage
	Answers              // it answers
	Unasked              // it is there, and the program that asks it cannot be run
)

// Status is the status of a server, from get_server_status.
type Status uint8

// Statuses of a server.
const (
	StatusUnknown Status = iota
	StatusInitializing
	StatusActive
	StatusFault
)

// Seen is what the driver saw of the service.
type Seen struct {
	Daemon  Reach
	Servers []Server
}

// Server is a server process of the daemon.
type Server struct {
	PID     int
	Status  Status
	Clients []int // process IDs
}

// Verb is a kind of action.
type Verb uint8

// Verbs. The driver carries out the actions of a step in order, reports each with
// Done, and skips the rest when one fails.
const (
	StartDaemon      Verb = iota + 1
	SetDefaultShare       // Limits.Share, for servers to come
	SetDefaultMemory      // Limits.Memory, for servers to come
	StartServer           // UID
	SetShare              // Server, Limits.Share: for clients to come
	SetMemory             // Server, Limits.Memory: for clients to come
	TerminateClient       // Server, Client: cancels the client's work without a fault of the others
	ShutdownServer        // Server, at once
	Quit                  // the daemon and its servers; Busy: clients are left
	KillDaemon            // by a signal
)

// Action is one thing that the driver does.
type Action struct {
	Verb   Verb
	Server int // process ID
	Client int // process ID
	UID    uint32
	Busy   bool
	Limits Limits
}

// ClientID names a client for its owner, which chooses it.
type ClientID uint64

// Client is a process that asks to become a client of MPS.
type Client struct {
	ID      ClientID
	PID     int  // as the control daemon sees it
	Offline bool // may be ended and started again for a new share
	Running bool // it was admitted by an earlier Machine of this service
	Limits  Limits
}

// NoticeKind is a kind of notice.
type NoticeKind uint8

// Kinds of notices.
const (
	Go      NoticeKind = iota + 1 // the limits are set: the client may create its context now
	Joined                        // the client is connected
	Refused                       // Reason: the client is forgotten
	End                           // Reason, Force: the client must leave; it stays known until Leave
	Changed                       // State
)

// Notice tells the owner of the clients what happened.
type Notice struct {
	Kind   NoticeKind
	Client ClientID
	PID    int
	Force  bool // the grace is over: kill it
	Reason Reason
	State  State
}

// Reason says why a client is refused or ends.
type Reason uint8

// Reasons.
const (
	NoReason      Reason = iota
	ReasonFault          // a fatal fault of the server
	ReasonShare          // its share changed
	ReasonStop           // the service stops
	ReasonEarly          // it connected before its limits were set
	ReasonLate           // it did not connect in time
	ReasonServer         // the server is gone
	ReasonUnasked        // nothing could be told to the daemon for long
	reasons
)

// String explains the reason.
func (r Reason) String() string {
	if r >= reasons {
		return fmt.Sprintf("Reason(%d)", uint8(r))
	}
	return [...]string{
		"", "a client made the GPU fail, and MPS ends all clients then", "its share changed", "the service stops",
		"it connected before its limits were set", "it did not connect in time", "the MPS server has ended",
		"no MPS daemon could be started, or told its limits: the agent's log says why",
	}[r]
}

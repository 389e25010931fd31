package agent

import "time"

// ControlName is the name of the control socket in the folder of an agent.
const ControlName = "control.sock"

// Size is the size of a share on one GPU.
type Size struct {
	Memory  int64  `json:"memory_bytes,omitempty"`
	Compute *int64 `json:"compute_ppm,omitempty"` // that it is to get
	Limit   *int64 `json:"limit_ppm,omitempty"`   // highest; 0: none
}

// Part describes a share that a user asks for. Memory and compute hold for each GPU, unless
// Sizes has them for each.
type Part struct {
	Memory  int64    `json:"memory_bytes,omitempty"`
	Compute *int64   `json:"compute_ppm,omitempty"` // that it is to get
	Limit   *int64   `json:"limit_ppm,omitempty"`   // highest; 0: none
	Offline bool     `json:"offline,omitempty"`
	GPUs    []string `json:"gpus,omitempty"`      // names; none: those with the most room. Of a resize: all
	Count   int      `json:"gpu_count,omitempty"` // number of GPUs without names; 0 means 1
	Sizes   []Size   `json:"sizes,omitempty"`     // one for each GPU
	ID      string   `json:"id,omitempty"`        // none: the agent chooses it
	Owned   bool     `json:"owned,omitempty"`     // the share ends with the process that asks, and those in the share
	Owner   int      `json:"owner_pid,omitempty"` // with Owned: another process than the one that asks
}

// Share is a share as the agent reports it.
type Share struct {
	ID       string    `json:"id"`
	Class    string    `json:"class"`
	GPUs     []string  `json:"gpus"`
	UUIDs    []string  `json:"uuids,omitempty"`
	Memory   int64     `json:"memory_bytes"` // on each GPU; of the first one, if Parts differ
	Used     int64     `json:"used_bytes"`   // on all GPUs
	Compute  int64     `json:"compute_ppm"`  // as Memory
	Limit    int64     `json:"limit_ppm"`    // as Memory; 0: none
	Parts    []GPUPart `json:"parts"`        // in the order of GPUs
	Launches uint64    `json:"launches"`
	Counts
	GPUTime Seconds `json:"gpu_seconds"`
	State   string  `json:"state"` // ready, held, ending; missing: none of its GPUs is there
	Evicted string  `json:"evicted,omitempty"`
	UID     int     `json:"uid"`
	Owner   int     `json:"owner_pid,omitempty"`
	Socket  string  `json:"socket"`
	MPS     bool    `json:"mps,omitempty"`   // its program joins MPS before it starts
	Stale   bool    `json:"stale,omitempty"` // its program keeps the former compute until its next start
	// Policy is that of the agent. Unlimited: nothing holds the share to its compute.
	Policy    string    `json:"policy,omitempty"`
	Unlimited bool      `json:"compute_not_kept,omitempty"`
	Processes []Process `json:"processes"`
	Lease     string    `json:"lease,omitempty"` // of the pool, that has the share
}

// Counts are what a share has had since the agent started.
type Counts struct {
	Permits   uint64 `json:"permits,omitempty"`         // launches that waited for an answer of their own
	Refusals  uint64 `json:"memory_refusals,omitempty"` // requests for memory that it did not get
	Evictions uint64 `json:"evictions,omitempty"`       // of its programs, by the policy or for an error
	Failures  uint64 `json:"failures,omitempty"`        // errors of the GPU that its programs reported
}

// GPUPart is what a share has of one GPU.
type GPUPart struct {
	GPU     string `json:"gpu"`
	Memory  int64  `json:"memory_bytes"`
	Used    int64  `json:"used_bytes"`
	Compute int64  `json:"compute_ppm"`
	Limit   int64  `json:"limit_ppm"`         // 0: none
	Leaving bool   `json:"leaving,omitempty"` // the share has it no more when the programs that use it have ended
	Users   int    `json:"users"`             // processes that have used it
	Binding string `json:"binding,omitempty"` // of the lease
	// Missing says why the GPU is missing, Short why the share has less memory than it was given.
	Missing string `json:"missing,omitempty"`
	Short   string `json:"short,omitempty"`
}

// Entered answers a program that wants to run in a lease.
type Entered struct {
	Ready bool  `json:"ready"` // false: the lease has no share here yet
	Share Share `json:"share"`
}

// Joined answers a program that joins MPS.
type Joined struct {
	Ready bool     `json:"ready"` // false: ask again
	Env   []string `json:"env"`   // of the program
}

// Process is a process of a share.
type Process struct {
	PID       int     `json:"pid"`
	Connected bool    `json:"connected"`
	Memory    int64   `json:"memory_bytes"`
	Launches  uint64  `json:"launches"`
	GPUTime   Seconds `json:"gpu_seconds"`
	Waiting   int     `json:"waiting"` // launches
	Wrong     uint64  `json:"wrong,omitempty"`
	Failures  uint64  `json:"failures,omitempty"`
}

// GPU is a GPU as the agent reports it.
type GPU struct {
	Name    string `json:"name"`
	Model   string `json:"model,omitempty"`
	UUID    string `json:"uuid,omitempty"`
	Memory  int64  `json:"memory_bytes"`
	SMs     int32  `json:"multiprocessors"`
	Free    int64  `json:"free_bytes"`
	Compute int64  `json:"free_compute_ppm"`
	// State is "in service", "reset due", "out of service" or "missing", the reason the error.
	State  string    `json:"state"`
	Reason string    `json:"reason,omitempty"`
	Until  time.Time `json:"until,omitzero"` // out of service
}

// Seconds is a duration that JSON has in seconds.
type Seconds float64

func seconds(d time.Duration) Seconds { return Seconds(d.Seconds()) }

// Duration returns the duration.
func (s Seconds) Duration() time.Duration { return time.Duration(float64(s) * float64(time.Second)) }

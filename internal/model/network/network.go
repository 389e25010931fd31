// Package network is a model of a pool's network in virtual time, packet by packet: GPUs
// that read host memory or write to it, the proxies that convert their TLPs, links, and
// the ports of switches with their buffers. It has no TLPs, ciphers or timers of the
// real engines (package sim has them), so that it can follow hundreds of GPUs.
//
// Each packet passes the stages of its route in turn:
//
//	read request    GPU, box proxy, box link, switch, host proxy, host memory
//	its completion  host memory, host proxy, host link, switch, box proxy, GPU
//	posted write    as a request, without a completion
//	peer write      as a posted write up to the host proxy, and from it as a completion
//	                does to the box of the other GPU; with RootWrite the host has a
//	                proxy for each box, and the write crosses its root complex
//	                between the two
//
// A proxy has a number of contexts, each of which converts one packet at a time, for the
// time Conversion: the paper says that a proxy can process a limited number of packets
// at the same time (section 4.3.2). Further packets wait.
//
// The tags of a GPU bound its reads (Equation 1 of the paper). A window for each GPU and
// direction bounds reads and writes: it grows by a packet in a round trip, and shrinks by
// losses and by marks of full buffers (ECN) as that of DCTCP does (RFC 8257).
// Acknowledgements take time but no bandwidth. A read request asks for what one packet of
// completions carries.
package network

import (
	"fmt"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/perf"
)

// Spec describes a network and what its GPUs do.
type Spec struct {
	perf.Requester      // tags and MRRS of each GPU
	MPS            int  // payload of a posted write in bytes
	TLPs           int  // TLPs in one packet at most; the paper's proxy: 1
	Header         int  // bytes of a packet beside the payloads, each TLP's header included
	Peer           bool // each GPU writes to the next GPU, of another box where there is one
	// RootWrite is the rate in bytes per second at which a host's root complex writes to one
	// box, with Peer; 0: the host has one proxy, which forwards.
	RootWrite float64
	OneWay    bool // with Peer: every second GPU writes, the others receive only

	// Each host has consecutive GPUs; boxes have them in turn. Hosts and boxes are dealt to
	// racks in turn. A packet from one rack to another passes the uplinks of both.
	GPUs, Hosts, Boxes, Racks int

	// Parts of the round trip of a memory read without load.
	Memory     time.Duration // in the host, without proxies (the paper's "original" latency)
	Wire       time.Duration // in the network, both ways
	Conversion time.Duration // in a proxy for each packet; a round trip has four

	InProcess int // contexts of each proxy; 0: no bound

	// Paths are the parallel networks between hosts and boxes. Each has an equal part of the
	// rates of links and uplinks, and ports of its own. GPUs use them in turn.
	Paths int
	// FailAfter is the time in the measurement after which the first path loses all packets;
	// 0: never. A sender leaves it Detect after the first loss that it notices.
	FailAfter, Detect time.Duration

	// Rates in bytes per second; 0: no bound. That of a GPU's link counts payloads only.
	GPULink, HostLink, BoxLink, Uplink float64
	Buffer                             int     // of each port of a switch in bytes; 0: no bound
	Mark                               int     // bytes in a port's buffer from which on it marks packets; 0: never
	Loss                               float64 // of packets, in each passage of the network

	// In and Out are the bytes that each GPU copies from and to the host in each step, both
	// at the same time; then it computes for a time between half and one and a half of
	// Compute. Without Compute, copies follow each other at once.
	In, Out int
	// SharedIn and SharedOut are the bytes that the GPUs of a host copy in each step between
	// them, beside In and Out: each GPU an equal part.
	SharedIn, SharedOut int
	Compute             time.Duration

	Time time.Duration // of the measurement, after a warm-up of as much
	Seed uint64
}

// Bounds of Spec.
const (
	maxGPUs      = 4096
	maxInProcess = 1 << 16
	maxCopy      = 1 << 30
	maxPaths     = 16
)

// RTT returns the round trip of a memory read without load and without the time on links.
func (s *Spec) RTT() time.Duration { return s.Memory + s.Wire + 4*s.Conversion }

// Validate reports the first field out of bounds.
func (s *Spec) Validate() error {
	if err := s.Requester.Validate(); err != nil {
		return err
	}
	switch {
	case s.GPUs < 1 || s.GPUs > maxGPUs:
		return fmt.Errorf("network: %d GPUs: want 1 to %d", s.GPUs, maxGPUs)
	case s.Hosts < 1 || s.Hosts > s.GPUs || s.Boxes < 1 || s.Boxes > s.GPUs:
		return fmt.Errorf("network: %d hosts, %d boxes: want 1 to the number of GPUs, %d", s.Hosts, s.Boxes, s.GPUs)
	case s.Racks < 1 || s.Racks > max(s.Hosts, s.Boxes):
		return fmt.Errorf("network: %d racks: want 1 to the number of hosts or boxes", s.Racks)
	case s.MPS < 1 || s.MPS > 4096 || s.TLPs < 1 || s.TLPs > 1024 || s.Header < 0 || s.Header > 4096:
		return fmt.Errorf("network: Max_Payload_Size %d, %d TLPs, headers of %d bytes: want up to 4096, 1024 and 4096", s.MPS, s.TLPs, s.Header)
	case min(s.Memory, s.Wire, s.Conversion) < 0 || max(s.Memory, s.Wire, s.Conversion) > time.Second || s.RTT() == 0:
		return fmt.Errorf("network: round trip of %v in memory, %v on the wire, 4 x %v in proxies: want more than 0 in all, and each at most 1s", s.Memory, s.Wire, s.Conversion)
	case s.InProcess < 0 || s.InProcess > maxInProcess || s.Buffer < 0 || s.Mark < 0:
		return fmt.Errorf("network: %d packets in process, buffers of %d bytes, marks from %d: want 0 or more, and up to %d packets", s.InProcess, s.Buffer, s.Mark, maxInProcess)
	case !(s.GPULink >= 0 && s.HostLink >= 0 && s.BoxLink >= 0 && s.Uplink >= 0):
		return fmt.Errorf("network: links of %v, %v, %v, %v: want rates in bytes per second", s.GPULink, s.HostLink, s.BoxLink, s.Uplink)
	case !(s.Loss >= 0 && s.Loss < 0.5):
		return fmt.Errorf("network: loss %v: want 0 to less than 0.5", s.Loss)
	case s.In < 0 || s.Out < 0 || s.In+s.Out+s.SharedIn+s.SharedOut == 0 || s.In > maxCopy || s.Out > maxCopy:
		return fmt.Errorf("network: copies of %d and %d bytes: want up to %d, and one more than 0", s.In, s.Out, maxCopy)
	case min(s.SharedIn, s.SharedOut) < 0 || max(s.SharedIn, s.SharedOut) > maxCopy:
		return fmt.Errorf("network: shared copies of %d and %d bytes: want up to %d", s.SharedIn, s.SharedOut, maxCopy)
	case s.Peer && (s.In+s.SharedIn+s.SharedOut > 0 || s.GPUs < 2):
		return fmt.Errorf("network: peer writes need two GPUs, and no copies from the host or shared ones")
	case (s.OneWay || s.RootWrite != 0) && !s.Peer:
		return fmt.Errorf("network: writes one way, and those of the root complex, are between peers")
	case !(s.RootWrite >= 0):
		return fmt.Errorf("network: the root complex writes at %v: want a rate in bytes per second", s.RootWrite)
	case s.Paths < 1 || s.Paths > maxPaths:
		return fmt.Errorf("network: %d paths: want 1 to %d", s.Paths, maxPaths)
	case s.Time <= 0 || s.Time > 10*time.Second:
		return fmt.Errorf("network: a measurement of %v: want more than 0, up to 10s", s.Time)
	case s.FailAfter < 0 || s.FailAfter >= s.Time || s.FailAfter > 0 && s.Paths < 2 || s.Detect < 0 || s.Detect > time.Second:
		return fmt.Errorf("network: a path fails after %v of %v and is left after %v: want two paths, a time within the measurement, and up to 1s", s.FailAfter, s.Time, s.Detect)
	case s.Compute < 0 || s.Compute > time.Second:
		return fmt.Errorf("network: compute %v: want up to 1s", s.Compute)
	}
	return nil
}

// Rates are bytes per second of each GPU.
type Rates struct {
	In, Out perf.BytesPerSecond
}

// Result is the result of a measurement.
type Result struct {
	PerGPU []Rates
	Total  Rates
	// Before and After are the rates of all GPUs before the first path fails and after it.
	Before, After Rates
	// Gap is the longest time without data of a GPU that copies, in one direction.
	Gap time.Duration
	// RTT of reads, or one-way delay of writes, of the packets of the measurement.
	P50, P99 time.Duration
	Packets  uint64 // sent, warm-up included
	Lost     uint64 // in the network
	Dropped  uint64 // at full ports
	Marked   uint64 // at ports
}

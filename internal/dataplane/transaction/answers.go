package transaction

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// maxAnswers bounds the requests that wait for their completions: a requester has at most
// pcie.MaxTags outstanding, and other devices of the host as many.
const maxAnswers = 2 * pcie.MaxTags

// answer is a completion to send.
type answer struct {
	request tlp.Packet // without Data
	kind    answerKind
	status  pcie.CplStatus // of answerStatus
	value   uint32         // of answerValue, or what answerMemory keeps
}

type answerKind uint8

const (
	answerStatus answerKind = iota
	answerValue             // of a register of configuration space
	answerMemory
)

// MemoryFunc is a [ReadFunc] for a request of which [Answers.Memory] kept a value.
type MemoryFunc func(addr uint64, dst []byte, kept uint32) pcie.CplStatus

// Answers is the queue of a function's completions, in the order of the requests. It holds
// headers only: memory is read when its completion is sent. The owner calls Init first.
type Answers struct {
	queue   []answer
	head    int
	job     ReadJob
	started bool
	read    ReadFunc // of the answer at head
}

// Init sets what reads the memory of the function.
func (a *Answers) Init(read MemoryFunc) {
	a.read = func(addr uint64, dst []byte) pcie.CplStatus { return read(addr, dst, a.queue[a.head].value) }
}

// Status queues a completion without data. It reports whether there was room. A function
// drops a request for which there is none, like a receiver that overflows (section
// 2.6.1.2), and its requester times out.
func (a *Answers) Status(p *tlp.Packet, s pcie.CplStatus) bool {
	return a.add(p, answer{kind: answerStatus, status: s})
}

// Value queues the double word that a configuration read has found. It reports whether
// there was room.
func (a *Answers) Value(p *tlp.Packet, v uint32) bool {
	return a.add(p, answer{kind: answerValue, value: v})
}

// Memory queues the answer to a memory read. kept is for the MemoryFunc. It reports whether
// there was room.
func (a *Answers) Memory(p *tlp.Packet, kept uint32) bool {
	return a.add(p, answer{kind: answerMemory, value: kept})
}

func (a *Answers) add(p *tlp.Packet, e answer) bool {
	if a.Len() >= maxAnswers {
		return false
	}
	if a.head > 0 && len(a.queue) == cap(a.queue) {
		n := copy(a.queue, a.queue[a.head:])
		a.queue, a.head = a.queue[:n], 0
	}
	e.request = *p
	e.request.Data, e.request.Prefix = nil, nil // belong to the caller of Receive
	a.queue = append(a.queue, e)
	return true
}

// Len returns the number of requests that wait for completions.
func (a *Answers) Len() int { return len(a.queue) - a.head }

// Drop forgets all, as a reset does.
func (a *Answers) Drop() {
	a.queue, a.head, a.started = a.queue[:0], 0, false
	a.job.Stop()
}

// Completer is a function as the sender of completions, with the room to build them.
type Completer struct {
	ID         pcie.BDF
	MaxPayload int // bytes
	Out        *tlp.Packet
	Buf        []byte // MaxPayload bytes and two double words
}

// Emit sends the queue. It returns false when emit refuses a completion, and goes on with it
// at the next call.
func (a *Answers) Emit(c Completer, emit func(*tlp.Packet) bool) bool {
	for ; a.head < len(a.queue); a.head++ {
		if !a.one(&a.queue[a.head], c, emit) {
			return false
		}
	}
	a.queue, a.head = a.queue[:0], 0
	return true
}

func (a *Answers) one(e *answer, c Completer, emit func(*tlp.Packet) bool) bool {
	switch e.kind {
	case answerMemory:
		if !a.started {
			a.job.Start(&e.request, c.ID, pcie.DefaultRCB, c.MaxPayload)
		}
		a.started = !a.job.Emit(c.Out, c.Buf, a.read, emit)
		return !a.started
	case answerValue:
		Respond(c.Out, &e.request, c.ID, pcie.SuccessfulCompletion)
		c.Out.Type, c.Out.Length = tlp.CplD, 1
		c.Out.Data = binary.LittleEndian.AppendUint32(c.Buf[:0], e.value)
	case answerStatus:
		Respond(c.Out, &e.request, c.ID, e.status)
	}
	return emit(c.Out)
}

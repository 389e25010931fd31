package gpu

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// maxAnswers bounds the requests that wait for their completions. A requester has
// at most pcie.MaxTags outstanding; the credits of a link are fewer still. The
// device drops further requests, like a receiver that overflows (section
// 2.6.1.2), and their requester times out.
const maxAnswers = 2 * pcie.MaxTags

// answer is a completion to send.
type answer struct {
	request tlp.Packet // without Data
	status  pcie.CplStatus
	config  bool // the completion carries value
	memory  bool // a memory read: emit reads the data
	value   uint32
}

// answers is the queue of completions. emit reads the memory, so the queue holds
// headers only.
type answers struct {
	g       *GPU
	queue   []answer
	head    int
	job     transaction.ReadJob
	started bool
	read    transaction.ReadFunc // g.readBAR, bound once
	write   transaction.WriteFunc
}

func (a *answers) init(g *GPU) { a.g, a.read, a.write = g, g.readBAR, g.writeBAR }

// add queues the answer to a request.
func (a *answers) add(p *tlp.Packet, e answer) {
	if len(a.queue)-a.head >= maxAnswers {
		a.g.logError(p, cfgspace.AEROverflow, false)
		return
	}
	if a.head > 0 && len(a.queue) == cap(a.queue) {
		n := copy(a.queue, a.queue[a.head:])
		a.queue, a.head = a.queue[:n], 0
	}
	e.request = *p
	e.request.Data, e.request.Prefix = nil, nil // belong to the caller of Receive
	a.queue = append(a.queue, e)
}

func (a *answers) drop() {
	a.queue, a.head, a.started = a.queue[:0], 0, false
	a.job.Stop()
}

// emit sends the queue. It returns false when emit refuses a completion.
func (a *answers) emit(out *tlp.Packet, buf []byte, emit func(*tlp.Packet) bool) bool {
	for a.head < len(a.queue) {
		e := &a.queue[a.head]
		if !a.one(e, out, buf, emit) {
			return false
		}
		a.head++
	}
	a.queue, a.head = a.queue[:0], 0
	return true
}

func (a *answers) one(e *answer, out *tlp.Packet, buf []byte, emit func(*tlp.Packet) bool) bool {
	if e.memory {
		if !a.started {
			a.job.Start(&e.request, a.g.id, pcie.DefaultRCB, a.g.maxPayload())
			a.started = true
		}
		if !a.job.Emit(out, buf, a.read, emit) {
			return false
		}
		a.started = false
		return true
	}
	transaction.Respond(out, &e.request, a.g.id, e.status)
	if e.config {
		out.Type, out.Length = tlp.CplD, 1
		out.Data = binary.LittleEndian.AppendUint32(buf[:0], e.value)
	}
	return emit(out)
}

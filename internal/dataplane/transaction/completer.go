package transaction

import (
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// ReadFunc fills dst with the bytes at addr and returns the completion status of
// the read. dst is empty for a zero-length read, which asks only whether the
// address exists. For configuration requests addr is the register.
type ReadFunc func(addr uint64, dst []byte) pcie.CplStatus

// WriteFunc writes src to addr and returns the completion status of the write. A
// posted write has no completion that could carry it.
type WriteFunc func(addr uint64, src []byte) pcie.CplStatus

// Respond overwrites out with a completion without data for req: that of a write,
// or one that ends any request with an error. Byte Count and Lower Address are
// those of the first completion (section 2.3.1.1). req must not be posted.
func Respond(out, req *tlp.Packet, completer pcie.BDF, status pcie.CplStatus) {
	count, lower := req.CompletionBytes()
	*out = tlp.Packet{
		Type: tlp.Cpl, TC: req.TC, Attr: req.Attr,
		Requester: req.Requester, Tag: req.Tag,
		Completer: completer, Status: status,
		ByteCount: uint16(count), LowerAddr: lower,
	}
	if req.Type == tlp.MRdLk {
		out.Type = tlp.CplLk
	}
}

// ReadJob answers one read request, completion by completion. It can pause when
// the way back is full and resume later. The zero value is a job that is done. A
// job copies only the header of the request and does not allocate.
type ReadJob struct {
	head  tlp.Packet // fields common to all completions
	addr  uint64     // of the next byte
	bytes int        // left to read
	count int        // Byte Count of the next completion; 0: the job is done
	rcb   int
	mps   int
	chunk int // bytes that the next completion carries
	// split is set for a memory read: Byte Count is the number of bytes left,
	// and there can be several completions. Other reads have one completion,
	// with a Byte Count of 4 for any byte enables.
	split bool
}

// Start begins the answer to req, a memory, I/O or configuration read. rcb is
// the Read Completion Boundary, 64 or 128, mps the Max_Payload_Size of the
// completer in bytes.
func (j *ReadJob) Start(req *tlp.Packet, completer pcie.BDF, rcb, mps int) {
	*j = ReadJob{rcb: rcb, mps: mps, split: req.Type.Memory()}
	Respond(&j.head, req, completer, pcie.SuccessfulCompletion)
	j.addr, j.bytes = req.ByteRange()
	j.count = int(j.head.ByteCount)
	j.next()
}

// Done reports whether every completion has been emitted.
func (j *ReadJob) Done() bool { return j.count == 0 }

// Chunk returns the range of bytes that the next completion carries. n is 0 for a
// zero-length read. The payload has Pad(addr) more bytes in front, and is padded
// at the end to whole double words.
func (j *ReadJob) Chunk() (addr uint64, n int) { return j.addr, j.chunk }

// Pad returns the number of bytes in the payload before the byte at addr.
func Pad(addr uint64) int { return int(addr % pcie.DW) }

// Build stores the next completion in out. payload is whole double words that
// hold the bytes of Chunk at Pad(addr); out.Data aliases it. Call Advance before
// the next Build.
func (j *ReadJob) Build(out *tlp.Packet, payload []byte) {
	*out = j.head
	out.Type++ // Cpl to CplD, CplLk to CplDLk
	out.ByteCount = uint16(j.count)
	out.Data = payload
	out.Length = uint16(len(payload) / pcie.DW)
}

// Fail stores in out the completion that ends the job with an error status.
func (j *ReadJob) Fail(out *tlp.Packet, status pcie.CplStatus) {
	*out = j.head
	out.Status = status
	out.ByteCount = uint16(j.count)
}

// Advance moves past the completion that Build made, once it is sent.
func (j *ReadJob) Advance() {
	if !j.split {
		j.count = 0
		return
	}
	j.addr += uint64(j.chunk)
	j.bytes -= j.chunk
	j.count = j.bytes
	j.head.LowerAddr = uint8(j.addr & 0x7f)
	j.next()
}

// Stop ends the job.
func (j *ReadJob) Stop() { j.count = 0 }

// next computes the size of the next completion.
func (j *ReadJob) next() {
	j.chunk = j.bytes
	if j.bytes > 0 && j.split {
		j.chunk = tlp.NextCompletion(j.addr, j.bytes, j.rcb, j.mps)
	}
}

// Emit reads and emits completions until the job is done or emit returns false.
// It reports whether the job is done. A completion that emit refused is read
// again at the next call. buf holds the payload and must have at least mps bytes
// (4 for I/O and configuration); padding is zero. The packet passed to emit is
// valid only during that call.
func (j *ReadJob) Emit(out *tlp.Packet, buf []byte, read ReadFunc, emit func(*tlp.Packet) bool) bool {
	return j.EmitFrom(out, buf, nil, read, emit)
}

// ViewFunc returns the n bytes at addr in place, without a copy. They must stay
// unchanged until emit returns. It returns nil where bytes can only be read.
type ViewFunc func(addr uint64, n int) []byte

// EmitFrom is Emit for memory that can be viewed in place: it does not copy a
// payload of whole double words into buf. view may be nil.
func (j *ReadJob) EmitFrom(out *tlp.Packet, buf []byte, view ViewFunc, read ReadFunc, emit func(*tlp.Packet) bool) bool {
	for !j.Done() {
		var payload []byte
		pad, status := Pad(j.addr), pcie.SuccessfulCompletion
		if view != nil && pad == 0 && j.chunk > 0 && j.chunk%pcie.DW == 0 {
			payload = view(j.addr, j.chunk)
		}
		if payload == nil {
			payload = buf[:max(pad+j.chunk+pcie.DW-1, pcie.DW)&^(pcie.DW-1)]
			clear(payload[:pad])
			clear(payload[pad+j.chunk:])
			status = read(j.addr, payload[pad:pad+j.chunk])
		}
		if status != pcie.SuccessfulCompletion {
			if j.Fail(out, status); !emit(out) {
				return false
			}
			j.Stop()
			return true
		}
		if j.Build(out, payload); !emit(out) {
			return false
		}
		j.Advance()
	}
	return true
}

// WriteBytes calls write for the bytes that the byte enables of a memory, I/O or
// configuration write select, in address order. Adjacent bytes come in one call,
// so there are several calls only where the byte enables have gaps, and none
// when no byte is enabled. It stops at the first status that is not
// SuccessfulCompletion and returns it.
func WriteBytes(p *tlp.Packet, write WriteFunc) pcie.CplStatus {
	if len(p.Data) == 0 || len(p.Data) != int(p.Length)*pcie.DW {
		return pcie.UnsupportedRequest
	}
	base := p.Addr
	if p.Type.Config() {
		base = uint64(p.Register)
	}
	if p.Length > 2 {
		// Only a request of 1 or 2 double words has gaps (section 2.2.5).
		addr, n := p.ByteRange()
		if n <= 0 {
			return pcie.SuccessfulCompletion
		}
		start := int(addr - base)
		return write(addr, p.Data[start:start+n])
	}
	enabled := uint(p.FirstBE & 0xf)
	if p.Length == 2 {
		enabled |= uint(p.LastBE&0xf) << pcie.DW
	}
	for i := 0; enabled>>i != 0; {
		if enabled>>i&1 == 0 {
			i++
			continue
		}
		start := i
		for enabled>>i&1 != 0 {
			i++
		}
		if status := write(base+uint64(start), p.Data[start:i]); status != pcie.SuccessfulCompletion {
			return status
		}
	}
	return pcie.SuccessfulCompletion
}

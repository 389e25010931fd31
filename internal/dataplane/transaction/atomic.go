package transaction

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// MaxOperand is the size of the largest atomic operand, that of a 128-bit
// compare and swap.
const MaxOperand = 16

// OperandSize returns the size of an atomic's operand in bytes: 4, 8 or, for CAS,
// 16. It returns 0 for any other packet and for an illegal length.
func OperandSize(p *tlp.Packet) int {
	if !p.Type.Atomic() || len(p.Data) != int(p.Length)*pcie.DW {
		return 0
	}
	size := len(p.Data)
	largest := 8
	if p.Type == tlp.CAS {
		size /= 2
		largest = MaxOperand
	}
	if size != 4 && size != 8 && size != largest {
		return 0
	}
	return size
}

// ApplyAtomic stores in next the result of the atomic p on the operand old
// (section 6.15.1). Both are OperandSize(p) bytes, little-endian like the
// payload. It reports whether memory is to be written: false for a compare that
// failed, and then next equals old. ApplyAtomic is for callers that have their
// own means to make the exchange indivisible; others call ExecuteAtomic.
func ApplyAtomic(p *tlp.Packet, old, next []byte) bool {
	size := OperandSize(p)
	if size == 0 || len(old) != size || len(next) != size {
		return false
	}
	if p.Type == tlp.CAS {
		if string(old) != string(p.Data[:size]) {
			copy(next, old)
			return false
		}
		copy(next, p.Data[size:])
		return true
	}
	copy(next, p.Data)
	if p.Type == tlp.FetchAdd {
		addTo(next, old)
	}
	return true
}

// addTo adds the little-endian number b to a, modulo its size of 4 or 8 bytes.
func addTo(a, b []byte) {
	le := binary.LittleEndian
	if len(a) == 4 {
		le.PutUint32(a, le.Uint32(a)+le.Uint32(b))
		return
	}
	le.PutUint64(a, le.Uint64(a)+le.Uint64(b))
}

// ExecuteAtomic performs the atomic req by a read and a write. The caller must
// prevent other writes between the two. It stores the completion in out: with the
// original value, which lies in buf (at least 2*MaxOperand bytes), or with the
// status that read or write returned.
func ExecuteAtomic(out, req *tlp.Packet, completer pcie.BDF, buf []byte, read ReadFunc, write WriteFunc) {
	size := OperandSize(req)
	if size == 0 {
		Respond(out, req, completer, pcie.UnsupportedRequest)
		return
	}
	old, next := buf[:size:size], buf[size:2*size]
	status := read(req.Addr, old)
	if status == pcie.SuccessfulCompletion && ApplyAtomic(req, old, next) {
		status = write(req.Addr, next)
	}
	Respond(out, req, completer, status)
	if status == pcie.SuccessfulCompletion {
		out.Type = tlp.CplD
		out.Data = old
		out.Length = uint16(size / pcie.DW)
	}
}

//go:build linux

package cli

import (
	"container/list"
	"sync"
)

const (
	// maxHeld bounds the pieces of answers that the callers of a server have not taken yet, in
	// bytes. A caller that takes nothing could have 256 of three megabytes.
	maxHeld = 256 << 20
	// heldFrom is the size in bytes from which a piece counts. A connection takes more than
	// smaller ones.
	heldFrom = 4 << 10
)

// heldAnswers counts the pieces of answers that wait for their callers. When they are too many,
// the one that has waited longest ends: its caller is the slowest.
type heldAnswers struct {
	most int

	mu      sync.Mutex // guards the fields below
	bytes   int
	waiting list.List // of *heldPiece, the oldest first
}

// heldPiece is a part of an answer that is being written.
type heldPiece struct {
	size int
	end  func()
	at   *list.Element // nil: it no longer counts
}

// enter counts a piece before it is written; leave must follow. end makes its writer return, and
// is called before leave returns only: the answer is gone afterwards.
func (h *heldAnswers) enter(size int, end func()) (leave func()) {
	p := &heldPiece{size: size, end: end}
	h.mu.Lock()
	defer h.mu.Unlock()
	p.at = h.waiting.PushBack(p)
	for h.bytes += size; h.bytes > h.most && h.waiting.Len() > 1; {
		oldest := h.waiting.Front().Value.(*heldPiece)
		oldest.end()
		h.remove(oldest)
	}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.remove(p)
	}
}

// remove ends the count of a piece. The caller holds the lock.
func (h *heldAnswers) remove(p *heldPiece) {
	if p.at != nil {
		h.waiting.Remove(p.at)
		p.at, h.bytes = nil, h.bytes-p.size
	}
}

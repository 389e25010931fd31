package playback

import "time"

// kind says what happens on the host.
type kind uint8

const (
	callStart kind = iota
	opReady        // the doorbell of an operation is due
	callEnd
)

// event is something that happens on the host at a time.
type event struct {
	at    time.Duration
	kind  kind
	index int32 // of the call or operation
}

// less orders events: those of one moment by call and operation, so that a
// replay does not depend on the order in which they were made.
func (e *event) less(o *event) bool {
	if e.at != o.at {
		return e.at < o.at
	}
	if e.kind != o.kind {
		return e.kind < o.kind
	}
	return e.index < o.index
}

// events is a binary heap.
type events []event

func (h *events) push(e event) {
	*h = append(*h, e)
	s := *h
	for i := len(s) - 1; i > 0; {
		up := (i - 1) / 2
		if !s[i].less(&s[up]) {
			return
		}
		s[i], s[up] = s[up], s[i]
		i = up
	}
}

// pop takes the first event of a heap that has one.
func (h *events) pop() event {
	s := *h
	first, last := s[0], len(s)-1
	s[0] = s[last]
	s = s[:last]
	*h = s
	for i := 0; ; {
		down := 2*i + 1
		if down >= last {
			return first
		}
		if down+1 < last && s[down+1].less(&s[down]) {
			down++
		}
		if !s[down].less(&s[i]) {
			return first
		}
		s[i], s[down] = s[down], s[i]
		i = down
	}
}

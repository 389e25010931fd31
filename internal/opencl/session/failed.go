package session

import (
	"encoding/binary"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// maxFailed bounds the commands that are known to have failed: the driver knows of older ones, because no
// more are without their event.
const maxFailed = reg.MaxPacketsInFlight

// failures are the last commands that ended with an error. The driver may post a command that waits for
// one before it knows of the error.
type failures struct {
	cookies map[uint64]struct{}
	order   []uint64 // a ring, once it is full
	oldest  int
}

func (f *failures) add(cookie uint64) {
	if f.cookies == nil {
		f.cookies = map[uint64]struct{}{}
	}
	f.cookies[cookie] = struct{}{}
	if len(f.order) < maxFailed {
		f.order = append(f.order, cookie)
		return
	}
	delete(f.cookies, f.order[f.oldest])
	f.order[f.oldest] = cookie
	f.oldest = (f.oldest + 1) % maxFailed
}

// any reports whether one of some commands has failed.
func (f *failures) any(cookies []uint64) bool {
	if len(f.cookies) == 0 {
		return false
	}
	for _, cookie := range cookies {
		if _, failed := f.cookies[cookie]; failed {
			return true
		}
	}
	return false
}

// words returns the failures for the stream of a move, the oldest first: a packet that waits for one may
// still be in the ring.
func (f *failures) words() (out []byte) {
	for i := range f.order {
		out = binary.LittleEndian.AppendUint64(out, f.order[(f.oldest+i)%len(f.order)])
	}
	return out
}

// take replaces the failures by those of words.
func (f *failures) take(words []byte) error {
	if len(words)/8 > maxFailed {
		return errRecord
	}
	*f = failures{}
	for ; len(words) >= 8; words = words[8:] {
		f.add(binary.LittleEndian.Uint64(words))
	}
	return nil
}

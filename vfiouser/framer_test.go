package vfiouser

import (
	"bytes"
	"errors"
	"testing"
)

// A peer that sends a long message byte by byte does not hold a reader with a limited
// wait: it may have to look at other things, such as a timeout. The message is complete in the end.
func TestDrippingPeer(t *testing.T) {
	const size = 1 << 20
	s, peer := newPair(t)
	defer s.close()
	message := Header{ID: 7, Command: CmdRegionRead, Flags: FlagReply, Size: size}.Append(nil)
	message = append(message, bytes.Repeat([]byte{3}, size-HeaderSize)...)
	enough, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		rest := message
		for len(rest) > 0 {
			n := 1
			select {
			case <-enough:
				n = len(rest)
			default:
			}
			if _, err := peer.Write(rest[:n]); err != nil {
				t.Error(err)
				return
			}
			rest = rest[n:]
		}
	}()
	f := newFramer(s, size)
	for range 3 {
		if m, err := f.try(true); !errors.Is(err, errWouldBlock) {
			t.Errorf("%d bytes, %v: the reader has waited for the whole message", m.Size, err)
			break
		}
	}
	close(enough)
	if f.w < size {
		m, err := f.next()
		must(t, err)
		if m.ID != 7 || len(m.body) != size-HeaderSize || m.body[len(m.body)-1] != 3 {
			t.Errorf("%+v", m.Header)
		}
	}
	<-ended
}

package transaction_test

import (
	"slices"
	"testing"

	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// completions collects what a queue of answers emits, until it has refused once at refuseAt.
type completions struct {
	out      tlp.Packet
	buf      [4096 + 8]byte
	got      []string
	refuseAt int // completion that is refused once, from 1; 0: none
}

func (c *completions) emit(p *tlp.Packet) bool {
	if c.refuseAt > 0 && len(c.got) == c.refuseAt-1 {
		c.refuseAt = 0
		return false
	}
	c.got = append(c.got, describe(p))
	return true
}

func describe(p *tlp.Packet) string {
	s := p.Type.String() + " " + p.Status.String()
	for _, b := range p.Data[:min(len(p.Data), 1)] {
		s += " " + string('0'+rune(b))
	}
	return s
}

func (c *completions) completer(mps int) transaction.Completer {
	return transaction.Completer{ID: 7, MaxPayload: mps, Out: &c.out, Buf: c.buf[:]}
}

// Completions keep the order of their requests, wherever the way back is full.
func TestAnswers(t *testing.T) {
	want := []string{"Cpl UR", "CplD SC 3", "CplD SC 5", "CplD SC 5", "Cpl SC"}
	for refused := range len(want) + 1 {
		var a transaction.Answers
		a.Init(func(addr uint64, dst []byte, kept uint32) pcie.CplStatus {
			for i := range dst {
				dst[i] = byte(kept)
			}
			return pcie.SuccessfulCompletion
		})
		m := read(0x1000, 256)
		config := tlp.Packet{Type: tlp.CfgRd0, Length: 1, FirstBE: 15}
		a.Status(&config, pcie.UnsupportedRequest)
		a.Value(&config, 3)
		a.Memory(&m, 5)
		a.Status(&config, pcie.SuccessfulCompletion)
		c := completions{refuseAt: refused}
		if done := a.Emit(c.completer(128), c.emit); done != (refused == 0) {
			t.Errorf("completion %d refused: done is %t", refused, done)
		}
		if !a.Emit(c.completer(128), c.emit) || a.Len() != 0 || !slices.Equal(c.got, want) {
			t.Errorf("completion %d refused: got %q, want %q", refused, c.got, want)
		}
	}
}

// A requester that takes no completions fills the queue, which has a bound. A reset empties it.
func TestAnswersBound(t *testing.T) {
	var a transaction.Answers
	a.Init(func(uint64, []byte, uint32) pcie.CplStatus { return pcie.SuccessfulCompletion })
	m := read(0x1000, 256)
	n := 0
	for a.Memory(&m, 0) {
		n++
	}
	if want := 2 * pcie.MaxTags; n != want || a.Len() != want || a.Status(&m, pcie.UnsupportedRequest) || a.Value(&m, 1) {
		t.Errorf("%d answers queued, want %d", n, want)
	}
	c := completions{refuseAt: 2}
	a.Emit(c.completer(128), c.emit) // in the middle of the first one
	a.Drop()
	a.Status(&m, pcie.CompleterAbort)
	c = completions{}
	if a.Emit(c.completer(128), c.emit); !slices.Equal(c.got, []string{"Cpl CA"}) {
		t.Errorf("after Drop: %q", c.got)
	}
}

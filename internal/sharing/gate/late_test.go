package gate_test

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/gate"
	"github.com/dxpu-project/dxpu/share"
)

// Shares that come when the agent has run for long have the same of the GPU as at its start: the
// sensors say nothing else of them. Their limits hold from the beginning.
func TestSharesThatComeLate(t *testing.T) {
	for _, at := range []time.Duration{0, 24 * time.Hour} {
		w := newWorld(t, "gemini")
		w.now = at
		for id := range gate.ProcessID(2) {
			w.join(share.ClientID(id+1), share.ClientSpec{Limit: share.Percent(30), Memory: 1 << 20})
			w.add(&program{id: id + 1, client: share.ClientID(id + 1), kernel: 7 * time.Millisecond})
		}
		w.run(at + 10*time.Second)
		for id := range share.ClientID(2) {
			if got := w.g.Usage(id+1).Busy.Seconds() * 10; got < 30*0.97 || got > 30*1.03 {
				t.Errorf("from %v on, share %d gets %.1f %% in ten seconds, want 30 %%", at, id+1, got)
			}
		}
	}
}

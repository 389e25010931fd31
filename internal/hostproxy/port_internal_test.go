package hostproxy

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// A VMM holds its lock for three Completion Timeouts of a configuration request once, not
// for each request to a device that does not answer.
func TestTimeOfConfigurationRequests(t *testing.T) {
	r := newRequestPort(&slot{}, time.Second)
	config, memory := tlp.Packet{Type: tlp.CfgRd0}, tlp.Packet{Type: tlp.MRd}
	times := func(when string, want time.Duration) {
		t.Helper()
		if got := r.timeoutOf(&config); got != want {
			t.Errorf("%s: a configuration request has %v, want %v", when, got, want)
		}
		if got := r.timeoutOf(&memory); got != time.Second {
			t.Errorf("%s: a read has %v, want 1s", when, got)
		}
	}
	times("at first", 3*time.Second)

	ended := false
	id := r.begin(engine.Entry{}, op{done: func(_ engine.Entry, ok bool, _ pcie.CplStatus) { ended = !ok }})
	r.timedOut(engine.Entry{}, transaction.Result{Cookie: uint64(id)})
	if !ended || r.slot.counters.timeouts.Load() != 1 {
		t.Errorf("a Completion Timeout: ended %v, %d counted", ended, r.slot.counters.timeouts.Load())
	}
	times("after a Completion Timeout", time.Second)

	r.complete(engine.Entry{}, &tlp.Packet{Type: tlp.CplD}) // too late, but an answer
	times("after an answer", 3*time.Second)

	r.timeout = 5 * time.Second // as configured, although QEMU does not wait for it
	if got := r.timeoutOf(&config); got != r.timeout {
		t.Errorf("with a Completion Timeout of %v a configuration request has %v", r.timeout, got)
	}
}

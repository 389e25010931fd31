package hostproxy

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// A VMM holds its lock while a request waits. So only a box that is heard gets more than a
// Completion Timeout, and a configuration request gets three of them once.
func TestTimeOfRequests(t *testing.T) {
	const timeout = 800 * time.Millisecond
	r := newRequestPort(&slot{}, Config{Front: &VM{QMP: "qmp.sock"}, CompletionTimeout: timeout})
	request := func(config bool, a *vfiouser.Access) int {
		return r.begin(engine.Entry{}, op{config: config, access: a})
	}
	config, memory := request(true, new(vfiouser.Access)), request(false, new(vfiouser.Access))
	probe := request(true, nil)
	const ms = time.Millisecond
	for _, c := range []struct {
		name                   string
		silent                 bool
		op                     int
		heard, slack, extended time.Duration // of a request from 0 to 800 ms
	}{
		{"a read of a device that does not answer", false, memory, 799 * ms, 0, 0},
		{"a slow link", false, memory, 700 * ms, 400 * ms, 400 * ms},
		{"a slow link that is silent", false, memory, 0, 3 * time.Second, 0},
		{"a slow link that is silent since half of the time", false, memory, 400 * ms, 3 * time.Second, 100 * ms},
		{"a configuration request", false, config, 800 * ms, 0, 500 * ms},
		{"a configuration request that waits since then", false, config, 2000 * ms, 0, 1600 * ms},
		{"a configuration request to a silent box", false, config, 0, 0, 0},
		{"a configuration request after a Completion Timeout", true, config, 800 * ms, 0, 0},
		{"a probe of a silent box, for which no VMM waits", false, probe, 0, 3 * time.Second, 3 * time.Second},
		{"a slow link after a Completion Timeout", true, config, 800 * ms, 100 * ms, 100 * ms},
	} {
		r.silent = c.silent
		o := transaction.Overdue{Cookie: uint64(c.op), Deadline: timeout, Timeout: timeout}
		if got := r.extension(o, c.slack, c.heard); got != c.extended {
			t.Errorf("%s: %v more, want %v", c.name, got, c.extended)
		}
	}

	r.timeout = 5 * time.Second // as configured, although QEMU does not wait for it
	o := transaction.Overdue{Cookie: uint64(config), Deadline: r.timeout, Timeout: r.timeout}
	if got := r.extension(o, 0, r.timeout); got != 0 {
		t.Errorf("with a Completion Timeout of %v a configuration request has %v more", r.timeout, got)
	}
}

// After a Completion Timeout a request to a box that is silent gets an eighth of the time.
func TestTimeAfterATimeout(t *testing.T) {
	r := newRequestPort(&slot{}, Config{Front: &VM{QMP: "qmp.sock"}, CompletionTimeout: 800 * time.Millisecond})
	want := func(when string, silence, want time.Duration) {
		t.Helper()
		if got := r.timeoutNow(&op{access: new(vfiouser.Access)}, silence); got != want {
			t.Errorf("%s: a request has %v, want %v", when, got, want)
		}
	}
	want("at first", time.Second, r.timeout)
	ended := false
	id := r.begin(engine.Entry{}, op{done: func(_ engine.Entry, ok bool, _ pcie.CplStatus) { ended = !ok }})
	r.timedOut(engine.Entry{}, transaction.Result{Cookie: uint64(id)})
	if !ended || r.slot.counters.timeouts.Load() != 1 {
		t.Errorf("a Completion Timeout: ended %v, %d counted", ended, r.slot.counters.timeouts.Load())
	}
	want("after a Completion Timeout", heardWithin+1, r.timeout/8)
	if got := r.timeoutNow(&op{}, heardWithin+1); got != r.timeout {
		t.Errorf("a request for which no VMM waits has %v", got)
	}
	want("of a box that is heard", heardWithin, r.timeout)
	r.complete(engine.Entry{}, &tlp.Packet{Type: tlp.CplD}) // too late, but an answer
	want("after an answer", time.Second, r.timeout)
}

// Only a QEMU that the proxy plugs into holds a lock that others wait for.
func TestDefaultTimeout(t *testing.T) {
	for _, c := range []struct {
		name  string
		front Front
		want  time.Duration
	}{
		{"QEMU", &VM{QMP: "qmp.sock"}, 800 * time.Millisecond},
		{"sockets alone", &VM{}, time.Second},
		{"the embedded host", &Embedded{}, time.Second},
	} {
		if got := defaultTimeout(c.front); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}

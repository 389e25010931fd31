package predict

import (
	"runtime"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// marks records the calls of a thread one after the other.
type marks struct {
	*recorder
	now time.Duration
}

// kernels launches a short kernel of each of two threads on a stream.
func (m *marks) kernels(stream int) {
	for thread := range 2 {
		m.kernel(thread, stream)
	}
}

func (m *marks) kernel(thread, stream int) {
	m.op(workload.Kernel, m.launch(workload.Launch, thread, m.now, us), stream, m.now+3*us, 4*us)
	m.now += 10 * us
}

// mark makes a call of the first thread and returns its correlation.
func (m *marks) mark(kind workload.MarkKind) uint32 {
	th, _ := m.b.Thread(workload.Thread{})
	m.corr++
	m.b.AddMark(kind, m.now, m.corr, th, here)
	m.now += us
	return m.corr
}

// handOver records an event on a stream and makes another stream wait for it.
func (m *marks) handOver(from, to int) {
	source, _ := m.b.Stream(workload.Stream{ID: uint64(from)})
	target, _ := m.b.Stream(workload.Stream{ID: uint64(to)})
	event := m.mark(workload.EventRecord)
	m.b.AddEvent(0, event, source)
	m.b.AddAwaited(workload.Awaited{Corr: m.mark(workload.StreamWait), Stream: target, Event: event, From: source})
}

// Streams that wait for each other in turns do not collect all the work there was before each
// event.
func TestEventsBeforeEachOther(t *testing.T) {
	m := &marks{recorder: record(t)}
	m.kernels(5)
	m.kernels(6)
	const turns = 2000
	for range turns {
		m.handOver(5, 6)
		m.handOver(6, 5)
		m.kernel(0, 6)
		m.handOver(5, 6)
		m.kernel(0, 5)
	}
	p := m.plan()
	if p.arrivals == nil {
		t.Fatal("the replay is not by arrival")
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	run(t, p, at(delta10))
	runtime.ReadMemStats(&after)
	if got := (after.TotalAlloc - before.TotalAlloc) / turns; got > 4<<10 {
		t.Errorf("a replay takes %d bytes for each turn", got)
	}
}

// A trace with very many waits before a stream's next work is replayed in the recorded order:
// each event of the stream would come after all of them.
func TestManyWaitsOfAStream(t *testing.T) {
	m := &marks{recorder: record(t)}
	m.kernels(6)
	const waits = 3_600
	for range waits {
		m.handOver(5, 6)
	}
	for range waits {
		m.handOver(6, 5)
	}
	m.kernels(5)
	m.kernels(6)
	if m.plan().arrivals != nil {
		t.Error("the replay is by arrival")
	}
}

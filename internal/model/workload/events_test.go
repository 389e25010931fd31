package workload

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// scripted is a program whose calls are a microsecond long and ten apart.
type scripted struct {
	b    *Builder
	at   time.Duration
	corr uint32
	th   int32
}

func script() *scripted {
	b := NewBuilder("test")
	th, _ := b.Thread(Thread{ID: 1})
	return &scripted{b: b, th: th}
}

func (s *scripted) stream(id uint64) int32 {
	st, _ := s.b.Stream(Stream{ID: id})
	return st
}

func (s *scripted) next() uint32 {
	s.corr++
	s.at += 10 * us
	return s.corr
}

// launch starts an operation at a time.
func (s *scripted) launch(stream uint64, start, dur time.Duration) {
	corr := s.next()
	s.b.AddCall(Call{Start: s.at, Dur: us, Corr: corr, Name: s.b.Name([]byte("cudaLaunchKernel")), Thread: s.th}, nowhere)
	s.b.AddOp(Op{Start: start, Dur: dur, Corr: corr, Stream: s.stream(stream)}, nowhere)
}

func (s *scripted) record(stream uint64) uint32 {
	corr := s.next()
	s.b.AddMark(EventRecord, s.at, corr, s.th, nowhere)
	s.b.AddEvent(0, corr, s.stream(stream))
	return corr
}

func (s *scripted) wait(stream uint64, event uint32) {
	corr := s.next()
	s.b.AddMark(StreamWait, s.at, corr, s.th, nowhere)
	s.b.AddAwaited(Awaited{Corr: corr, Stream: s.stream(stream), Event: event, From: None})
}

func (s *scripted) sync(name string, dur time.Duration, stream int32, event uint32) {
	corr := s.next()
	s.b.AddCall(Call{Start: s.at, Dur: dur, Corr: corr, Name: s.b.Name([]byte(name)), Thread: s.th, Kind: StreamSync}, nowhere)
	if stream != None || event != 0 {
		s.b.AddAwaited(Awaited{Corr: corr, Stream: stream, Event: event, From: None})
	}
	s.at += dur
}

func (s *scripted) build(t *testing.T) *Workload {
	t.Helper()
	w, err := s.b.Build()
	if err != nil {
		t.Fatal(err)
	}
	return w
}

const legacy, blocking, own, third = 7, 13, 14, 15

// types tells the types of the streams.
func (s *scripted) types() {
	for id, typ := range map[uint64]StreamType{legacy: DefaultStream, blocking: BlockingStream, own: NonBlockingStream, third: NonBlockingStream} {
		s.b.SetStreamType(Stream{ID: id}, typ)
	}
}

// An event of the legacy default stream comes after the work of blocking streams, one of a
// blocking stream after the work of the default stream.
func TestEventsOfTheDefaultStream(t *testing.T) {
	for _, streams := range [][2]uint64{{legacy, blocking}, {blocking, legacy}} {
		s := script()
		s.launch(streams[0], 0, 5*us)
		s.launch(streams[1], 20*us, 100*us)
		s.wait(own, s.record(streams[0]))
		s.launch(own, 200*us, 5*us)
		s.types()
		w := s.build(t)
		if !slices.Contains(w.Waits, Wait{Op: 2, On: 1}) {
			t.Errorf("an event on stream %d: %v", streams[0], w.Waits)
		}
	}
}

// An event behind a wait comes after what the wait is for, though nothing ran in between.
func TestEventBehindAWait(t *testing.T) {
	s := script()
	s.launch(own, 15*us, 5*us)
	s.launch(third, 30*us, 100*us)
	s.wait(own, s.record(third))
	s.wait(legacy, s.record(own))
	s.launch(legacy, 200*us, 5*us)
	s.types()
	if d := cmp.Diff([]Wait{{Op: 2, On: 0}, {Op: 2, On: 1}}, s.build(t).Waits); d != "" {
		t.Error(d)
	}
}

// A host that waits for the default stream waits for blocking streams, too, and one that waits
// for a stream for what that waits for. Whether one that waits for a blocking stream waits for
// the default stream, CUDA does not say.
func TestSynchronisationsOfSeveralStreams(t *testing.T) {
	s := script()
	s.launch(legacy, 16*us, us)
	s.launch(blocking, 30*us, 10*us)
	s.sync("cudaStreamSynchronize", 5*us, s.stream(legacy), 0)
	s.launch(third, 60*us, 10*us)
	s.launch(own, 70*us, us)
	s.wait(own, s.record(third))
	s.sync("cudaStreamSynchronize", 5*us, s.stream(own), 0)
	s.launch(legacy, 200*us, us)
	s.sync("cudaStreamSynchronize", 5*us, s.stream(blocking), 0)
	s.types()
	w := s.build(t)
	if d := cmp.Diff([]Await{{Call: 2, On: 1}, {Call: 5, On: 2}}, w.Awaits); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]Await{{Call: 2, On: 1}, {Call: 5, On: 2}, {Call: 7, On: 4}}, w.MostAwaits); d != "" {
		t.Error(d)
	}
}

// Where the trace tells for which event each stream waits, a few operations that were held up
// without one show that the default stream and another wait for each other.
func TestFewOperationsHeldUp(t *testing.T) {
	for held, want := range map[int]bool{2: false, 3: true} {
		s := script()
		s.launch(own, 0, us)
		s.wait(third, s.record(own))
		at := 100 * us
		for range held {
			s.at = max(s.at, at)
			s.launch(legacy, s.at+16*us, 40*us)
			s.launch(blocking, s.at+47*us, us)
			s.launch(own, s.at+16*us, 70*us)
			at += 200 * us
		}
		w := s.build(t)
		if shown := len(w.Waits) > 0; shown != want {
			t.Errorf("%d held up: %v", held, w.Waits)
		}
	}
}

// A wait for an event that the trace does not tell is for the latest one.
func TestLatestEvent(t *testing.T) {
	s := script()
	s.launch(legacy, 10*us, us)
	s.record(legacy)
	s.launch(legacy, 30*us, us)
	s.sync("cudaEventSynchronize", us, None, 0)
	s.sync("cudaStreamSynchronize", us, None, 0)
	w := s.build(t)
	if w.Calls[2].Latest != 0 || w.Calls[3].Latest != None {
		t.Errorf("the event synchronisation is for %d, the other for %d", w.Calls[2].Latest, w.Calls[3].Latest)
	}
}

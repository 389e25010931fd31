package reader

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// wire is a Source in virtual time. Each message arrives some time after the one
// before was received, and a poll takes time too.
type wire struct {
	gaps  []time.Duration // of the messages to come
	look  time.Duration   // duration of a poll
	begun time.Time       // when the last one was received
	looks int             // polls since the last message
	waits int             // blocking receives since the last message
}

func (w *wire) receive(block bool) error {
	if block {
		w.waits++
	} else {
		w.looks++
		time.Sleep(w.look)
	}
	left := time.Until(w.begun.Add(w.gaps[0]))
	if left > 0 && !block {
		return ErrNothing
	}
	time.Sleep(max(left, 0))
	return nil
}

// waited receives the next message and returns the numbers of polls and waits.
func (w *wire) waited(t *testing.T, p *Poller, soon bool) (looks, waits int) {
	t.Helper()
	w.begun, w.looks, w.waits = time.Now(), 0, 0
	if err := p.Wait(soon, w.receive); err != nil {
		t.Fatal(err)
	}
	w.gaps = w.gaps[1:]
	return w.looks, w.waits
}

func TestPoller(t *testing.T) {
	const (
		us = time.Microsecond
		ms = time.Millisecond
	)
	window := Polling{Window: 50 * us}
	for _, c := range []struct {
		name    string
		polling Polling
		soon    bool
		look    time.Duration
		gaps    []time.Duration
		waits   []int // for each message: 1 if the reader slept
		polled  []int // for each message: 1 if the reader polled before
	}{
		{"no polling", Polling{}, true, us, []time.Duration{10 * us, 10 * us, 10 * us}, []int{1, 1, 1}, []int{0, 0, 0}},
		{"an exchange", window, true, us, []time.Duration{10 * us, 10 * us, 49 * us, 10 * us}, []int{1, 0, 0, 0}, []int{0, 1, 1, 1}},
		{"no message is due soon", window, false, us, []time.Duration{10 * us, 10 * us, 10 * us}, []int{1, 1, 1}, []int{0, 0, 0}},
		{"a pause in an exchange", window, true, us, []time.Duration{10 * us, 10 * us, ms, 10 * us, 10 * us}, []int{1, 0, 1, 1, 0}, []int{0, 1, 1, 0, 1}},
		{"a slow exchange", window, true, us, []time.Duration{60 * us, 60 * us, 60 * us}, []int{1, 1, 1}, []int{0, 0, 0}},
		// Another thread runs between two polls: one more look, and the reader sleeps.
		{"a processor that others use", window, true, shared + us, []time.Duration{10 * us, 20 * us, 8 * us}, []int{1, 1, 0}, []int{0, 1, 1}},
		// A poll takes the time slice of another thread: no polls for 2 ms, and when it
		// happens again soon, for 4 ms.
		{
			"a processor that others want", window, true, preempted,
			[]time.Duration{10 * us, 2 * ms, 10 * us, 10 * us, 2 * ms, 10 * us, 2 * ms, 10 * us, 2 * ms, 10 * us, 10 * us, 2 * ms, 10 * us, 10 * us},
			[]int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0},
			[]int{0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1},
		},
		{"spinning", Polling{Spin: 100 * us}, false, us, []time.Duration{10 * us, ms, 10 * us}, []int{0, 1, 0}, []int{1, 1, 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p, w := &Poller{Polling: c.polling}, &wire{gaps: c.gaps, look: c.look}
				var waits, polled []int
				for len(w.gaps) > 0 {
					l, b := w.waited(t, p, c.soon)
					polled, waits = append(polled, min(l, 1)), append(waits, b)
				}
				if !slices.Equal(waits, c.waits) || !slices.Equal(polled, c.polled) {
					t.Errorf("slept %v, want %v; polled before %v, want %v", waits, c.waits, polled, c.polled)
				}
			})
		})
	}
}

// A window that is longer than one sleep of a reader does not turn silence into
// an exchange.
func TestSilenceIsNotPolled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, looks := &Poller{Polling: Polling{Window: 100 * time.Millisecond}}, 0
		for range 10 {
			err := p.Wait(true, func(block bool) error {
				if block {
					time.Sleep(50 * time.Millisecond)
				} else {
					looks++
					time.Sleep(time.Microsecond)
				}
				return ErrNothing
			})
			if !errors.Is(err, ErrNothing) {
				t.Fatal(err)
			}
		}
		if looks > 0 {
			t.Errorf("polled %d times though no message ever came", looks)
		}
	})
}

func TestPollerAllocatesNothing(t *testing.T) {
	var s Source = ready{}
	p := &Poller{Polling: Polling{Window: DefaultWindow}}
	if n := testing.AllocsPerRun(100, func() { _ = p.Wait(s.Soon(), s.Receive) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// ready is a Source that always has a message.
type ready struct{}

func (ready) Receive(bool) error { return nil }
func (ready) Soon() bool         { return true }

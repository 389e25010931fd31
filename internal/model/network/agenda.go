package network

import (
	"math/bits"
	"time"

	"github.com/dxpu-project/dxpu/machine"
)

// agenda holds the events to come. Events of the same time leave in the order in which they
// were pushed.
//
// The network of many GPUs has tens of events in a nanosecond, so nothing is sorted: each
// nanosecond of the present era has a list, whose end takes the events. Events of a later
// era wait in one list until it begins.
type agenda struct {
	start    time.Duration // of the present era
	lists    []list        // of the present era, one for each nanosecond
	occupied []uint64      // a bit for each list that has events
	word     int           // of occupied: those before it are 0

	chunks []chunk
	unused []int32 // chunks without events

	later  map[time.Duration][]event    // events of later eras, by the start of the era
	starts machine.Queue[time.Duration] // of these eras
}

// era is the length of an era in ns. Few packets take as long to their next event.
const era = 1 << 16

// list holds events of one time in chunks.
type list struct {
	first, last int32 // chunks
	taken       int16 // events that the first chunk had and that are gone
	added       int16 // events that the last chunk got; 0: the list is empty
}

// chunk holds events of one list. It takes two cache lines.
type chunk struct {
	packets [5]packet
	next    int32
}

type event struct {
	at time.Duration
	packet
}

func newAgenda() agenda {
	return agenda{lists: make([]list, era), occupied: make([]uint64, era/64), later: map[time.Duration][]event{}}
}

// push adds an event. at is not before that of the last event that left, nor before a limit
// that kept one from leaving.
func (a *agenda) push(at time.Duration, p *packet) {
	if i := at - a.start; i < era {
		a.add(int(i), p)
		return
	}
	start := at - at%era
	if a.later[start] == nil {
		a.starts.Push(start, start)
	}
	a.later[start] = append(a.later[start], event{at, *p})
}

// add adds an event to list i.
func (a *agenda) add(i int, p *packet) {
	l := &a.lists[i]
	switch int(l.added) {
	case 0:
		c := a.chunk()
		*l = list{first: c, last: c}
		a.occupied[i/64] |= 1 << (i % 64)
		a.word = min(a.word, i/64)
	case len(chunk{}.packets):
		c := a.chunk()
		a.chunks[l.last].next = c
		l.last, l.added = c, 0
	}
	a.chunks[l.last].packets[l.added] = *p
	l.added++
}

// chunk returns an unused chunk.
func (a *agenda) chunk() int32 {
	if n := len(a.unused); n > 0 {
		c := a.unused[n-1] // the last one used is in the cache
		a.unused = a.unused[:n-1]
		return c
	}
	a.chunks = append(a.chunks, chunk{})
	return int32(len(a.chunks) - 1)
}

// pop removes the first event if it is due before the limit.
func (a *agenda) pop(limit time.Duration) (event, bool) {
	for {
		for ; a.word < len(a.occupied); a.word++ {
			word := a.occupied[a.word]
			if word == 0 {
				continue
			}
			i := a.word*64 + bits.TrailingZeros64(word)
			at := a.start + time.Duration(i)
			if at >= limit {
				return event{}, false
			}
			return event{at, a.take(i)}, true
		}
		if a.starts.Wake() >= limit {
			return event{}, false
		}
		a.begin()
	}
}

// take removes the first event of list i.
func (a *agenda) take(i int) packet {
	l := &a.lists[i]
	c := &a.chunks[l.first]
	p := c.packets[l.taken]
	l.taken++
	switch {
	case l.first == l.last && l.taken == l.added:
		a.unused = append(a.unused, l.first)
		*l = list{}
		a.occupied[i/64] &^= 1 << (i % 64)
	case int(l.taken) == len(c.packets):
		a.unused = append(a.unused, l.first)
		l.first, l.taken = c.next, 0
	}
	return p
}

// begin begins the next era that has events.
func (a *agenda) begin() {
	a.start, _ = a.starts.Pop(a.starts.Wake())
	a.word = 0
	for i := range a.later[a.start] {
		e := &a.later[a.start][i]
		a.add(int(e.at-a.start), &e.packet)
	}
	delete(a.later, a.start)
}

package vfiouser

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// whim is a server that answers requests in any order, some twice and some with an error. Its
// registers count the writes of each program, so an answer tells which writes came before it.
type whim struct {
	t      *testing.T
	p      *rawPeer
	r      *rand.Rand
	writes map[uint64]uint32 // by program
	held   [][]byte          // answers
	dma    map[uint16]bool   // own requests without an answer
}

// take handles a message of the client.
func (w *whim) take(m reply) {
	if Flags(m.flags)&FlagReply != 0 {
		if !w.dma[m.id] {
			w.t.Errorf("an answer to DMA request %d, which has none to come", m.id)
		}
		delete(w.dma, m.id)
		return
	}
	var body []byte
	switch Command(m.cmd) {
	case CmdRegionWriteMulti:
		for at := 8; at < len(m.body); at += 24 {
			w.wrote(binary.LittleEndian.Uint64(m.body[at:]), m.body[at+16:])
		}
	case CmdRegionWrite:
		w.wrote(binary.LittleEndian.Uint64(m.body), m.body[16:])
		body = m.body[:16]
	case CmdRegionRead:
		body = append(m.body[:16:16], make([]byte, binary.LittleEndian.Uint32(m.body[12:]))...)
		binary.LittleEndian.PutUint32(body[16:], w.writes[binary.LittleEndian.Uint64(m.body)])
	}
	if Flags(m.flags)&FlagNoReply != 0 {
		return
	}
	flags, errno := FlagReply, unix.Errno(0)
	if w.r.IntN(10) == 0 {
		flags, errno, body = FlagReply|FlagError, unix.EIO, nil
	}
	answer := binary.LittleEndian.AppendUint16(nil, m.id)
	answer = binary.LittleEndian.AppendUint16(answer, m.cmd)
	answer = append(append(answer, le(uint32(16+len(body)), uint32(flags), uint32(errno))...), body...)
	w.held = append(w.held, answer)
	if w.r.IntN(20) == 0 {
		w.held = append(w.held, answer)
	}
}

// wrote checks that a program's writes come once and in order.
func (w *whim) wrote(program uint64, data []byte) {
	w.writes[program]++
	if n := binary.LittleEndian.Uint32(data); n != w.writes[program] {
		w.t.Errorf("program %d: write %d comes as number %d", program, n, w.writes[program])
	}
}

// answer sends an answer of chance, or a request of its own.
func (w *whim) answer() {
	if w.r.IntN(6) == 0 && len(w.dma) < 100 {
		b := w.p.message(uint16(CmdDMARead), 0, le(uint64(w.r.IntN(100)), uint64(1+w.r.IntN(64))))
		w.dma[w.p.id] = true
		_, _ = w.p.Write(b) // the client may have gone
	}
	if len(w.held) > 0 {
		i, last := w.r.IntN(len(w.held)), len(w.held)-1
		_, _ = w.p.Write(w.held[i])
		w.held[i], w.held = w.held[last], w.held[:last]
	}
}

// play serves until the client has gone.
func (w *whim) play(p *rawPeer) {
	w.p = p
	messages := make(chan reply, 1000)
	go func() {
		defer close(messages)
		for {
			m, err := p.tryRecv()
			if err != nil {
				return
			}
			messages <- m
		}
	}()
	idle := time.NewTicker(100 * time.Microsecond)
	defer idle.Stop()
	for {
		select {
		case m, ok := <-messages:
			if !ok {
				return
			}
			if w.take(m); w.r.IntN(2) == 0 {
				w.answer()
			}
		case <-idle.C:
			w.answer()
		}
	}
}

// program makes random requests, one after the other.
type program struct {
	t      *testing.T
	c      *Client
	r      *rand.Rand
	number uint64
	writes uint32
	open   sync.WaitGroup // requests without an outcome
}

// data returns that of the next write.
func (x *program) data() []byte {
	x.writes++
	return binary.LittleEndian.AppendUint32(nil, x.writes)
}

// check looks at the outcome of a read that began after some writes and ended after others.
func (x *program) check(p []byte, err error, before uint32) {
	if err != nil {
		if refused := new(RemoteError); !errors.As(err, &refused) {
			x.t.Errorf("program %d: %v", x.number, err)
		}
		return
	}
	if n := binary.LittleEndian.Uint32(p); n < before {
		x.t.Errorf("program %d: a read behind write %d has passed write %d", x.number, before, n+1)
	}
}

// start makes a read whose outcome a callback takes.
func (x *program) start() {
	p, before, told := make([]byte, 4+x.r.IntN(3000)), x.writes, new(atomic.Bool)
	done := func(err error) {
		if told.Swap(true) {
			x.t.Error("an outcome is told twice")
			return
		}
		x.check(p, err, before)
		x.open.Done()
	}
	x.open.Add(1)
	if x.r.IntN(2) == 0 {
		if x.c.TryRead(0, x.number, p, done) {
			for range x.r.IntN(20) {
				x.c.Poll()
			}
			return
		}
	} else if x.c.StartRead(0, x.number, p, done) == nil {
		return
	}
	x.open.Done()
}

// give starts a read and may give it up. Its memory belongs to the caller then.
func (x *program) give() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(x.r.IntN(300))*time.Microsecond)
	defer cancel()
	p, before := make([]byte, 4), x.writes
	err := x.c.RegionRead(ctx, 0, x.number, p)
	if !errors.Is(err, context.DeadlineExceeded) {
		x.check(p, err, before)
		return
	}
	binary.LittleEndian.PutUint32(p, 0x5a5a5a5a)
	x.c.Poll()
	if binary.LittleEndian.Uint32(p) != 0x5a5a5a5a {
		x.t.Error("the client writes to memory that it has given back")
	}
}

func (x *program) run(steps int) {
	for range steps {
		switch x.r.IntN(8) {
		case 0, 1:
			p, before := make([]byte, 4), x.writes
			x.check(p, x.c.RegionRead(context.Background(), 0, x.number, p), before)
		case 2:
			x.give()
		case 3:
			if err := x.c.RegionWrite(context.Background(), 0, x.number, x.data()); err != nil {
				x.check(nil, err, 0)
			}
		case 4, 5:
			for range 1 + x.r.IntN(40) {
				if err := x.c.PostWrite(0, x.number, x.data()); err != nil {
					x.t.Error(err)
				}
			}
		case 6:
			if err := x.c.PostWrite(0, x.number, append(x.data(), make([]byte, x.r.IntN(5000))...)); err != nil {
				x.t.Error(err)
			}
		default:
			x.start()
		}
	}
	x.open.Wait()
}

// Programs that use one client in all ways get each outcome once, and their writes and reads
// stay in order, with a server that answers as it likes.
func TestRandomPrograms(t *testing.T) {
	for seed := range uint64(8) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := &whim{t: t, r: rand.New(rand.NewPCG(seed, 9)), writes: map[uint64]uint32{}, dma: map[uint16]bool{}}
			var handlers sync.WaitGroup
			cfg := ClientConfig{MaxOpen: 1 + w.r.IntN(40), DMA: DMAFunc(func(_ *Client, r *DMARequest) {
				handlers.Go(r.Reply)
			})}
			json := fmt.Sprintf(`{"capabilities":{"write_multiple":%v}}`, seed%2 == 0) + "\x00"
			c, err := fakeServer(t, cfg, json, nil, w.play)
			must(t, err)
			var programs sync.WaitGroup
			for number := range uint64(4) {
				x := &program{t: t, c: c, r: rand.New(rand.NewPCG(seed, 100+number)), number: number}
				programs.Go(func() { x.run(150) })
			}
			programs.Wait()
			must(t, c.Close())
			handlers.Wait()
		})
	}
}

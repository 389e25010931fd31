// Package capture copies the TLPs of bindings into a pcapng stream while they
// pass, for Wireshark. What it copies is behind the decryption, so that it
// shows what the network does not.
//
// README.md draws the record that each packet of the stream is; dxpu.lua
// teaches Wireshark to read it.
package capture

import (
	"context"
	_ "embed" // of the dissector
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/capture/pcapng"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// Dissector is the Wireshark dissector, in Lua.
//
//go:embed dxpu.lua
var Dissector string

// Options say what to capture. The zero value is everything.
type Options struct {
	// Binding, if not nil, is the number by which datagrams name the binding.
	Binding *uint32
	// Slot, if not nil, is the slot of this proxy.
	Slot *uint16
	// SnapLen is how many bytes to keep of each TLP, 0 for all.
	SnapLen int
	// Buffer bounds what waits for the reader, in bytes; default 4 MiB. What
	// does not fit is dropped and counted. As much again may be on its way out.
	Buffer int
	// Program and Interface are written into the stream.
	Program, Interface, About string
}

const (
	defaultBuffer = 4 << 20
	// flushInterval is how long a TLP waits for company before it is written.
	flushInterval = 50 * time.Millisecond
)

// Session is one capture: the data plane puts TLPs in, Stream takes them out.
// Two buffers change places, so that whoever puts a TLP in never waits for the
// reader, and only for the time of a copy for others who do the same.
type Session struct {
	opts Options
	wake chan struct{} // there is something in fill

	mu      sync.Mutex // guards what follows
	fill    []byte     // whole blocks
	dropped uint64     // since the last block
	total   pcapng.Statistics
	closed  bool
}

// NewSession makes a capture. Nothing is in it until its owner calls TLP.
func NewSession(o Options) *Session {
	if o.Buffer <= 0 {
		o.Buffer = defaultBuffer
	}
	if o.SnapLen <= 0 {
		o.SnapLen = tlp.MaxSize
	}
	return &Session{opts: o, wake: make(chan struct{}, 1)}
}

// TLP captures one packet, of which nothing is kept after the call. at is the
// time in nanoseconds since 1970. It is called from any goroutine.
func (s *Session) TLP(at uint64, h *Header, p *tlp.Packet) {
	o := &s.opts
	if o.Binding != nil && *o.Binding != h.Binding || o.Slot != nil && *o.Slot != h.local().Slot {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.total.Time = at
	s.total.Received++
	size := min(p.Size(), o.SnapLen)
	if len(s.fill)+HeaderSize+size+pcie.DW+pcapng.MaxPacketOverhead > o.Buffer {
		s.dropped++
		s.total.Dropped++
		return
	}
	block := pcapng.Packet{Time: at, Direction: h.pcapng(), Dropped: s.dropped, Length: HeaderSize + p.Size()}
	start := len(s.fill)
	b := h.Append(block.Begin(s.fill))
	body := len(b)
	b = p.AppendHeader(b)
	b = append(b, p.Data[:min(len(p.Data), size)]...)
	if p.HasDigest {
		b = p.AppendDigest(b)
	}
	s.fill = block.End(b[:min(len(b), body+size)], start)
	s.dropped = 0
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take takes what has been captured and leaves an empty buffer instead.
func (s *Session) take(empty []byte) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := s.fill
	s.fill = empty[:0]
	return full
}

// finish ends the capture and returns what is left, with its statistics.
func (s *Session) finish() []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.total.Append(s.fill)
}

// Stream writes the capture to w until ctx ends or w fails, and calls flush
// whenever what it has written should go out. A ctx that ends is no error. It
// is called once.
func (s *Session) Stream(ctx context.Context, w io.Writer, flush func()) error {
	b := (&pcapng.Section{Program: s.opts.Program}).Append(nil)
	b = (&pcapng.Interface{
		Link: pcapng.LinkUser0, SnapLen: uint32(HeaderSize + s.opts.SnapLen), Name: s.opts.Interface, About: s.opts.About,
	}).Append(b)
	var spare []byte
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for {
		if _, err := w.Write(b); err != nil {
			return fmt.Errorf("capture: %w", err)
		}
		flush()
		select {
		case <-ctx.Done():
		case <-tick.C: // company for the first
		}
		select {
		case <-ctx.Done():
			if _, err := w.Write(s.finish()); err != nil {
				return fmt.Errorf("capture: %w", err)
			}
			flush()
			return nil
		case <-s.wake:
			b = s.take(spare)
			spare = b
		}
	}
}

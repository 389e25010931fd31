// Package capture copies the TLPs of bindings into a pcapng stream for Wireshark.
// It copies them after decryption, so a capture shows the contents that the network
// hides.
//
// README.md specifies the records in the stream; dxpu.lua is the Wireshark dissector
// for them.
package capture

import (
	"bufio"
	"context"
	_ "embed" // of the dissector
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/dxpu-project/dxpu/tlp"
)

// Dissector is the Wireshark dissector, in Lua.
//
//go:embed dxpu.lua
var Dissector string

// LinkType is the link type of a capture: LINKTYPE_USER0, which is reserved for
// private use (https://www.tcpdump.org/linktypes.html).
const LinkType layers.LinkType = 147

// Options select what to capture. The zero value is everything.
type Options struct {
	// Binding, if not nil, is the number by which datagrams name the binding.
	Binding *uint32
	// Slot, if not nil, is the slot of this proxy.
	Slot *uint16
	// SnapLen is the number of bytes to keep of each TLP, 0 for all.
	SnapLen int
	// Buffer bounds the memory for records that wait for the reader, in bytes;
	// default 4 MiB. Records that do not fit are dropped and counted. The
	// records that are being written take up to as much again.
	Buffer int
	// Program, Interface and About are written into the stream.
	Program, Interface, About string
}

const (
	defaultBuffer = 4 << 20
	// writeBuffer is the size of one write to the reader.
	writeBuffer = 64 << 10
	// flushInterval is how long a TLP may wait for others before it is written.
	flushInterval = 50 * time.Millisecond
	// recordOverhead is the size of a record in bytes.
	recordOverhead = 32
)

// Session is one capture: the data plane puts TLPs in, Stream takes them out.
// Two batches change places. A goroutine that puts a TLP in waits only while
// another one copies a TLP, and never for the reader.
type Session struct {
	opts Options
	wake chan struct{} // fill is not empty

	mu      sync.Mutex // guards the fields below
	fill    batch
	dropped uint64 // since the last record
	total   pcapgo.NgInterfaceStatistics
	closed  bool
}

// batch is a sequence of records.
type batch struct {
	records []record
	data    []byte
}

type record struct {
	at       uint64 // nanoseconds since 1970
	dropped  uint64 // records lost between the one before and this one
	end      int    // of the record's bytes in data
	length   uint32 // before it was cut
	received bool
}

// NewSession makes an empty capture. Its owner calls TLP to fill it.
func NewSession(o Options) *Session {
	if o.Buffer <= 0 {
		o.Buffer = defaultBuffer
	}
	if o.SnapLen <= 0 {
		o.SnapLen = tlp.MaxSize
	}
	return &Session{opts: o, wake: make(chan struct{}, 1)}
}

// TLP captures one packet and keeps no reference to it. at is the time in
// nanoseconds since 1970. It may be called from any goroutine.
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
	s.total.LastUpdate = time.Unix(0, int64(at))
	s.total.PacketsReceived++
	size := min(p.Size(), o.SnapLen)
	b := &s.fill
	if len(b.data)+HeaderSize+size+(len(b.records)+1)*recordOverhead > o.Buffer {
		s.dropped++
		s.total.PacketsDropped++
		return
	}
	b.data = h.Append(b.data)
	body := len(b.data)
	b.data = p.AppendHeader(b.data)
	b.data = append(b.data, p.Data[:min(len(p.Data), size)]...)
	if p.HasDigest {
		b.data = p.AppendDigest(b.data)
	}
	b.data = b.data[:min(len(b.data), body+size)]
	b.records = append(b.records, record{
		at: at, dropped: s.dropped, end: len(b.data), length: uint32(HeaderSize + p.Size()), received: h.Received,
	})
	s.dropped = 0
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// take returns the records captured so far and continues with an empty batch.
func (s *Session) take(empty batch) batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	full := s.fill
	s.fill = batch{empty.records[:0], empty.data[:0]}
	return full
}

// finish ends the capture and returns the records that are left.
func (s *Session) finish() batch {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return s.fill
}

// write writes the records of a batch.
func (b *batch) write(w *pcapgo.NgWriter) error {
	start := 0
	for i := range b.records {
		r := &b.records[i]
		flags := pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionOutbound}
		if r.received {
			flags.Direction = pcapgo.NgEpbFlagDirectionInbound
		}
		opts := pcapgo.NgPacketOptions{Flags: &flags}
		if r.dropped > 0 {
			opts.DropCount = &r.dropped
		}
		ci := gopacket.CaptureInfo{
			Timestamp: time.Unix(0, int64(r.at)), CaptureLength: r.end - start, Length: int(r.length),
		}
		if err := w.WritePacketWithOptions(ci, b.data[start:r.end], opts); err != nil {
			return err
		}
		start = r.end
	}
	return w.Flush()
}

// Stream writes the capture to w until ctx ends or w fails. It calls flush when
// w should pass on what has been written. The end of ctx is not an error. Stream
// may be called once.
func (s *Session) Stream(ctx context.Context, w io.Writer, flush func()) error {
	if err := s.stream(ctx, w, flush); err != nil {
		return fmt.Errorf("capture: %w", err)
	}
	return nil
}

func (s *Session) stream(ctx context.Context, w io.Writer, flush func()) error {
	ng, err := pcapgo.NewNgWriterInterface(bufio.NewWriterSize(w, writeBuffer), pcapgo.NgInterface{
		Name: s.opts.Interface, Description: s.opts.About, LinkType: LinkType, SnapLength: uint32(HeaderSize + s.opts.SnapLen),
	}, pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: s.opts.Program}})
	if err != nil {
		return err
	}
	var b batch
	tick := time.NewTicker(flushInterval)
	defer tick.Stop()
	for {
		if err := b.write(ng); err != nil {
			return err
		}
		flush()
		select {
		case <-ctx.Done():
		case <-tick.C: // more TLPs may follow the first
		}
		select {
		case <-ctx.Done():
			last := s.finish()
			if err := errors.Join(last.write(ng), ng.WriteInterfaceStats(0, s.total), ng.Flush()); err != nil {
				return err
			}
			flush()
			return nil
		case <-s.wake:
			b = s.take(b)
		}
	}
}

// Package move is what a box and the process of an OpenCL device say to each other while
// the objects of a tenant move to another device: messages over a socket, and a ring of
// bytes in shared memory. The box moves the bytes and does not read them.
package move

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// Type is the type of a message.
type Type uint32

// Messages. B is the box, P the process. A message of an earlier generation does not count.
const (
	Save    Type = iota + 1 // B to P: begin to record what changes; all that exists has changed
	Pass                    // B to P: put what has changed into the ring; Count is 1 for the last pass
	Stop                    // B to P: end Save
	Load                    // B to P: begin to take objects out of the ring
	End                     // B to P: no further bytes come
	Put                     // of the writer: Count bytes were put into the ring; of P also: Left bytes have changed
	Taken                   // of the reader: Count bytes were taken
	Changed                 // P to B: Left bytes have changed
	Passed                  // P to B: the pass is over; Left as in Put
	Loaded                  // P to B: all objects are there, or Text says why not
)

// Message is a message.
type Message struct {
	Type       Type
	Generation uint32
	Count      uint64 // bytes since the generation began
	Left       uint64 // bytes
	Text       string // of Loaded: up to MaxText bytes
}

// HeaderSize is the size of a message without its text, MaxText of the text, and MaxMessage
// of both, in bytes.
const (
	HeaderSize = 24
	MaxText    = 256
	MaxMessage = HeaderSize + MaxText
)

// Append appends the message to b.
func (m Message) Append(b []byte) []byte {
	le := binary.LittleEndian
	b = le.AppendUint32(b, uint32(m.Type))
	b = le.AppendUint32(b, m.Generation)
	b = le.AppendUint64(b, m.Count)
	b = le.AppendUint64(b, m.Left)
	return append(b, m.Text[:min(len(m.Text), MaxText)]...)
}

// Parse reads a message that fills b.
func Parse(b []byte) (Message, error) {
	if len(b) < HeaderSize || len(b) > MaxMessage {
		return Message{}, fmt.Errorf("move: a message of %d bytes", len(b))
	}
	le := binary.LittleEndian
	m := Message{
		Type: Type(le.Uint32(b)), Generation: le.Uint32(b[4:]), Count: le.Uint64(b[8:]), Left: le.Uint64(b[16:]),
		Text: string(b[HeaderSize:]),
	}
	if m.Type < Save || m.Type > Loaded {
		return Message{}, fmt.Errorf("move: a message of type %d", m.Type)
	}
	return m, nil
}

// RingSize is the size of the shared memory, in bytes.
const RingSize = 8 << 20

// Align divides all sizes and positions in the ring, in bytes.
const Align = 8

// errCount means that the other end counts what cannot be.
var errCount = errors.New("move: the other end of the ring counts more bytes than there are")

// Ring is one end of the ring. The other end is another process, which may write to the
// memory at any time.
type Ring struct {
	Memory     []byte // RingSize bytes
	put, taken uint64
}

// Room returns how many bytes the writer may put.
func (r *Ring) Room() int { return len(r.Memory) - int(r.put-r.taken) }

// Ready returns how many bytes the reader may take.
func (r *Ring) Ready() int { return int(r.put - r.taken) }

// Put copies the beginning of p into the ring and returns its size.
func (r *Ring) Put(p []byte) int {
	n := min(len(p), r.Room())
	at := int(r.put % uint64(len(r.Memory)))
	k := copy(r.Memory[at:], p[:n])
	copy(r.Memory, p[k:n])
	r.put += uint64(n)
	return n
}

// Take fills the beginning of p and returns its size.
func (r *Ring) Take(p []byte) int {
	n := min(len(p), r.Ready())
	at := int(r.taken % uint64(len(r.Memory)))
	k := copy(p[:n], r.Memory[at:])
	copy(p[k:n], r.Memory)
	r.taken += uint64(n)
	return n
}

// Count returns the bytes that were put and taken.
func (r *Ring) Count() (put, taken uint64) { return r.put, r.taken }

// SetPut notes what the writer has put.
func (r *Ring) SetPut(n uint64) error {
	if n < r.put || n-r.taken > uint64(len(r.Memory)) || n%Align != 0 {
		return errCount
	}
	r.put = n
	return nil
}

// SetTaken notes what the reader has taken.
func (r *Ring) SetTaken(n uint64) error {
	if n < r.taken || n > r.put {
		return errCount
	}
	r.taken = n
	return nil
}

// Reset begins a generation.
func (r *Ring) Reset() { r.put, r.taken = 0, 0 }

// Package wire is the format between the driver library of a program and the sharing
// agent of its machine: messages of a fixed size, and the page of limits that the agent
// shows to the programs of one share. hook/SHARE.md has the tables and the rules.
package wire

import (
	"encoding/binary"
	"fmt"
)

// Bounds of the protocol.
const (
	Version     = 1       // of messages and page
	MessageSize = 64      // bytes of each message
	MaxGPUs     = 16      // of one share
	MaxBytes    = 1 << 50 // of one GPU's memory: 1 PiB, as package share has it
	// MaxUnanswered is the number of requests (ALLOCATE and LAUNCH) without an answer
	// that one process may have. The answers fit the smallest buffer of a socket.
	MaxUnanswered = 128
	// MaxPacket is the number of messages in a packet of a process. The agent sends one.
	MaxPacket = 16
)

// Type is the type of a message.
type Type uint32

// Messages of a process to the agent.
const (
	Hello    Type = iota + 1 // ID: Version; Arg[0]: process ID, as the process sees itself; Arg[1]: Tells
	Allocate                 // ID, GPU, Bytes; answered by Granted or Refused
	Free                     // GPU, Bytes
	Launch                   // ID, GPU, Arg: blocks, threads of a block, kernels, hash of the name, Started; answered by Permit unless it has started
	Done                     // ID, GPU, Arg[0]: nanoseconds that it ran, 0 if not known
	Idle                     // GPU: the process waits for its launches
	Failed                   // GPU, Arg[0]: the CUresult
	Exit                     // the process ends, and launches nothing any more
	Holds                    // GPU, Bytes: the process has this much memory in all
	Usage                    // GPU, Arg: launches and nanoseconds since the last one, without a permit
	Context                  // GPU: the process makes a context there; to agents that know it
	lastOfProcess
)

// Messages of the agent to a process.
const (
	Welcome Type = iota + 65 // ID: Version; Arg[0]: number of GPUs; Arg[1]: Tells; with the page's descriptor
	Granted                  // ID, GPU, Bytes
	Refused                  // ID, GPU, Bytes: that the share has left
	Permit                   // ID, GPU
	End                      // Arg[0]: nanoseconds until the process is killed
	Reject                   // Arg[0]: a Reason; the agent closes the connection after it
	lastOfAgent
)

var typeNames = map[Type]string{
	Hello: "HELLO", Allocate: "ALLOCATE", Free: "FREE", Launch: "LAUNCH", Done: "DONE", Idle: "IDLE", Failed: "FAILED",
	Exit: "EXIT", Holds: "HOLDS", Usage: "USAGE", Context: "CONTEXT",
	Welcome: "WELCOME", Granted: "GRANTED", Refused: "REFUSED", Permit: "PERMIT", End: "END", Reject: "REJECT",
}

// String names the type.
func (t Type) String() string {
	if s, ok := typeNames[t]; ok {
		return s
	}
	return fmt.Sprintf("Type(%d)", uint32(t))
}

// Started is the last argument of a Launch that a credit let start without a permit.
const Started = 1

// Tells is the second argument of a Hello of a process that sends Context, and of the Welcome
// of an agent that knows it.
const Tells = 1

// ofProcess reports whether a process sends messages of this type.
func (t Type) ofProcess() bool { return t >= Hello && t < lastOfProcess }

// ofAgent reports whether the agent sends messages of this type.
func (t Type) ofAgent() bool { return t >= Welcome && t < lastOfAgent }

// Reason says why the agent rejects a process.
type Reason uint64

// Reasons.
const (
	_            Reason = iota
	WrongVersion        // the agent speaks another version
	NotGreeted          // the first message is not HELLO, or a later one is
	TooMany             // more than MaxUnanswered requests, or too many processes in the share
	WrongMessage        // a message that cannot be decoded
	ShareEnded          // the share has ended
	lastReason
)

// String names the reason.
func (r Reason) String() string {
	if r == 0 || r >= lastReason {
		return fmt.Sprintf("Reason(%d)", uint64(r))
	}
	return [...]string{"", "another version", "no greeting", "too many requests or processes", "wrong message", "the share has ended"}[r]
}

// Args is the number of further words of a message.
const Args = 5

// Message is one message. Fields that its type does not use are zero.
//
//	+---------------+---------------+
//	|     type      |      GPU      |  0
//	+---------------+---------------+
//	|              ID               |  8
//	+-------------------------------+
//	|             bytes             | 16
//	+-------------------------------+
//	|         arguments 0..4        | 24 .. 63
//	+-------------------------------+
//
// Integers are little endian.
type Message struct {
	Type  Type
	GPU   uint32 // index in the page, 0..MaxGPUs-1
	ID    uint64 // of a request, chosen by the process
	Bytes uint64 // of memory, 0..MaxBytes
	Arg   [Args]uint64
}

const (
	offsetGPU   = 4
	offsetID    = 8
	offsetBytes = 16
	offsetArg   = 24
)

// Parse decodes the message of a process. It fails for a message of another size, of a
// type that processes do not send, or with a field out of range.
func Parse(b []byte) (Message, error) { return parse(b, Type.ofProcess) }

// ParseAnswer decodes a message of the agent. It fails as Parse does.
func ParseAnswer(b []byte) (Message, error) { return parse(b, Type.ofAgent) }

func parse(b []byte, known func(Type) bool) (Message, error) {
	if len(b) != MessageSize {
		return Message{}, fmt.Errorf("wire: message of %d bytes, want %d", len(b), MessageSize)
	}
	m := Message{
		Type:  Type(binary.LittleEndian.Uint32(b)),
		GPU:   binary.LittleEndian.Uint32(b[offsetGPU:]),
		ID:    binary.LittleEndian.Uint64(b[offsetID:]),
		Bytes: binary.LittleEndian.Uint64(b[offsetBytes:]),
	}
	for i := range m.Arg {
		m.Arg[i] = binary.LittleEndian.Uint64(b[offsetArg+8*i:])
	}
	switch {
	case !known(m.Type):
		return Message{}, fmt.Errorf("wire: message of unknown type %d", uint32(m.Type))
	case m.GPU >= MaxGPUs:
		return Message{}, fmt.Errorf("wire: %v for GPU %d, want less than %d", m.Type, m.GPU, MaxGPUs)
	case m.Bytes > MaxBytes:
		return Message{}, fmt.Errorf("wire: %v of %d bytes, want at most %d", m.Type, m.Bytes, uint64(MaxBytes))
	}
	return m, nil
}

// Append appends the encoded message and returns the result.
func (m Message) Append(b []byte) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Type))
	b = binary.LittleEndian.AppendUint32(b, m.GPU)
	b = binary.LittleEndian.AppendUint64(b, m.ID)
	b = binary.LittleEndian.AppendUint64(b, m.Bytes)
	for _, a := range m.Arg {
		b = binary.LittleEndian.AppendUint64(b, a)
	}
	return b
}

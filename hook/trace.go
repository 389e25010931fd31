package hook

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// Sizes and constants of a trace; TRACE.md has the layout.
const (
	HeaderSize   = 64
	RecordSize   = 64
	traceVersion = 1
	traceMagic   = "DXPUTRC\x00"
)

// Kind is the kind of a recorded call.
type Kind uint16

// Kinds of calls.
const (
	KindLaunch Kind = iota + 1
	KindMemset
	KindHtoD
	KindDtoH
	KindDtoD
	KindCopy // of mixed direction, or between host buffers
	KindPrefetch
	KindGraphLaunch
	KindGraphInstantiate
	KindCaptureBegin
	KindCaptureEnd
	KindStreamSync
	KindCtxSync
	KindEventSync
	KindStreamQuery
	KindEventQuery
	KindEventRecord
	KindStreamWaitEvent
	kindEnd
)

var kindNames = [...]string{
	KindLaunch: "kernel launch", KindMemset: "memset", KindHtoD: "copy to device", KindDtoH: "copy to host",
	KindDtoD: "copy on devices", KindCopy: "copy", KindPrefetch: "prefetch", KindGraphLaunch: "graph launch",
	KindGraphInstantiate: "graph instantiation", KindCaptureBegin: "capture begin", KindCaptureEnd: "capture end",
	KindStreamSync: "stream synchronize", KindCtxSync: "context synchronize", KindEventSync: "event synchronize",
	KindStreamQuery: "stream query", KindEventQuery: "event query", KindEventRecord: "event record",
	KindStreamWaitEvent: "stream wait for event",
}

// String names the kind.
func (k Kind) String() string {
	if k > 0 && k < kindEnd {
		return kindNames[k]
	}
	return fmt.Sprintf("Kind(%d)", uint16(k))
}

// Flags of a recorded call.
type Flags uint16

// Flags.
const (
	FlagCaptured   Flags = 1 << iota // the stream was being captured
	FlagBlocking                     // a synchronous copy or memset
	FlagThread                       // a form for the per-thread default stream
	FlagSerialized                   // a launch that may overlap the previous one
	FlagDiscard                      // a prefetch that discards the contents of memory
)

// Header is the header of a trace.
type Header struct {
	// Start and Wall are one instant, on the clock of the records and in wall time.
	Start          time.Duration
	Wall           time.Time
	Process        uint32
	RTT, NativeRTT time.Duration
}

// Record is one call of the driver.
type Record struct {
	// Start and End are the times of the driver's own function, on CLOCK_MONOTONIC.
	Start, End time.Duration
	// Stream is the handle of the stream; 1 and 2 are the legacy and the per-thread
	// default stream, 0 is none.
	Stream uint64
	// Arg is the number of bytes of a copy or memset, else the handle of the
	// function, graph, event or context.
	Arg    uint64
	Thread uint32
	Kind   Kind
	Flags  Flags
	Result int32 // CUresult
	// Count is the number of blocks of a launch, nodes of a graph, copies of a
	// batch, or ranges that a prefetch moves to the device.
	Count uint32
	// Injected is the delay inserted before the call into its stream.
	Injected time.Duration
	Context  uint64
}

// ErrTrace is returned for a stream that is not a trace of this version.
var ErrTrace = errors.New("hook: not a trace of driver calls")

// ParseHeader parses the first HeaderSize bytes of a trace.
func ParseHeader(b []byte) (Header, error) {
	if len(b) < HeaderSize || string(b[:8]) != traceMagic {
		return Header{}, ErrTrace
	}
	le := binary.LittleEndian
	if v, size := le.Uint32(b[8:]), le.Uint32(b[12:]); v != traceVersion || size != RecordSize {
		return Header{}, fmt.Errorf("%w: version %d with records of %d bytes", ErrTrace, v, size)
	}
	return Header{
		Start: time.Duration(le.Uint64(b[16:])), Wall: time.Unix(0, int64(le.Uint64(b[24:]))), Process: le.Uint32(b[32:]),
		RTT: time.Duration(le.Uint64(b[40:])), NativeRTT: time.Duration(le.Uint64(b[48:])),
	}, nil
}

// ParseRecord parses one record of RecordSize bytes.
func ParseRecord(b []byte) (Record, error) {
	if len(b) < RecordSize {
		return Record{}, io.ErrUnexpectedEOF
	}
	le := binary.LittleEndian
	r := Record{
		Start: time.Duration(le.Uint64(b[0:])), End: time.Duration(le.Uint64(b[8:])),
		Stream: le.Uint64(b[16:]), Arg: le.Uint64(b[24:]),
		Thread: le.Uint32(b[32:]), Kind: Kind(le.Uint16(b[36:])), Flags: Flags(le.Uint16(b[38:])),
		Result: int32(le.Uint32(b[40:])), Count: le.Uint32(b[44:]),
		Injected: time.Duration(le.Uint64(b[48:])), Context: le.Uint64(b[56:]),
	}
	if r.Kind == 0 || r.Kind >= kindEnd || r.Start < 0 || r.End < r.Start || r.Injected < 0 {
		return Record{}, fmt.Errorf("%w: damaged record", ErrTrace)
	}
	return r, nil
}

// ReadTrace calls each with every record of a trace, in the order in which the calls
// returned, and stops at its first error. It returns io.ErrUnexpectedEOF for a trace
// that ends within a record, after the records before it.
func ReadTrace(r io.Reader, each func(Record) error) (Header, error) {
	in := bufio.NewReaderSize(r, 1<<16)
	var b [RecordSize]byte
	if _, err := io.ReadFull(in, b[:HeaderSize]); err != nil {
		return Header{}, fmt.Errorf("%w: %w", ErrTrace, err)
	}
	h, err := ParseHeader(b[:])
	if err != nil {
		return Header{}, err
	}
	for n := 0; ; n++ {
		if _, err := io.ReadFull(in, b[:]); errors.Is(err, io.EOF) {
			return h, nil
		} else if err != nil {
			return h, fmt.Errorf("hook: record %d: %w", n, err)
		}
		rec, err := ParseRecord(b[:])
		if err != nil {
			return h, fmt.Errorf("record %d: %w", n, err)
		}
		if err := each(rec); err != nil {
			return h, err
		}
	}
}

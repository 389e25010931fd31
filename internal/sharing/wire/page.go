package wire

import (
	"encoding/binary"
	"fmt"
	"time"
)

// PageSize is the size of the page of a share in bytes.
const PageSize = 4096

// magic is the first word of a page: "DXSH" in memory.
const magic = 0x48535844

// Offsets in a page. Words at OffsetSequence and OffsetHeartbeat are written on their own,
// the others between two changes of the sequence.
const (
	offsetMagic     = 0  // 4 bytes
	offsetVersion   = 4  // 4
	OffsetSequence  = 8  // 4: odd while the agent changes the page
	offsetFlags     = 12 // 4
	OffsetHeartbeat = 16 // 8: CLOCK_MONOTONIC in nanoseconds
	offsetSilence   = 24 // 8: nanoseconds
	offsetGrace     = 32 // 8: nanoseconds
	offsetAgent     = 40 // 8
	offsetCount     = 48 // 4
	offsetProcesses = 52 // 4, then 8 of zero
	offsetGPUs      = 64
	entrySize       = 128
	pageEnd         = offsetGPUs + MaxGPUs*entrySize

	entryUUID    = 0  // 16
	entryDomain  = 16 // 4
	entryAddress = 20 // 4: bus << 8 | device << 3 | function
	entryGate    = 24 // 4
	entryWindow  = 28 // 4
	entryLimit   = 32 // 8: bytes
	entryUsed    = 40 // 8: bytes
	entryCompute = 48 // 4: parts per million
	entryCredit  = 52 // 4, then 72 of zero
)

// Flags of a page.
const (
	flagClosed = 1 << 0
	flagEnd    = 1 << 1
	flagsKnown = flagClosed | flagEnd
)

// Gate says what a launch needs.
type Gate uint32

// States of a gate. A library treats an unknown one as Held.
const (
	Open  Gate = iota // nothing
	Asked             // a permit
	Held              // a permit, and the agent gives none until it resumes the share
	gates
)

// String names the state.
func (g Gate) String() string {
	if g >= gates {
		return fmt.Sprintf("Gate(%d)", uint32(g))
	}
	return [...]string{"open", "asked", "held"}[g]
}

// Page is what the agent tells all processes of a share.
type Page struct {
	Closed  bool          // without an agent launches wait; otherwise they go on
	End     bool          // the processes are to end
	Grace   time.Duration // that they have, from the start of End
	Silence time.Duration // a heartbeat older than this one says that the agent is gone
	Agent   uint64        // changes with each start of the agent
	GPUs    []GPU         // at most MaxGPUs

	Processes uint32 // of the share; without the agent they divide what is left
}

// GPU is the part of the share on one GPU.
type GPU struct {
	UUID    [16]byte // of the GPU or MIG instance; zero: not known
	Domain  uint32   // PCI domain
	Address uint16   // PCI bus, device and function: bus << 8 | device << 3 | function
	Gate    Gate
	Window  uint32 // launches that a process may have in flight, at least 1
	Limit   uint64 // of the share's memory, in bytes
	Used    uint64 // by all processes of the share, in bytes; above Limit after a shrink
	Compute uint32 // limit of the compute, in parts per million
	Credit  uint32 // launches that a process may have in flight without asking for permits
}

// Encode writes the page to b, without sequence and heartbeat, which it leaves alone. It
// panics if there are more than MaxGPUs.
func (p *Page) Encode(b *[PageSize]byte) {
	if len(p.GPUs) > MaxGPUs {
		panic("wire: page with too many GPUs")
	}
	le := binary.LittleEndian
	le.PutUint32(b[offsetMagic:], magic)
	le.PutUint32(b[offsetVersion:], Version)
	var flags uint32
	if p.Closed {
		flags |= flagClosed
	}
	if p.End {
		flags |= flagEnd
	}
	le.PutUint32(b[offsetFlags:], flags)
	le.PutUint64(b[offsetSilence:], uint64(p.Silence))
	le.PutUint64(b[offsetGrace:], uint64(p.Grace))
	le.PutUint64(b[offsetAgent:], p.Agent)
	le.PutUint32(b[offsetCount:], uint32(len(p.GPUs)))
	clear(b[offsetCount+4:])
	le.PutUint32(b[offsetProcesses:], p.Processes)
	for i := range p.GPUs {
		p.GPUs[i].encode(b[offsetGPUs+i*entrySize:][:entrySize])
	}
}

func (g *GPU) encode(b []byte) {
	le := binary.LittleEndian
	copy(b[entryUUID:], g.UUID[:])
	le.PutUint32(b[entryDomain:], g.Domain)
	le.PutUint32(b[entryAddress:], uint32(g.Address))
	le.PutUint32(b[entryGate:], uint32(g.Gate))
	le.PutUint32(b[entryWindow:], g.Window)
	le.PutUint64(b[entryLimit:], g.Limit)
	le.PutUint64(b[entryUsed:], g.Used)
	le.PutUint32(b[entryCompute:], g.Compute)
	le.PutUint32(b[entryCredit:], g.Credit)
}

// ParsePage decodes a page. It fails for a page of another size, version or count, or with
// a field out of range.
func ParsePage(b []byte) (Page, error) {
	if len(b) != PageSize {
		return Page{}, fmt.Errorf("wire: page of %d bytes, want %d", len(b), PageSize)
	}
	le := binary.LittleEndian
	flags, n := le.Uint32(b[offsetFlags:]), le.Uint32(b[offsetCount:])
	silence, grace := le.Uint64(b[offsetSilence:]), le.Uint64(b[offsetGrace:])
	switch {
	case le.Uint32(b[offsetMagic:]) != magic:
		return Page{}, fmt.Errorf("wire: page begins with %#x, want %#x", le.Uint32(b[offsetMagic:]), magic)
	case le.Uint32(b[offsetVersion:]) != Version:
		return Page{}, fmt.Errorf("wire: page of version %d, want %d", le.Uint32(b[offsetVersion:]), Version)
	case n > MaxGPUs:
		return Page{}, fmt.Errorf("wire: page with %d GPUs, want at most %d", n, MaxGPUs)
	case flags&^flagsKnown != 0:
		return Page{}, fmt.Errorf("wire: page with unknown flags %#x", flags)
	case silence > uint64(maxDuration) || grace > uint64(maxDuration):
		return Page{}, fmt.Errorf("wire: page with times of %d and %d ns, want at most %v", silence, grace, maxDuration)
	}
	p := Page{
		Closed: flags&flagClosed != 0, End: flags&flagEnd != 0,
		Silence: time.Duration(silence), Grace: time.Duration(grace), Agent: le.Uint64(b[offsetAgent:]),
		Processes: le.Uint32(b[offsetProcesses:]),
	}
	for i := range int(n) {
		g, err := parseGPU(b[offsetGPUs+i*entrySize:][:entrySize])
		if err != nil {
			return Page{}, fmt.Errorf("wire: GPU %d of the page: %w", i, err)
		}
		p.GPUs = append(p.GPUs, g)
	}
	return p, nil
}

// maxDuration bounds the times of a page.
const maxDuration = 24 * time.Hour

func parseGPU(b []byte) (GPU, error) {
	le := binary.LittleEndian
	g := GPU{
		UUID: [16]byte(b[entryUUID:]), Domain: le.Uint32(b[entryDomain:]), Address: uint16(le.Uint32(b[entryAddress:])),
		Gate: Gate(le.Uint32(b[entryGate:])), Window: le.Uint32(b[entryWindow:]),
		Limit: le.Uint64(b[entryLimit:]), Used: le.Uint64(b[entryUsed:]), Compute: le.Uint32(b[entryCompute:]),
		Credit: le.Uint32(b[entryCredit:]),
	}
	switch {
	case le.Uint32(b[entryAddress:]) > 0xffff:
		return GPU{}, fmt.Errorf("PCI address %#x, want at most 0xffff", le.Uint32(b[entryAddress:]))
	case g.Gate >= gates:
		return GPU{}, fmt.Errorf("unknown gate %d", uint32(g.Gate))
	case g.Limit > MaxBytes || g.Used > MaxBytes:
		return GPU{}, fmt.Errorf("%d of %d bytes, want at most %d", g.Used, g.Limit, uint64(MaxBytes))
	case g.Compute > 1_000_000:
		return GPU{}, fmt.Errorf("compute of %d parts per million", g.Compute)
	}
	return g, nil
}

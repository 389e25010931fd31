package vfiouser

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"os"
	"time"

	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// Defaults and bounds of Config.
const (
	// DefaultDeadline is a second below QEMU's x-msg-timeout (5000 ms).
	DefaultDeadline = 4 * time.Second
	// DefaultMaxOpen bounds the accesses that the handler holds. QEMU has one
	// read open at a time, beside posted writes.
	DefaultMaxOpen = 256
	// DefaultMaxDMA bounds the DMA messages that wait to be sent.
	DefaultMaxDMA = 1024
	// DefaultMaxMaps is the specification's default of max_dma_maps.
	DefaultMaxMaps = 65535
	// DefaultMaxMemory bounds the address space for guest memory: 32 such
	// connections leave a quarter of a process's 128 TiB.
	DefaultMaxMemory = 3 << 40
)

// Polling bounds the time for which a reader polls its socket before it sleeps. The
// zero value does not poll.
type Polling = reader.Polling

// Region describes one region of the device.
type Region struct {
	Size  uint64 // bytes; 0 where the device has no such region
	Flags uint32 // RegionFlagRead, RegionFlagWrite
	// File, where set, is memory that the VMM may map at FileOffset, all of
	// it or the Sparse areas only. QEMU posts no writes, to any region, when
	// one region can be mapped. The file stays the caller's and open.
	File       *os.File
	FileOffset uint64
	Sparse     []SparseArea
}

// Config describes the device and its service.
type Config struct {
	// Regions: BARs 0 to 5, ROM, configuration space (RegionConfig: 256 or
	// 4096 bytes), VGA. The size of a BAR is a power of two: QEMU aborts
	// otherwise.
	Regions [NumRegions]Region
	// IRQs are the vectors of INTx, MSI, MSI-X, ERR and REQ. QEMU stops the
	// VM when ERR fires.
	IRQs [NumIRQs]uint32
	// Resettable reports that DEVICE_RESET works.
	Resettable bool
	// WriteMultiple lets QEMU put up to 200 posted writes into one message
	// when more than 1024 wait.
	WriteMultiple bool
	// HideMSIXAtRealize reports the MSI-X capability as vendor-specific (ID
	// 0x09) in the first read of the configuration space from its start of
	// each connection. QEMU decides by this read whether to
	// virtualise MSI-X. Later reads are truthful, so the guest finds MSI-X;
	// its table then arrives as ordinary accesses and the device interrupts
	// with SignalMSI. QEMU 11 aborts on hot-unplug of a device whose MSI-X it
	// virtualises.
	HideMSIXAtRealize bool

	// Deadline bounds the time from the arrival of an access to its answer
	// and must lie below the VMM's own timeout. It also bounds the wait of a
	// reply for a VMM that does not read its socket, and the time from a
	// connection to its VERSION; then the server closes
	// the connection. 0 means DefaultDeadline.
	Deadline time.Duration
	// ErrorReplies answers a region access that the handler fails with an error reply. By
	// default it ends as on a PCI bus: a read with all ones, a write with
	// success. rust-vmm's client needs that: it ignores the error flag and waits
	// for data that an error reply does not have.
	ErrorReplies bool
	// MaxData is the longest region access in bytes, at least the size of
	// the configuration space. 0 means DefaultMaxData.
	MaxData uint32
	// MaxOpen bounds the accesses that the handler has not answered; at the
	// bound the server reads no more. Expired accesses do not count. 0 means
	// DefaultMaxOpen.
	MaxOpen int
	// MaxDMA bounds the DMA messages that wait. 0 means DefaultMaxDMA.
	MaxDMA int
	// MaxMaps bounds the mappings. 0 means DefaultMaxMaps. Mappings of one file
	// share one mapping of the process.
	MaxMaps int
	// MaxMemory bounds the address space for the files of guest memory, in bytes.
	// 0 means DefaultMaxMemory.
	MaxMemory uint64

	// Journal, if set, is memory of JournalSize bytes that outlives the process, such
	// as a shared memfd: the access that waits for its answer, for Server.Resume.
	Journal []byte

	// Polling configures the polling of a connection's reader.
	Polling Polling

	Handler Handler
	// Logger receives the connections' ends and the VMM's errors; nil discards them.
	Logger *slog.Logger
}

// Handler is the device. The server calls its methods from one goroutine for
// each connection, and there is one connection at a time: a method that blocks
// stops the reading of further messages. That is how posted writes exert
// back-pressure; but QEMU then queues them without a bound, and a read behind
// them waits too.
type Handler interface {
	// Connected is called when a VMM has negotiated, before all other methods.
	Connected(c *Conn)
	// Access carries one region access. The handler calls Reply or Fail
	// exactly once, during the call or later, from any goroutine, even when
	// the connection has ended meanwhile. It must not wait for a DMA message
	// before it answers: the server sends none before.
	Access(c *Conn, a *Access)
	// Reset resets the device and calls done exactly once, from any
	// goroutine. The deadline of an access applies.
	Reset(c *Conn, done func(error))
	// DMAMap reports a new mapping, already in the table. An error removes it
	// and goes to the VMM.
	DMAMap(c *Conn, m Mapping) error
	// MapRefused reports memory of the VMM that the device cannot access, and why: a file
	// that cannot be mapped, a full table, or the error of DMAMap. A guest behind an
	// emulated IOMMU can cause any number of calls.
	MapRefused(c *Conn, m Mapping, err error)
	// DMAUnmap reports a removed mapping: accesses to it have ended.
	DMAUnmap(c *Conn, m Mapping)
	// IRQ reports that the VMM has changed the state of interrupt vectors.
	IRQ(c *Conn, change IRQChange)
	// Disconnected is called after Connected when the connection has ended:
	// mappings and interrupts are gone. err is nil after an orderly close by
	// the VMM. The device keeps its state for the next connection.
	Disconnected(c *Conn, err error)
}

// NopHandler is a handler to embed: its Access fails every access, its Reset
// succeeds, and its other methods do nothing.
type NopHandler struct{}

// Connected implements Handler.
func (NopHandler) Connected(*Conn) {}

// Access implements Handler.
func (NopHandler) Access(_ *Conn, a *Access) { a.Fail(os.ErrInvalid) }

// Reset implements Handler.
func (NopHandler) Reset(_ *Conn, done func(error)) { done(nil) }

// DMAMap implements Handler.
func (NopHandler) DMAMap(*Conn, Mapping) error { return nil }

// MapRefused implements Handler.
func (NopHandler) MapRefused(*Conn, Mapping, error) {}

// DMAUnmap implements Handler.
func (NopHandler) DMAUnmap(*Conn, Mapping) {}

// IRQ implements Handler.
func (NopHandler) IRQ(*Conn, IRQChange) {}

// Disconnected implements Handler.
func (NopHandler) Disconnected(*Conn, error) {}

// maxVectors is PCI's limit for each interrupt index.
var maxVectors = [NumIRQs]uint32{IRQINTx: 1, IRQMSI: 32, IRQMSIX: 2048, IRQErr: 1, IRQReq: 1}

// complete checks the configuration and fills in defaults.
func (c Config) complete() (Config, error) {
	if c.Handler == nil {
		return c, errors.New("vfiouser: config: no handler")
	}
	if n := c.Regions[RegionConfig].Size; n != 256 && n != 4096 {
		return c, fmt.Errorf("vfiouser: config: configuration space of %d bytes, want 256 or 4096", n)
	}
	for i, r := range c.Regions {
		if uint32(i) < RegionROM && bits.OnesCount64(r.Size) > 1 {
			return c, fmt.Errorf("vfiouser: config: BAR %d of %#x bytes is not a power of two", i, r.Size)
		}
		if r.Flags&^(RegionFlagRead|RegionFlagWrite) != 0 {
			return c, fmt.Errorf("vfiouser: config: region %d: flags %#x", i, r.Flags)
		}
		if len(r.Sparse) > maxSparseAreas {
			return c, fmt.Errorf("vfiouser: config: region %d: %d sparse areas, at most %d", i, len(r.Sparse), maxSparseAreas)
		}
	}
	for i, n := range c.IRQs {
		if n > maxVectors[i] {
			return c, fmt.Errorf("vfiouser: config: %d vectors of interrupt index %d, at most %d", n, i, maxVectors[i])
		}
	}
	if n := len(c.Journal); n != 0 && n != JournalSize {
		return c, fmt.Errorf("vfiouser: config: journal of %d bytes, want %d", n, JournalSize)
	}
	if c.Deadline < 0 || c.MaxOpen < 0 || c.MaxDMA < 0 || c.MaxMaps < 0 {
		return c, errors.New("vfiouser: config: negative bound")
	}
	c.Deadline = cmp.Or(c.Deadline, DefaultDeadline)
	c.MaxData = cmp.Or(c.MaxData, DefaultMaxData)
	c.MaxOpen = cmp.Or(c.MaxOpen, DefaultMaxOpen)
	c.MaxDMA = cmp.Or(c.MaxDMA, DefaultMaxDMA)
	c.MaxMaps = cmp.Or(c.MaxMaps, DefaultMaxMaps)
	c.MaxMemory = cmp.Or(c.MaxMemory, DefaultMaxMemory)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	// QEMU crashes when it cannot read the configuration space in one access, and
	// refuses a limit above its own 1 MiB.
	if uint64(c.MaxData) < c.Regions[RegionConfig].Size || c.MaxData > DefaultMaxData {
		return c, fmt.Errorf("vfiouser: config: MaxData of %d bytes, want %d to %d", c.MaxData, c.Regions[RegionConfig].Size, DefaultMaxData)
	}
	return c, nil
}

// maxMessage bounds a message from the peer: data of the agreed length, or one
// of the other payloads, of which the longest is that of VERSION.
func maxMessage(maxData uint32) int {
	other := max(versionSize+maxVersionJSON+1, multiCountSize+MaxMulti*multiEntrySize)
	return HeaderSize + max(regionAccessSize+int(maxData), other)
}

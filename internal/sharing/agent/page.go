//go:build linux

package agent

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// page is the page of a share in shared memory. The agent has the only writable mapping
// that there can be.
type page struct {
	memory   []byte // mapped
	file     *os.File
	encoded  [wire.PageSize]byte
	sequence uint32
}

// newPage makes a page of zeros. Its file is read-only and sealed.
func newPage() (*page, error) {
	fd, err := unix.MemfdCreate("dxpu-share", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	writable := os.NewFile(uintptr(fd), "page")
	defer writable.Close()
	if err := writable.Truncate(wire.PageSize); err != nil {
		return nil, err
	}
	memory, err := unix.Mmap(fd, 0, wire.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_FUTURE_WRITE | unix.F_SEAL_SEAL
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seals); err != nil {
		return nil, errors.Join(os.NewSyscallError("fcntl(F_ADD_SEALS)", err), unix.Munmap(memory))
	}
	file, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDONLY, 0)
	if err != nil {
		return nil, errors.Join(err, unix.Munmap(memory))
	}
	return &page{memory: memory, file: file}, nil
}

func (p *page) close() error { return errors.Join(p.file.Close(), unix.Munmap(p.memory)) }

// word returns an aligned word of the page.
func (p *page) word(offset int) *uint32 { return (*uint32)(unsafe.Pointer(&p.memory[offset])) }

// set changes the page. Readers see the old or the new state, by the sequence.
func (p *page) set(w *wire.Page) {
	before := p.encoded
	w.Encode(&p.encoded)
	p.sequence++
	atomic.StoreUint32(p.word(wire.OffsetSequence), p.sequence)
	for at := 0; at < wire.PageSize; at += 4 {
		if [4]byte(p.encoded[at:]) != [4]byte(before[at:]) {
			atomic.StoreUint32(p.word(at), *(*uint32)(unsafe.Pointer(&p.encoded[at])))
		}
	}
	p.sequence++
	atomic.StoreUint32(p.word(wire.OffsetSequence), p.sequence)
}

// beat writes the heartbeat.
func (p *page) beat(now int64) {
	atomic.StoreUint64((*uint64)(unsafe.Pointer(&p.memory[wire.OffsetHeartbeat])), uint64(now))
}

// monotonic returns the time of heartbeats.
func monotonic() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // Linux has this clock
	return now.Nano()
}

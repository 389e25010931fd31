package vfiouser

import (
	"fmt"
	"math"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/rights"
)

// maxViews bounds the views of one connection: a thirty-second of the mappings that
// Linux allows to a process (vm.max_map_count), because a host proxy has up to 32
// connections. QEMU has a file for each of at most 384 memory backends.
const maxViews = 1024

// view is a mapping of a file, or of a part of one, in this process. The mappings
// of guest memory that lie in it share it: behind an emulated IOMMU there is one for
// each page of a guest's buffers.
type view struct {
	file  fileID
	start uint64 // of bytes in the file
	bytes []byte
	users int
}

// fileID identifies a file, and whether its views are writable.
type fileID struct {
	device, inode uint64
	writable      bool
}

// files holds the views of the files behind the guest memory of one connection. Its
// owner guards it.
//
// Invariant: each view has users.
type files struct {
	views map[fileID][]*view
	count int
	left  uint64 // bytes that may still be mapped
}

func newFiles(maxBytes uint64) files {
	return files{views: map[fileID][]*view{}, left: maxBytes}
}

// filePart is a part of a file that a peer wants to be mapped.
type filePart struct {
	fd           int
	file         fileID
	length, page uint64 // of the file
	offset, size uint64
}

// newPart checks the file: it must be long enough now; when the peer shortens it later,
// guard catches the fault.
func newPart(fd int, offset, size uint64, writable bool) (filePart, error) {
	length, page, id, err := identify(fd, writable)
	switch {
	case err != nil:
		return filePart{}, err
	case size > length || offset > length-size:
		return filePart{}, fmt.Errorf("the file has %d bytes: %w", length, unix.EINVAL)
	}
	return filePart{fd, id, length, page, offset, size}, nil
}

// find returns a view that holds a part, or nil.
func (f *files) find(p *filePart) *view {
	// Where it is allowed, a writable view serves readers too.
	for _, id := range []fileID{{p.file.device, p.file.inode, true}, p.file} {
		for _, v := range f.views[id] {
			if p.offset >= v.start && p.offset+p.size <= v.start+uint64(len(v.bytes)) {
				return v
			}
		}
	}
	return nil
}

// take returns the bytes of a part, and the view that holds them, which the caller
// releases.
func (f *files) take(p *filePart) (*view, []byte, error) {
	if v := f.find(p); v != nil {
		v.users++
		return v, v.part(p.offset, p.size), nil
	}
	start, end := uint64(0), roundUp(p.length, p.page)
	if end > f.left { // a part of a file that is mostly a hole
		start, end = p.offset&^(p.page-1), roundUp(p.offset+p.size, p.page)
	}
	v, err := f.mmap(p.fd, p.file, start, end-start)
	if err != nil {
		return nil, nil, err
	}
	return v, v.part(p.offset, p.size), nil
}

func (f *files) mmap(fd int, id fileID, start, n uint64) (*view, error) {
	switch {
	case f.count == maxViews:
		return nil, fmt.Errorf("the mappings belong to more than %d files: %w", maxViews, unix.ENOSPC)
	case n > f.left:
		return nil, fmt.Errorf("%d bytes more than may be mapped: %w", n-f.left, unix.ENOMEM)
	}
	prot := unix.PROT_READ
	if id.writable {
		prot |= unix.PROT_WRITE
	}
	// No reservation: the peer has reserved its huge pages itself.
	b, err := unix.Mmap(fd, int64(start), int(n), prot, unix.MAP_SHARED|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mmap: %w", err)
	}
	v := &view{file: id, start: start, bytes: b, users: 1}
	f.views[id] = append(f.views[id], v)
	f.count++
	f.left -= n
	return v, nil
}

func (v *view) part(offset, size uint64) []byte {
	at := offset - v.start
	return v.bytes[at : at+size : at+size]
}

// release ends a use of a view; nil is none. The last one unmaps it.
func (f *files) release(v *view) {
	if v == nil {
		return
	}
	if v.users--; v.users > 0 {
		return
	}
	f.count--
	f.left += uint64(len(v.bytes))
	list := f.views[v.file]
	for i := range list {
		if list[i] == v {
			list[i] = list[len(list)-1]
			list[len(list)-1] = nil
			list = list[:len(list)-1]
			break
		}
	}
	if f.views[v.file] = list; len(list) == 0 {
		delete(f.views, v.file)
	}
	_ = unix.Munmap(v.bytes) // fails only for a slice that is not mapped
}

// identify checks that fd is a file of memory that may be mapped, and returns its
// length, its page size and its identity.
func identify(fd int, writable bool) (length, page uint64, id fileID, err error) {
	if !rights.IsMemory(fd) { // a page of another file may be absent for as long as the peer likes
		return 0, 0, id, fmt.Errorf("not a file of tmpfs or hugetlbfs: give the VMM a memory-backend-memfd: %w", unix.ENODEV)
	}
	mode, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	if err != nil {
		return 0, 0, id, fmt.Errorf("fcntl: %w", err)
	}
	if access := mode & unix.O_ACCMODE; writable && access != unix.O_RDWR || access == unix.O_WRONLY {
		return 0, 0, id, fmt.Errorf("the descriptor does not permit the access: %w", unix.EACCES)
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, 0, id, fmt.Errorf("fstat: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(fd, &fs); err != nil {
		return 0, 0, id, fmt.Errorf("fstatfs: %w", err)
	}
	page = uint64(fs.Bsize) // of hugetlbfs, the size of its pages
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFREG:
		return 0, 0, id, fmt.Errorf("not a regular file: %w", unix.ENODEV)
	case st.Size < 0 || uint64(st.Size) > math.MaxInt-page || page == 0 || page&(page-1) != 0:
		return 0, 0, id, fmt.Errorf("a file of %d bytes in pages of %d: %w", st.Size, page, unix.EINVAL)
	}
	return uint64(st.Size), page, fileID{st.Dev, st.Ino, writable}, nil
}

// roundUp rounds up to a multiple of a power of two.
func roundUp(n, to uint64) uint64 { return (n + to - 1) &^ (to - 1) }

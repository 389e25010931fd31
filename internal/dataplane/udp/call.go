package udp

import (
	"encoding/binary"
	"net"
	"net/netip"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// call holds the structures of a recvmsg or sendmsg, so that a system call does
// not allocate.
type call struct {
	msg     unix.Msghdr
	iov     []unix.Iovec
	name    unix.RawSockaddrAny
	namelen uint32
	oob     []byte
	flags   uintptr
	scope   uint32 // of the last address that had one
	zone    string // name of scope

	n     int
	errno unix.Errno // 0: none
}

// set prepares a message with the bytes of parts, of which some may be empty.
func (c *call) set(parts [][]byte, oob []byte, namelen uint32) {
	c.iov = c.iov[:0]
	for _, b := range parts {
		if len(b) > 0 {
			c.iov = append(c.iov, unix.Iovec{Base: unsafe.SliceData(b)})
			c.iov[len(c.iov)-1].SetLen(len(b))
		}
	}
	c.msg = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&c.name)), Namelen: namelen, Iov: unsafe.SliceData(c.iov)}
	c.msg.SetIovlen(len(c.iov))
	if len(oob) > 0 {
		c.msg.Control = unsafe.SliceData(oob)
		c.msg.SetControllen(len(oob))
	}
}

// at makes a call that does not wait, without involving the Go scheduler.
func (c *call) at(trap, fd uintptr) {
	for {
		n, _, errno := unix.RawSyscall(trap, fd, uintptr(unsafe.Pointer(&c.msg)), c.flags)
		if c.n, c.errno = int(n), errno; errno != unix.EINTR {
			return
		}
	}
}

// blocking makes a call that may wait.
func (c *call) blocking(trap, fd uintptr) {
	for {
		n, _, errno := unix.Syscall(trap, fd, uintptr(unsafe.Pointer(&c.msg)), c.flags)
		if c.n, c.errno = int(n), errno; errno != unix.EINTR {
			return
		}
	}
}

// Offsets in a sockaddr_in (family, port, address) and a sockaddr_in6 (family,
// port, flow, address, scope); port and address are in network order.
const (
	sockPort  = 2
	sockAddr4 = 4
	sockAddr6 = 8
	sockScope = 24
)

func (c *call) bytes() *[unix.SizeofSockaddrAny]byte {
	return (*[unix.SizeofSockaddrAny]byte)(unsafe.Pointer(&c.name))
}

// address sets the destination of a message, for an IPv6 socket as a mapped
// address if it is of IPv4. It returns false if the socket cannot reach it.
func (c *call) address(to netip.AddrPort, ip4 bool) bool {
	b := c.bytes()
	clear(b[:])
	addr := to.Addr().Unmap()
	switch {
	case ip4 && addr.Is4():
		binary.NativeEndian.PutUint16(b[:], unix.AF_INET)
		*(*[4]byte)(b[sockAddr4:]) = addr.As4()
		c.namelen = unix.SizeofSockaddrInet4
	case !ip4 && addr.IsValid():
		binary.NativeEndian.PutUint16(b[:], unix.AF_INET6)
		*(*[16]byte)(b[sockAddr6:]) = addr.As16()
		binary.NativeEndian.PutUint32(b[sockScope:], scopeOf(addr.Zone()))
		c.namelen = unix.SizeofSockaddrInet6
	default:
		return false
	}
	binary.BigEndian.PutUint16(b[sockPort:], to.Port())
	return true
}

// sender returns the source of a message.
func (c *call) sender() (netip.AddrPort, bool) {
	b := c.bytes()
	if c.msg.Namelen < sockAddr4 {
		return netip.AddrPort{}, false
	}
	port := binary.BigEndian.Uint16(b[sockPort:])
	switch binary.NativeEndian.Uint16(b[:]) {
	case unix.AF_INET:
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[sockAddr4:])), port), true
	case unix.AF_INET6:
		addr := netip.AddrFrom16([16]byte(b[sockAddr6:])).Unmap()
		if scope := binary.NativeEndian.Uint32(b[sockScope:]); scope != 0 && addr.Is6() {
			addr = addr.WithZone(c.zoneOf(scope))
		}
		return netip.AddrPortFrom(addr, port), true
	}
	return netip.AddrPort{}, false
}

// scopeOf returns the number of the interface that the zone of a link-local
// address names.
func scopeOf(zone string) uint32 {
	if zone == "" {
		return 0
	}
	if i, err := net.InterfaceByName(zone); err == nil {
		return uint32(i.Index)
	}
	n, _ := strconv.ParseUint(zone, 10, 32) // 0 if the interface is gone
	return uint32(n)
}

// zoneOf names the zone, as the addresses of package net do.
func (c *call) zoneOf(scope uint32) string {
	if c.scope != scope || c.zone == "" {
		c.scope, c.zone = scope, strconv.FormatUint(uint64(scope), 10)
		if i, err := net.InterfaceByIndex(int(scope)); err == nil {
			c.zone = i.Name
		}
	}
	return c.zone
}

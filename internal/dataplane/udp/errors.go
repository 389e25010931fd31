package udp

import (
	"encoding/binary"
	"errors"
	"iter"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// ErrRefused is returned by Read and Poll when hosts have refused datagrams of this
// socket: no process has the port. Reader.Refused names them.
var ErrRefused = errors.New("udp: a host has no socket at the port")

const (
	// maxReports bounds how many reports of the network one Read processes.
	maxReports = 16
	// maxAttempts bounds how often one Read tries to receive a datagram while reports
	// arrive: the kernel returns each as the error of one call, before any data.
	maxAttempts = 4
)

// isReport reports whether an error of a call may concern an earlier datagram: the
// network has reported it as undeliverable (IP_RECVERR, ip(7)).
func isReport(e unix.Errno) bool {
	return e == unix.ECONNREFUSED || e == unix.EHOSTUNREACH || e == unix.ENETUNREACH || e == unix.EACCES || e == unix.EPROTO || e == unix.EMSGSIZE
}

// Refused returns the destinations whose hosts have refused datagrams, after
// ErrRefused. Such a report is not authenticated: an attacker who knows the addresses
// and ports can make one. The slice is valid until the next Read.
func (r *Reader) Refused() []netip.AddrPort { return r.refused }

// readBesideReports is read while the error queue may have reports. Anyone who knows the
// addresses can forge them at any rate, so they must not keep the caller from the data.
func (r *Reader) readBesideReports(fd uintptr) (batch []byte, segment int, from netip.AddrPort, err error) {
	if !r.dataFirst && r.takeReports(fd) {
		return nil, 0, from, ErrRefused
	}
	flags := r.call.flags
	r.call.flags = unix.MSG_DONTWAIT
	r.attempt(fd)
	r.call.flags = flags
	if waiting := r.call.errno == unix.EAGAIN || isReport(r.call.errno); !waiting {
		r.dataFirst = false
		return r.received()
	}
	if r.takeReports(fd) {
		return nil, 0, from, ErrRefused
	}
	r.receive(fd) // waits, unless the caller polls
	if isReport(r.call.errno) && r.takeReports(fd) {
		return nil, 0, from, ErrRefused
	}
	return r.received()
}

// attempt receives until it gets a datagram, there is none, or a report took its place
// too often.
func (r *Reader) attempt(fd uintptr) {
	for range maxAttempts {
		if r.receive(fd); !isReport(r.call.errno) {
			return
		}
	}
}

// takeReports reads the error queue and reports whether a destination has refused a
// datagram.
func (r *Reader) takeReports(fd uintptr) bool {
	r.conn.reported.Store(false)
	r.dataFirst = r.readErrors(fd)
	return r.dataFirst
}

// readErrors takes reports out of the socket's error queue, at most maxReports. It
// reports whether a destination has refused a datagram. Other reports, of routes and
// of sizes, prove nothing about a peer, and the link detects them as losses.
func (r *Reader) readErrors(fd uintptr) bool {
	r.refused = r.refused[:0]
	c := &r.call
	flags := c.flags
	c.flags = unix.MSG_ERRQUEUE | unix.MSG_DONTWAIT
	defer func() { c.flags = flags }()
	for range maxReports {
		c.set([][]byte{r.buf[:1]}, c.oob, unix.SizeofSockaddrAny) // the datagram itself is cut off
		if c.at(unix.SYS_RECVMSG, fd); c.errno != 0 {
			return len(r.refused) > 0
		}
		to, ok := c.sender() // of a report: where the datagram went
		if ok && refusal(c.oob[:c.msg.Controllen]) && !slices.Contains(r.refused, to) {
			r.refused = append(r.refused, to)
		}
	}
	r.conn.reported.Store(true) // there may be more
	return len(r.refused) > 0
}

// refusal reports whether a control message is the report that no process has the
// port of the destination (struct sock_extended_err: error, origin).
func refusal(oob []byte) bool {
	for m := range controls(oob) {
		ip := m.level == unix.IPPROTO_IP && m.kind == unix.IP_RECVERR || m.level == unix.IPPROTO_IPV6 && m.kind == unix.IPV6_RECVERR
		if !ip || len(m.data) < 8 {
			continue
		}
		origin := m.data[4]
		network := origin == unix.SO_EE_ORIGIN_ICMP || origin == unix.SO_EE_ORIGIN_ICMP6
		return network && unix.Errno(binary.NativeEndian.Uint32(m.data)) == unix.ECONNREFUSED
	}
	return false
}

// control is a control message of a call.
type control struct {
	level, kind int32
	data        []byte
}

// controls returns the control messages of a call.
// unix.ParseSocketControlMessage would allocate.
func controls(oob []byte) iter.Seq[control] {
	const header = unix.SizeofCmsghdr
	return func(yield func(control) bool) {
		for len(oob) >= header {
			length := int(binary.NativeEndian.Uint64(oob))
			if length < header || length > len(oob) {
				return
			}
			m := control{int32(binary.NativeEndian.Uint32(oob[8:])), int32(binary.NativeEndian.Uint32(oob[12:])), oob[header:length]}
			if !yield(m) {
				return
			}
			oob = oob[min(len(oob), unix.CmsgSpace(length-header)):]
		}
	}
}

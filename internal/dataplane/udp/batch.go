package udp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

// Reader receives batches. It belongs to one goroutine at a time.
type Reader struct {
	conn    *Conn
	buf     []byte
	whole   [1][]byte // buf
	call    call
	refused []netip.AddrPort // see Refused
	// dataFirst is set after a call that returned reports: while the socket has both, calls
	// return them in turn.
	dataFirst bool
	marked    bool // see Marked
}

// NewReader makes a reader with its own buffer of ReadBuffer bytes.
func (c *Conn) NewReader() *Reader {
	r := &Reader{conn: c, buf: make([]byte, ReadBuffer)}
	r.whole[0] = r.buf
	r.call.oob = make([]byte, 128)
	return r
}

// Read waits for datagrams from one sender. They lie one after another in batch,
// each of segment bytes except the last, which may be shorter. batch is valid
// until the next Read. The error is net.ErrClosed after Close, which is final,
// ErrTimeout when no datagram arrived in time, and ErrRefused when the network
// reported datagrams of this socket as undeliverable; while more datagrams wait, at most
// every other call returns ErrRefused. Any other error concerns one datagram.
func (r *Reader) Read() (batch []byte, segment int, from netip.AddrPort, err error) {
	r.call.flags = 0
	return r.read()
}

// Poll is like Read but does not wait.
func (r *Reader) Poll() (batch []byte, segment int, from netip.AddrPort, err error) {
	r.call.flags = unix.MSG_DONTWAIT
	return r.read()
}

// Sleep waits until a datagram has arrived, one of the sockets from the second on has
// what its Events say, or 50 ms have passed. It replaces the first one by its own.
func (c *Conn) Sleep(sockets []unix.PollFd) {
	fd, ok := c.fd.Use()
	if !ok {
		return // the next Read reports it
	}
	defer c.fd.Done()
	sockets[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
	limit := unix.NsecToTimespec(readTimeout.Nanoseconds())
	if _, err := unix.Ppoll(sockets, &limit, nil); err != nil { // interrupted: nothing is readable
		for i := range sockets {
			sockets[i].Revents = 0
		}
	}
}

func (r *Reader) receive(fd uintptr) {
	r.call.set(r.whole[:], r.call.oob, unix.SizeofSockaddrAny)
	if r.call.flags&unix.MSG_DONTWAIT != 0 {
		r.call.at(unix.SYS_RECVMSG, fd)
	} else {
		r.call.blocking(unix.SYS_RECVMSG, fd)
	}
}

func (r *Reader) read() (batch []byte, segment int, from netip.AddrPort, err error) {
	fd, ok := r.conn.fd.Use()
	if !ok {
		return nil, 0, from, net.ErrClosed
	}
	defer r.conn.fd.Done()
	if !r.conn.reported.Load() {
		if r.receive(fd); !isReport(r.call.errno) {
			return r.received()
		}
		r.conn.reported.Store(true)
	}
	return r.readBesideReports(fd)
}

// received returns the result of a receive.
func (r *Reader) received() (batch []byte, segment int, from netip.AddrPort, err error) {
	c := &r.call
	switch {
	case c.errno == unix.EAGAIN:
		return nil, 0, from, ErrTimeout
	case c.errno != 0:
		return nil, 0, from, fmt.Errorf("udp: read: %w", c.errno)
	}
	from, ok := c.sender()
	if !ok { // a socket that was shut down returns no sender
		return nil, 0, from, net.ErrClosed
	}
	segment = c.n
	var size int
	if size, r.marked = readControls(c.oob[:c.msg.Controllen]); size > 0 {
		segment = size
	}
	st := &r.conn.stat
	st.rxBatches.Add(1)
	st.rxBytes.Add(uint64(c.n))
	if segment > 0 {
		st.rxDatagrams.Add(uint64((c.n + segment - 1) / segment))
	}
	return r.buf[:c.n], segment, from, nil
}

// Marked reports whether a congested network has marked the datagrams of the last batch (CE,
// RFC 3168). The kernel puts no others into one batch with them.
func (r *Reader) Marked() bool { return r.marked }

// Values of the ECN field, the last two bits of the TOS byte or the traffic class (RFC 3168
// section 5).
const (
	ce      = 3 // marked
	ecnMask = 3
)

// readControls reads the control messages of a batch: the datagram size of UDP_GRO, an int32, 0 if
// there is none, and whether IP_TOS, a byte, or IPV6_TCLASS, an int32, has a mark.
func readControls(oob []byte) (segment int, marked bool) {
	for m := range controls(oob) {
		switch {
		case m.level == unix.IPPROTO_UDP && m.kind == unix.UDP_GRO && len(m.data) >= 4:
			segment = int(int32(binary.NativeEndian.Uint32(m.data)))
		case m.level == unix.IPPROTO_IP && m.kind == unix.IP_TOS && len(m.data) >= 1:
			marked = m.data[0]&ecnMask == ce
		case m.level == unix.IPPROTO_IPV6 && m.kind == unix.IPV6_TCLASS && len(m.data) >= 4:
			marked = binary.NativeEndian.Uint32(m.data)&ecnMask == ce
		}
	}
	return segment, marked
}

// Writer sends batches. It belongs to one goroutine at a time.
type Writer struct {
	conn *Conn
	oob  []byte // see ecnControl and segmentControl
	to   netip.AddrPort
	call call // its address is that of to
	gso  offload
	one  [1][]byte // a batch in one part
}

// offload decides whether a writer uses segmentation offload. A refusal may concern
// one destination or pass: a route whose interface cannot compute checksums, a
// setting that an administrator changes. So the writer tries again, each time after
// twice as many datagrams.
type offload struct {
	wait int // datagrams from the last refusal to the next attempt
	left int // of them
}

// After the first refusal the next attempt follows after leastWait datagrams, some
// batches; in the long run one of a million datagrams is refused.
const (
	leastWait = 1024
	mostWait  = 1 << 20
)

// ready reports whether a batch of count datagrams may be segmented by the kernel.
func (o *offload) ready(count int) bool {
	if o.left > 0 {
		o.left = max(0, o.left-count)
		return false
	}
	return count > 1
}

func (o *offload) refused() {
	o.wait = min(max(2*o.wait, leastWait), mostWait)
	o.left = o.wait
}

func (o *offload) accepted() { o.wait = 0 }

// NewWriter makes a writer.
func (c *Conn) NewWriter() *Writer {
	w := &Writer{conn: c, oob: make([]byte, unix.CmsgSpace(4)+unix.CmsgSpace(2))}
	setControl(w.ecnControl(), unix.IPPROTO_IP, unix.IP_TOS, 4)
	setControl(w.segmentControl(), unix.IPPROTO_UDP, unix.UDP_SEGMENT, 2)
	return w
}

// ecnControl is the control message with the ECN field, IP_TOS or IPV6_TCLASS with an int32,
// which is set for each batch. segmentControl is the one of the segmentation offload, whose value is set
// for each batch.
func (w *Writer) ecnControl() []byte     { return w.oob[:unix.CmsgSpace(4)] }
func (w *Writer) segmentControl() []byte { return w.oob[unix.CmsgSpace(4):] }

func setControl(oob []byte, level, kind uint32, size int) {
	binary.NativeEndian.PutUint64(oob, uint64(unix.CmsgLen(size)))
	binary.NativeEndian.PutUint32(oob[8:], level)
	binary.NativeEndian.PutUint32(oob[12:], kind)
}

// controls returns the control messages of a batch.
func (w *Writer) controls(segmented bool, ecn uint8) []byte {
	field := ecn != 0
	if field {
		binary.NativeEndian.PutUint32(w.ecnControl()[unix.SizeofCmsghdr:], uint32(ecn&ecnMask))
	}
	switch {
	case segmented && field:
		return w.oob
	case segmented:
		return w.segmentControl()
	case field:
		return w.ecnControl()
	}
	return nil
}

// send makes the system call. The kernel may return an error that an earlier
// datagram caused: this one is sent again.
func (w *Writer) send(fd uintptr) {
	if w.attempt(fd); isReport(w.call.errno) {
		w.conn.reported.Store(true)
		w.attempt(fd)
	}
}

// attempt sends once. A send does not wait while the socket has room, so the first
// call does not involve the Go scheduler.
func (w *Writer) attempt(fd uintptr) {
	w.call.flags = unix.MSG_DONTWAIT
	if w.call.at(unix.SYS_SENDMSG, fd); w.call.errno == unix.EAGAIN {
		w.call.flags = 0
		w.call.blocking(unix.SYS_SENDMSG, fd)
	}
}

// MaxBatch returns how many bytes one Write takes for datagrams of segment bytes,
// by the kernel's limits on the number of segments and on the batch.
func (w *Writer) MaxBatch(segment int) int {
	if !w.conn.gso || w.gso.left > 0 {
		return segment
	}
	return segment * max(1, min(MaxSegments, MaxDatagram/segment))
}

// Write sends the datagrams that lie one after another in batch, each of segment
// bytes except the last, which may be shorter. Datagrams that the kernel refuses
// are counted and lost, as on any network. The error is that of the last one.
func (w *Writer) Write(batch []byte, segment int, to netip.AddrPort) error {
	w.one[0] = batch
	defer func() { w.one[0] = nil }()
	return w.WriteParts(w.one[:], segment, to, 0)
}

// WriteParts is Write for a batch in parts, at most 1024 (UIO_MAXIOV), of which some may be
// empty: a part begins and ends anywhere in a datagram. ecn is the
// ECN field of the datagrams (RFC 3168 section 5).
func (w *Writer) WriteParts(batch [][]byte, segment int, to netip.AddrPort, ecn uint8) error {
	size := 0
	for _, part := range batch {
		size += len(part)
	}
	if segment <= 0 || size == 0 {
		return nil
	}
	count := (size + segment - 1) / segment
	st := &w.conn.stat
	st.txBatches.Add(1)
	segmented := w.conn.gso && w.gso.ready(count)
	if segmented {
		binary.NativeEndian.PutUint16(w.segmentControl()[unix.SizeofCmsghdr:], uint16(segment))
	} else if count > 1 {
		return w.writeEach(batch, segment, to, ecn)
	}
	err := w.write(batch, segmented, to, ecn)
	switch {
	case err == nil:
		if segmented {
			w.gso.accepted()
		}
		st.txDatagrams.Add(uint64(count))
		st.txBytes.Add(uint64(size))
		return nil
	case !segmented || !errors.Is(err, unix.EIO) && !errors.Is(err, unix.EINVAL):
		st.txErrors.Add(uint64(count))
		return fmt.Errorf("udp: write: %w", err)
	}
	// The kernel returns EIO if the interface cannot compute checksums, and EINVAL
	// if the route cannot segment. It also returns EINVAL for a segment that exceeds
	// the MTU, which is no fault of the offload.
	if err = w.writeEach(batch, segment, to, ecn); !errors.Is(err, unix.EMSGSIZE) {
		w.gso.refused()
		st.gsoRefused.Add(1)
	}
	return err
}

// write makes one system call.
func (w *Writer) write(parts [][]byte, segmented bool, to netip.AddrPort, ecn uint8) error {
	if to != w.to {
		if !w.call.address(to, w.conn.ip4) {
			return unix.EAFNOSUPPORT
		}
		w.to = to
		if to.Addr().Unmap().Is4() {
			setControl(w.ecnControl(), unix.IPPROTO_IP, unix.IP_TOS, 4)
		} else {
			setControl(w.ecnControl(), unix.IPPROTO_IPV6, unix.IPV6_TCLASS, 4)
		}
	}
	fd, ok := w.conn.fd.Use()
	if !ok {
		return net.ErrClosed
	}
	w.call.set(parts, w.controls(segmented, ecn), w.call.namelen)
	w.send(fd)
	clear(w.call.iov) // the caller's memory is not needed any more
	w.conn.fd.Done()
	if w.call.errno != 0 {
		return w.call.errno
	}
	return nil
}

// writeEach sends each datagram of a batch on its own.
func (w *Writer) writeEach(batch [][]byte, segment int, to netip.AddrPort, ecn uint8) error {
	var failed error
	st := &w.conn.stat
	rest := batch[0]
	if len(batch) > 1 {
		rest = slices.Concat(batch...)
	}
	for len(rest) > 0 {
		n := min(segment, len(rest))
		w.one[0] = rest[:n]
		if err := w.write(w.one[:], false, to, ecn); err != nil {
			st.txErrors.Add(1)
			failed = fmt.Errorf("udp: write: %w", err)
		} else {
			st.txDatagrams.Add(1)
			st.txBytes.Add(uint64(n))
		}
		rest = rest[n:]
	}
	return failed
}

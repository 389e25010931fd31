package network

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/test/namespace"
)

// attacker stands between the host and the box: all frames pass through it. It knows no
// keys. A tampering function decides what becomes of each datagram.
type attacker struct {
	t       *testing.T
	sockets [2]*tap // to each end
	tamper  atomic.Pointer[tampering]
	ended   sync.WaitGroup
}

// tampering is called for each datagram, in the goroutine of the end that has sent it, with
// the frame, whose checksums are right. Nothing keeps the frame.
type tampering func(from int, frame []byte, w way)

// way is where a tampering function can send frames.
type way struct {
	pass, back func(frame []byte)              // to the other end, and to the sender
	after      func(d time.Duration, f func()) // calls f later, in another goroutine
}

// newAttacked is newNetwork with one path and an attacker in the middle.
func newAttacked(t *testing.T) (network, *attacker) {
	t.Helper()
	n := network{t, [2]*namespace.Namespace{namespace.New(t), namespace.New(t)}}
	middle := namespace.New(t)
	a := &attacker{t: t}
	for end, ns := range n.ends {
		ns.Join(iface(0), middle, iface(end), jumbo)
		ns.Address(iface(0), address(end, 0))
		ns.Up(iface(0))
		middle.Up(iface(end))
		a.sockets[end] = newTap(t, middle, middle.Link(iface(end)).Attrs().Index)
	}
	for end := range a.sockets {
		a.ended.Go(func() { a.carry(end) })
	}
	t.Cleanup(func() {
		for _, s := range a.sockets {
			s.over.Store(true)
		}
		a.ended.Wait()
	})
	return n, a
}

// does tampers while f runs.
func (a *attacker) does(how tampering, f func()) {
	a.tamper.Store(&how)
	f()
	a.tamper.Store(nil)
}

// carry carries the frames of one end to the other.
func (a *attacker) carry(from int) {
	there, here := a.sockets[1-from], a.sockets[from]
	var waiting sync.WaitGroup
	defer waiting.Wait()
	w := way{pass: there.write, back: here.write, after: func(d time.Duration, f func()) {
		waiting.Add(1)
		time.AfterFunc(d, func() { defer waiting.Done(); f() })
	}}
	for !here.over.Load() {
		err := here.read(func(frame []byte) {
			if how := a.tamper.Load(); how != nil && isUDP(frame) {
				(*how)(from, frame, w)
				return
			}
			there.write(frame)
		})
		if err != nil {
			a.t.Errorf("the attacker: %v", err)
			return
		}
	}
}

// tap is a socket that has all frames of an interface.
type tap struct {
	fd   int
	over atomic.Bool
	buf  []byte
	one  []byte
}

func newTap(t *testing.T, ns *namespace.Namespace, index int) *tap {
	t.Helper()
	s := &tap{buf: make([]byte, virtioHeader+1<<16), one: make([]byte, 1<<16)}
	err := ns.Do(func() (err error) {
		if s.fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0); err != nil {
			return err
		}
		t.Cleanup(func() { _ = unix.Close(s.fd) }) // after that of the attacker
		big := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		return errors.Join(
			unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR, 1),
			unix.SetsockoptInt(s.fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
			unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
			unix.SetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 16<<20),
			unix.SetsockoptTimeval(s.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100_000}),
			unix.Bind(s.fd, &unix.SockaddrLinklayer{Protocol: big, Ifindex: index}),
		)
	})
	if errors.Is(err, unix.EPERM) {
		t.Skipf("needs root (CAP_NET_RAW) for a packet socket: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Sizes and places in a frame: Ethernet, IPv4 without options, UDP.
const (
	virtioHeader = 10 // struct virtio_net_hdr
	ethernet     = 14
	ipv4         = 20
	udpHeader    = 8
	headers      = ethernet + ipv4 + udpHeader
)

func isUDP(frame []byte) bool {
	return len(frame) >= headers && binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IP && frame[ethernet+9] == unix.IPPROTO_UDP
}

// read reads what has arrived in one piece and calls f for each frame in it: the kernel
// gives segments of one call of a sender together, and leaves their checksums to a network
// card (virtio_net(7), VIRTIO_NET_HDR_GSO_UDP_L4).
func (s *tap) read(f func(frame []byte)) error {
	n, err := unix.Read(s.fd, s.buf)
	switch {
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ENETDOWN):
		return nil
	case err != nil:
		return err
	case n < virtioHeader+ethernet:
		return nil
	}
	frame := s.buf[virtioHeader:n]
	if !isUDP(frame) {
		f(frame)
		return nil
	}
	payload := frame[headers:min(len(frame), ethernet+int(binary.BigEndian.Uint16(frame[ethernet+2:])))]
	segment := len(payload)
	if s.buf[1] != 0 { // gso_type
		segment = int(binary.NativeEndian.Uint16(s.buf[4:])) // gso_size
	}
	for first := true; first || len(payload) > 0; first = false {
		k := min(segment, len(payload))
		one := append(append(s.one[:0], frame[:headers]...), payload[:k]...)
		payload = payload[k:]
		finish(one)
		f(one)
	}
	return nil
}

// finish sets the lengths and checksums of a datagram. UDP's is left out, as IPv4 allows.
func finish(frame []byte) {
	ip := frame[ethernet:]
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	binary.BigEndian.PutUint16(ip[10:], 0)
	binary.BigEndian.PutUint16(ip[10:], checksum(ip[:ipv4]))
	if ip[9] == unix.IPPROTO_UDP {
		binary.BigEndian.PutUint16(ip[ipv4+4:], uint16(len(ip)-ipv4))
		binary.BigEndian.PutUint16(ip[ipv4+6:], 0)
	}
}

// icmpReceived returns how many ICMP messages the host has got, and found intact.
func (n network) icmpReceived() (count int) {
	n.t.Helper()
	n.check(n.ends[hostEnd].Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/snmp") // InMsgs, InErrors
		var broken int
		if _, values, ok := bytes.Cut(text, []byte("\nIcmp: ")); ok {
			_, values, _ = bytes.Cut(values, []byte("\nIcmp: "))
			_, err = fmt.Sscan(string(values), &count, &broken)
		}
		count -= broken
		return err
	}))
	return count
}

// checksum is that of the Internet (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// write sends a frame. A full queue drops it.
func (s *tap) write(frame []byte) {
	out := make([]byte, virtioHeader, virtioHeader+len(frame))
	_, _ = unix.Write(s.fd, append(out, frame...))
}

// icmp returns a forged ICMP message about a datagram, from the end to which it goes.
func icmp(frame []byte, kind, code byte, rest uint32) []byte {
	quoted := frame[ethernet : headers+8]
	out := make([]byte, ethernet+ipv4+8, ethernet+ipv4+8+len(quoted))
	copy(out, frame[6:12])
	copy(out[6:], frame[:6])
	binary.BigEndian.PutUint16(out[12:], unix.ETH_P_IP)
	ip := out[ethernet:]
	ip[0], ip[8], ip[9] = 0x45, 64, unix.IPPROTO_ICMP
	copy(ip[12:], frame[ethernet+16:ethernet+20])
	copy(ip[16:], frame[ethernet+12:ethernet+16])
	ip[ipv4], ip[ipv4+1] = kind, code
	binary.BigEndian.PutUint32(ip[ipv4+4:], rest)
	out = append(out, quoted...)
	message := out[ethernet+ipv4:]
	binary.BigEndian.PutUint16(message[2:], checksum(message))
	finish(out)
	return out
}

package bench

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/link"
)

// bulkUDP moves bytes over UDP on the loopback interface, from one thread to
// another, with the least work of a link: segmentation and receive offload, a
// CRC-32C of every byte at both ends, and the cipher. It sends the payload in place
// and does not copy it on arrival.
//
// With memory it also makes the copies that a reliable link from the memory of one
// machine to that of another needs: of the payload into a buffer where it would stay
// until it is acknowledged, and of the received payload to its destination.
type bulkUDP struct {
	tx, rx  *udp.Conn
	aead    cipher.AEAD // nil: clear
	payload int         // bytes in a datagram
	source  []byte
	sealed  []byte
	kept    []byte // with memory: a ring of the bytes in flight
	keptTo  int    // end of the latest bytes in kept
	target  []byte // with memory: the destination
}

// bulkWindow is the limit of the bytes in flight: less than the socket's buffer,
// with the kernel's overhead.
const bulkWindow = 2 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func newBulkUDP(c link.Cipher, mtu int, source []byte, memory bool) (*bulkUDP, error) {
	b := &bulkUDP{payload: mtu, source: source}
	if memory {
		b.kept, b.target = make([]byte, bulkWindow), make([]byte, len(source))
		pattern(b.kept, 1) // the kernel gives memory when it is touched: not while it is measured
		pattern(b.target, 1)
	}
	if c == link.CipherAES256GCM {
		block, err := aes.NewCipher(make([]byte, 32))
		if err != nil {
			return nil, err
		}
		if b.aead, err = cipher.NewGCM(block); err != nil {
			return nil, err
		}
		b.payload -= b.aead.Overhead()
	}
	if b.payload > 4096 {
		b.payload &^= 4095 // whole TLPs, as a link sends them
	}
	b.sealed = make([]byte, 0, 2*udp.ReadBuffer)
	var err error
	if b.tx, err = udp.Listen("127.0.0.1:0", udp.Options{}); err != nil {
		return nil, err
	}
	if b.rx, err = udp.Listen("127.0.0.1:0", udp.Options{}); err != nil {
		return nil, errors.Join(err, b.tx.Close())
	}
	return b, nil
}

func (b *bulkUDP) close() error { return errors.Join(b.tx.Close(), b.rx.Close()) }

// bulkRun is one measurement.
type bulkRun struct {
	received atomic.Uint64 // payload
	moved    chan struct{} // holds a token after received has grown
	crc      uint32        // of the received bytes; owned by the receiver until it ends
	failed   error
}

// stuck is the limit of a time without progress of the receiver: datagrams were lost.
const stuck = 2 * time.Second

// run sends for about a duration and returns GB/s.
func (b *bulkUDP) run(d time.Duration) (float64, error) {
	r := &bulkRun{moved: make(chan struct{}, 1)}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { b.receive(r, stop) })
	sent, crc, took, err := b.send(r, d)
	close(stop)
	// An empty datagram ends the receiver.
	err = errors.Join(err, b.poke())
	wg.Wait()
	switch {
	case err != nil:
		return 0, err
	case r.failed != nil:
		return 0, r.failed
	case r.crc != crc:
		return 0, errors.New("the received bytes differ from those sent")
	}
	return float64(sent) / took.Seconds() / 1e9, nil
}

func (b *bulkUDP) poke() error { return b.tx.NewWriter().Write([]byte{0}, 1, b.rx.LocalAddr()) }

func (b *bulkUDP) send(r *bulkRun, d time.Duration) (sent uint64, crc uint32, took time.Duration, err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	w, to, at, number := b.tx.NewWriter(), b.rx.LocalAddr(), 0, uint64(0)
	segment := b.payload
	if b.aead != nil {
		segment += b.aead.Overhead()
	}
	most := w.MaxBatch(segment) / segment
	watch := time.NewTimer(stuck)
	defer watch.Stop()
	start := time.Now()
	for ; time.Since(start) < d; watch.Reset(stuck) {
		n := min(most, (len(b.source)-at)/b.payload)
		if n == 0 {
			at = 0
			continue
		}
		chunk := b.source[at : at+n*b.payload]
		at += len(chunk)
		if b.kept != nil {
			chunk = b.keep(chunk)
		}
		crc = crc32.Update(crc, castagnoli, chunk)
		if err := w.Write(b.seal(chunk, &number), segment, to); err != nil {
			return 0, 0, 0, err
		}
		sent += uint64(len(chunk))
		if err := r.wait(sent-min(sent, bulkWindow), watch.C); err != nil {
			return 0, 0, 0, err
		}
	}
	if err := r.wait(sent, watch.C); err != nil {
		return 0, 0, 0, err
	}
	return sent, crc, time.Since(start), nil
}

// keep copies a chunk into the ring.
func (b *bulkUDP) keep(chunk []byte) []byte {
	if b.keptTo+len(chunk) > len(b.kept) {
		b.keptTo = 0
	}
	out := b.kept[b.keptTo : b.keptTo+copy(b.kept[b.keptTo:], chunk)]
	b.keptTo += len(out)
	return out
}

// wait waits until n bytes have been received.
func (r *bulkRun) wait(n uint64, stuck <-chan time.Time) error {
	for r.received.Load() < n {
		select {
		case <-r.moved:
		case <-stuck:
			return errors.New("datagrams were lost on the loopback interface: is net.core.rmem_max small?")
		}
	}
	return nil
}

func (b *bulkUDP) seal(chunk []byte, number *uint64) []byte {
	if b.aead == nil {
		return chunk
	}
	out := b.sealed[:0]
	var nonce [12]byte
	for len(chunk) > 0 {
		binary.BigEndian.PutUint64(nonce[4:], *number)
		*number++
		out = b.aead.Seal(out, nonce[:], chunk[:b.payload], nil)
		chunk = chunk[b.payload:]
	}
	return out
}

func (b *bulkUDP) receive(r *bulkRun, stop <-chan struct{}) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	in := b.rx.NewReader()
	var nonce [12]byte
	at := 0
	for number := uint64(0); ; {
		batch, segment, _, err := in.Read()
		if errors.Is(err, udp.ErrTimeout) {
			continue // the sender did not run for a while
		}
		if err != nil {
			r.failed = err
			return
		}
		if len(batch) < 2 {
			select {
			case <-stop:
				return
			default:
				continue // of an earlier run
			}
		}
		n := 0
		for len(batch) > 0 {
			datagram := batch[:min(segment, len(batch))]
			batch = batch[len(datagram):]
			if b.aead != nil {
				binary.BigEndian.PutUint64(nonce[4:], number)
				number++
				if datagram, err = b.aead.Open(datagram[:0], nonce[:], datagram, nil); err != nil {
					r.failed = err
					return
				}
			}
			r.crc = crc32.Update(r.crc, castagnoli, datagram)
			n += len(datagram)
			if b.target != nil {
				if at+len(datagram) > len(b.target) {
					at = 0
				}
				at += copy(b.target[at:], datagram)
			}
		}
		r.received.Add(uint64(n))
		select {
		case r.moved <- struct{}{}:
		default:
		}
	}
}

// bulkTCP moves the same bytes over TCP on the loopback interface, without cipher
// and without its own checksum.
type bulkTCP struct {
	tx, rx net.Conn
	source []byte
}

func newBulkTCP(source []byte) (*bulkTCP, error) {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	defer ln.Close()
	b := &bulkTCP{source: source}
	if b.tx, err = net.Dial("tcp", ln.Addr().String()); err != nil {
		return nil, err
	}
	if b.rx, err = ln.Accept(); err != nil {
		return nil, errors.Join(err, b.tx.Close())
	}
	return b, nil
}

func (b *bulkTCP) close() error { return errors.Join(b.tx.Close(), b.rx.Close()) }

// run sends the source again and again for about a duration and returns GB/s.
func (b *bulkTCP) run(d time.Duration) (float64, error) {
	got := make([]byte, len(b.source))
	var failed error
	more := make(chan bool)
	var wg sync.WaitGroup
	wg.Go(func() {
		for range more {
			if _, err := io.ReadFull(b.rx, got); err != nil {
				failed = err
			}
		}
	})
	rate, err := perSecond(d, func() (int, error) {
		more <- true
		return b.tx.Write(b.source)
	})
	close(more)
	wg.Wait() // for the last bytes: less than one copy of many
	if err = errors.Join(err, failed, same(got, b.source)); err != nil {
		return 0, fmt.Errorf("tcp: %w", err)
	}
	return rate / 1e9, nil
}

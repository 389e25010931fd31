package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/virtio"
	"github.com/dxpu-project/dxpu/internal/rawio/eventfd"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
)

// backend is a connection to a back end, with the memory and the event descriptors that it
// shares. serve owns it; the machine calls the methods of virtio.Backend, which do not wait.
type backend struct {
	client   *client
	memory   *memory
	features uint64 // of the device
	header   int    // bytes of a packet to the driver that are zeros before the back end has it
	config   []byte

	calls int   // event descriptor that the back end signals, for all virtqueues
	kicks []int // those that it waits for
	quit  int   // ends watch
	wg    sync.WaitGroup

	used    atomic.Bool // by a driver
	applied uint64      // number of the session that it knows
	queues  uint32      // that it has started
}

var _ virtio.Backend = (*backend)(nil)

// connect opens a connection to the server of spec and checks that it fits. trash closes
// what the server sends.
func connect(ctx context.Context, s *settings, trash *rights.Disposer) (*backend, error) {
	c, err := dial(ctx, s.Socket, trash)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.fail(context.Cause(ctx)) })
	defer stop()
	b := &backend{client: c, calls: -1, quit: -1}
	if s.kind == virtio.Socket {
		b.header = socketHeader
	}
	if err := b.setUp(s); err != nil {
		return nil, errors.Join(err, b.close())
	}
	return b, nil
}

func (b *backend) setUp(s *settings) error {
	features, err := b.client.handshake()
	if err != nil {
		return err
	}
	if features&virtio.FeatureVersion1 == 0 {
		return errors.New("the back end lacks VIRTIO_F_VERSION_1")
	}
	queues := s.kind.Backed(s.Queues)
	if n, err := b.client.queues(queues); err != nil || n < queues {
		return errors.Join(err, fmt.Errorf("the back end has %d virtqueues, and the slot %d: set queues", n, queues))
	}
	b.features = features
	if b.config, err = s.deviceConfig(b.client); err != nil {
		return err
	}
	if b.memory, err = newMemory(queues, s.Pool); err != nil {
		return err
	}
	event := func() int {
		fd, e := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		if e != nil {
			err = errors.Join(err, fmt.Errorf("event descriptor: %w", e))
			return -1
		}
		return fd
	}
	b.calls, b.quit = event(), event()
	for range queues {
		b.kicks = append(b.kicks, event())
	}
	return err
}

// close ends the connection. The machine must not have the back end any more.
func (b *backend) close() error {
	b.client.close()
	var err error
	if b.quit >= 0 {
		err = eventfd.Signal(b.quit)
	}
	b.wg.Wait()
	for _, fd := range append(b.kicks, b.calls, b.quit) {
		if fd >= 0 {
			err = errors.Join(err, unix.Close(fd))
		}
	}
	if b.memory != nil {
		err = errors.Join(err, b.memory.close())
	}
	return err
}

// watch calls notify for each signal of the back end, until close. It sleeps in poll(2), and
// reads without waiting: the back end may make the descriptor a blocking one.
func (b *backend) watch(notify func(), log *slog.Logger) {
	fds := []unix.PollFd{{Fd: int32(b.calls), Events: unix.POLLIN}, {Fd: int32(b.quit), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(fds, -1); err != nil && !errors.Is(err, unix.EINTR) {
			log.Error("wait for the back end", "err", err)
			return
		}
		if fds[1].Revents != 0 {
			return
		}
		if _, err := eventfd.Read(b.calls); err == nil {
			notify()
		}
	}
}

// start starts the virtqueues of a session. The back end has its memory when start returns.
func (b *backend) start(s virtio.Session, kind *virtio.Kind) error {
	b.used.Store(true)
	features := s.Features&kind.Features&b.features | virtio.FeatureVersion1 | b.features&featureProtocol
	if err := b.client.set(setFeatures, u64(features)); err != nil {
		return err
	}
	if err := b.client.set(setMemTable, memTable(memoryBase, uint64(len(b.memory.bytes))), b.memory.fd); err != nil {
		return err
	}
	if err := b.startQueues(s.Queues); err != nil {
		return err
	}
	return b.client.settle()
}

// startQueues starts virtqueues, bit i: virtqueue i. One of a running session may have
// requests already: their kicks wait in the event descriptor.
func (b *backend) startQueues(queues uint32) error {
	for i := range b.kicks {
		if queues>>i&1 == 0 {
			continue
		}
		b.queues |= 1 << i
		if err := b.startQueue(i); err != nil {
			return err
		}
	}
	return nil
}

// startQueue starts one virtqueue.
func (b *backend) startQueue(i int) error {
	c, r := b.client, &b.memory.queues[i]
	if err := c.set(setVringNum, vringState(i, ringSize)); err != nil {
		return err
	}
	if err := c.set(setVringBase, vringState(i, 0)); err != nil {
		return err
	}
	if err := c.set(setVringAddr, vringAddr(i, r.addr+descAt, r.addr+usedAt, r.addr+availAt)); err != nil {
		return err
	}
	if err := c.set(setVringCall, u64(uint64(i)), b.calls); err != nil {
		return err
	}
	if err := c.set(setVringKick, u64(uint64(i)), b.kicks[i]); err != nil || b.features&featureProtocol == 0 {
		return err // without the protocol's features, the virtqueue is enabled from the start
	}
	return c.set(setVringEnable, vringState(i, 1))
}

// stop stops all virtqueues. Then the back end does not touch the memory, which is erased.
func (b *backend) stop() error {
	for i := range b.kicks {
		if b.queues>>i&1 == 0 {
			continue
		}
		if _, err := b.client.call(getVringBase, vringState(i, 0)); err != nil {
			return err
		}
		if b.features&featureProtocol != 0 {
			if err := b.client.set(setVringEnable, vringState(i, 0)); err != nil {
				return err
			}
		}
	}
	b.queues = 0
	return b.memory.erase()
}

// Pool implements virtio.Backend.
func (b *backend) Pool(queue int) []byte { return b.memory.queues[queue].bytes[poolAt:] }

// socketHeader is the length of the header of a packet of a socket device (virtio, section
// 5.10.6). vhost-device-vsock ends a buffer for a packet to the driver without writing to it
// if the connection of the packet has just ended, and takes its length from the header. The
// header of an earlier packet in the same place of the pool would repeat that packet.
const socketHeader = 44

// Submit implements virtio.Backend.
func (b *backend) Submit(queue int, id uint16, at, out, in int) {
	clear(b.Pool(queue)[at+out:][:min(in, b.header)])
	b.memory.queues[queue].submit(id, at, out, in)
}

// Kick implements virtio.Backend.
func (b *backend) Kick(queue int) {
	if err := eventfd.Signal(b.kicks[queue]); err != nil {
		b.client.fail(err)
	}
}

// Used implements virtio.Backend. A back end that ends other requests than it has is
// given up.
func (b *backend) Used(queue int) (id uint16, n uint32, ok bool) {
	id, n, ok, err := b.memory.queues[queue].take()
	if err != nil {
		b.client.fail(err)
	}
	return id, n, ok
}

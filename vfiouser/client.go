package vfiouser

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

// Defaults and bounds of ClientConfig.
const (
	// DefaultTimeout is QEMU's x-msg-timeout.
	DefaultTimeout = 5 * time.Second
	// DefaultClientData is the max_data_xfer_size that a client states: the
	// server cuts its DMA to it. libvfio-user fails on a reply that arrives in
	// two parts, and the kernel keeps up to 32 KiB together.
	DefaultClientData = 16 << 10
	// DefaultClientOpen bounds the requests under way.
	DefaultClientOpen = 256
	// DefaultClientDMA bounds the DMA requests that the handler holds.
	DefaultClientDMA = 256

	// MaxWriteData is the most data that one REGION_WRITE carries: whole pages, so
	// that it arrives in one part; see DefaultClientData.
	MaxWriteData = 28 << 10
	// maxHeldDMA bounds the bytes of the DMA requests that the handler holds.
	maxHeldDMA = 16 << 20
	// maxUnanswered is the number of requests that may time out without a late
	// answer before the client ends the connection.
	maxUnanswered = 64
)

// ClientConfig configures a client; its zero value works.
type ClientConfig struct {
	// DMA answers the server's requests for memory that was mapped without a
	// descriptor. Without a handler they are refused.
	DMA DMAHandler
	// Timeout bounds each request. 0 means DefaultTimeout.
	Timeout time.Duration
	// MaxData is the max_data_xfer_size stated in bytes. 0 means DefaultClientData.
	MaxData uint32
	// MaxOpen bounds the requests under way. 0 means DefaultClientOpen.
	MaxOpen int
	// MaxDMA bounds the DMA requests that the handler holds; the client answers
	// EBUSY beyond it. 0 means DefaultClientDMA.
	MaxDMA int
	// NoTwinSocket does not offer a second socket for the server's requests.
	// libvfio-user fails when a request arrives while it waits for the answer
	// to its own on the same socket.
	NoTwinSocket bool
	// NoUnmask leaves out the UNMASK after MSI-X vectors are armed. QEMU's
	// device server (7.2 and later) delivers nothing without it; others ignore it.
	NoUnmask bool
	// Polling is how the client polls the socket while an answer is due.
	Polling Polling
	// Disposer closes descriptors that the server sends. Clients that connect to one
	// server again and again share it, or each could leave closes that do not end. nil
	// means one of this client's own.
	Disposer *Disposer
	// Logger receives the server's protocol errors; nil discards them.
	Logger *slog.Logger
}

// Client drives the device of a vfio-user server. Its methods may be called
// from any goroutine. The requests of one goroutine arrive in order.
type Client struct {
	cfg    ClientConfig
	main   *channel
	reader *reader.Reader // shares the reading of main
	twin   *channel       // the server's requests, or nil
	caps   Capabilities
	sem    chan struct{} // one for each request under way
	end    chan struct{} // closed when the connection has ended
	wg     sync.WaitGroup

	unsolicited atomic.Uint64
	dmaHeld     atomic.Int64 // requests
	dmaBytes    atomic.Int64

	start time.Time

	// mu guards the fields below.
	mu         sync.Mutex
	err        error // why the connection ended
	id         uint16
	calls      map[uint16]*call
	order      list[call] // not yet timed out, oldest first
	unanswered int
	timer      *time.Timer
	timerOn    bool
	posts      posts
	refusals   []refusal
	refusing   bool // sendRefusals runs
	freeCalls  freeList[call]
	freeDMA    freeList[DMARequest]

	release func() // letGo, made once
}

// channel is one socket: wmu is held while a message is built and sent.
type channel struct {
	sock *socket
	fr   *framer

	wmu sync.Mutex
	out []byte
}

func newChannel(nc *net.UnixConn, cfg *ClientConfig) (*channel, error) {
	s, err := newSocket(nc, cfg.Disposer)
	if err != nil {
		return nil, err
	}
	s.stall = cfg.Timeout
	return &channel{sock: s, fr: newFramer(s, maxMessage(DefaultMaxData))}, nil
}

// Dial connects to the server's socket and negotiates.
func Dial(ctx context.Context, path string, cfg ClientConfig) (*Client, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("vfiouser: %w", err)
	}
	return NewClient(ctx, nc.(*net.UnixConn), cfg)
}

// NewClient negotiates on a connection and takes it over.
func NewClient(ctx context.Context, nc *net.UnixConn, cfg ClientConfig) (*Client, error) {
	cfg.Timeout = cmp.Or(cfg.Timeout, DefaultTimeout)
	cfg.MaxData = cmp.Or(cfg.MaxData, DefaultClientData)
	cfg.MaxOpen = cmp.Or(cfg.MaxOpen, DefaultClientOpen)
	cfg.MaxDMA = cmp.Or(cfg.MaxDMA, DefaultClientDMA)
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Disposer == nil {
		cfg.Disposer = new(Disposer)
	}
	if cfg.Timeout < 0 || cfg.MaxOpen < 0 || cfg.MaxDMA < 0 || cfg.MaxData > DefaultMaxData {
		_ = cfg.Disposer.CloseConn(nc)
		return nil, errors.New("vfiouser: client: a bound is out of range")
	}
	if cfg.Disposer.Full() {
		_ = cfg.Disposer.CloseConn(nc)
		return nil, fmt.Errorf("vfiouser: descriptors of an earlier connection to the server cannot be closed: %w", unix.EBUSY)
	}
	ch, err := newChannel(nc, &cfg)
	if err != nil {
		_ = cfg.Disposer.CloseConn(nc)
		return nil, err
	}
	c := &Client{
		cfg: cfg, main: ch,
		sem:   make(chan struct{}, cfg.MaxOpen),
		end:   make(chan struct{}),
		calls: map[uint16]*call{},
		posts: posts{multi: -1},
		start: time.Now(),
	}
	c.timer = time.AfterFunc(time.Hour, c.expire)
	c.timer.Stop()
	c.release = c.letGo
	if c.reader, err = reader.New(replies{c}, cfg.Polling); err != nil {
		ch.sock.close()
		return nil, err
	}
	c.wg.Go(func() {
		defer ch.fr.close()
		_ = c.reader.Serve() // replies has told why
	})
	if err := c.negotiate(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// negotiate exchanges VERSION and takes the twin socket, if there is one.
func (c *Client) negotiate(ctx context.Context) error {
	offer := Version{Caps: Capabilities{MaxMsgFDs: MaxFDs, MaxDataXferSize: uint64(c.cfg.MaxData), WriteMultiple: true}}
	if !c.cfg.NoTwinSocket {
		offer.Caps.TwinSocket = &TwinSocket{Supported: true}
	}
	body, fds, err := c.roundTrip(ctx, CmdVersion, offer.Append(nil), nil)
	if err != nil {
		return err
	}
	defer c.main.sock.trash.Close(fds)
	v, _, err := ParseVersion(body)
	if err != nil {
		return err
	}
	if v.Major != 0 {
		return errVersionMajor
	}
	c.caps = v.Caps
	t := v.Caps.TwinSocket
	if c.cfg.NoTwinSocket || t == nil || !t.Supported {
		return nil
	}
	if t.FDIndex == nil || uint64(*t.FDIndex) >= uint64(len(fds)) {
		return &ProtocolError{"twin socket granted without its descriptor"}
	}
	return c.takeTwin(&fds[*t.FDIndex])
}

// takeTwin takes over the descriptor of the twin socket and starts to read it.
func (c *Client) takeTwin(fd *int) error {
	if domain, err := unix.GetsockoptInt(*fd, unix.SOL_SOCKET, unix.SO_DOMAIN); err != nil || domain != unix.AF_UNIX {
		return &ProtocolError{"the twin socket is not a UNIX socket"}
	}
	f := os.NewFile(uintptr(*fd), "twin socket")
	*fd = -1
	defer f.Close() // FileConn makes its own
	nc, err := net.FileConn(f)
	if err != nil {
		return &ProtocolError{"twin socket: " + err.Error()}
	}
	uc := nc.(*net.UnixConn)
	ch, err := newChannel(uc, &c.cfg)
	if err != nil {
		return errors.Join(err, c.cfg.Disposer.CloseConn(uc))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		ch.sock.close()
		return c.err
	}
	c.twin = ch
	c.wg.Go(func() { c.read(ch) })
	return nil
}

// read handles the messages of the twin socket until it ends; that ends the client.
func (c *Client) read(ch *channel) {
	defer ch.fr.close()
	for {
		m, err := ch.fr.next()
		if err != nil {
			c.lost(err)
			return
		}
		c.take(ch, &m)
	}
}

// replies reads the main socket, as a Source of its reader.
type replies struct{ c *Client }

// Soon tells reads from transfers and from silence.
func (r replies) Soon() bool { return r.c.main.sock.exchange() }

// Receive handles one message.
func (r replies) Receive(block bool) error {
	m, err := r.c.main.fr.try(block)
	switch {
	case err == nil:
		r.c.take(r.c.main, &m)
		return nil
	case errors.Is(err, errWouldBlock):
		return reader.ErrNothing
	}
	r.c.lost(err)
	return err
}

// Buffered reports whether a read has brought more than one message.
func (r replies) Buffered() bool { return r.c.main.fr.more() }

func (c *Client) take(ch *channel, m *message) {
	if m.IsReply() {
		c.finish(ch, m)
	} else {
		c.serve(ch, m)
	}
}

// lost ends the client after a read error.
func (c *Client) lost(err error) {
	if errors.Is(err, io.EOF) {
		err = fmt.Errorf("%w by the server", ErrClosed)
	}
	c.shut(err)
}

// Capabilities returns the server's capabilities.
func (c *Client) Capabilities() Capabilities { return c.caps }

// Twin reports whether the server sends its requests on a second socket.
func (c *Client) Twin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.twin != nil
}

// Done is closed when the connection has ended; Err then returns the reason.
func (c *Client) Done() <-chan struct{} { return c.end }

// Err returns nil while the connection is open.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// Close ends the connection and waits for its goroutines; requests under way
// end with ErrClosed. Callbacks must not call it. Further calls have no effect.
func (c *Client) Close() error {
	c.shut(ErrClosed)
	c.wg.Wait()
	if err := c.reader.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// shut ends the connection for the first cause given.
func (c *Client) shut(cause error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = cause
	var open []*call
	for id, cl := range c.calls {
		delete(c.calls, id)
		if !cl.abandoned {
			open = append(open, cl)
		}
	}
	c.order = list[call]{}
	c.timer.Stop()
	twin := c.twin
	close(c.end)
	c.mu.Unlock()
	c.main.sock.close()
	if twin != nil {
		twin.sock.close()
	}
	for _, cl := range open {
		c.deliver(cl, cause)
	}
}

// send builds a message and sends it behind the gathered posted writes, with one
// system call.
func (c *Client) send(h Header, payload, data []byte, fds []int) error {
	ch := c.main
	ch.wmu.Lock()
	defer ch.wmu.Unlock()
	ch.out = c.takePosts(ch.out[:0])
	if len(fds) > 0 && len(ch.out) > 0 { // descriptors go with the first byte
		if err := ch.sock.send(ch.out); err != nil {
			return err
		}
		ch.out = ch.out[:0]
	}
	return ch.sendLocked(h, payload, data, fds)
}

// sendMessage builds a message and sends it with one system call.
func (ch *channel) sendMessage(h Header, payload, data []byte, fds []int) error {
	ch.wmu.Lock()
	defer ch.wmu.Unlock()
	ch.out = ch.out[:0]
	return ch.sendLocked(h, payload, data, fds)
}

// sentInPlace is the size from which data are not copied before they are sent.
const sentInPlace = 1 << 10

// sendLocked sends a message behind the bytes in out. The write lock is held.
func (ch *channel) sendLocked(h Header, payload, data []byte, fds []int) error {
	h.Size = uint32(HeaderSize + len(payload) + len(data))
	ch.out = h.Append(ch.out)
	ch.out = append(ch.out, payload...)
	if len(data) >= sentInPlace {
		return ch.sock.sendParts(ch.out, data, fds...)
	}
	ch.out = append(ch.out, data...)
	return ch.sock.send(ch.out, fds...)
}

// errNotReading ends the connection to a server that does not take what is sent.
var errNotReading = fmt.Errorf("vfiouser: the server does not read: %w", ErrTimeout)

// sendFailed ends the connection after an error of sendMessage.
func (c *Client) sendFailed(err error) error {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = errNotReading
	}
	c.shut(err)
	return c.Err()
}

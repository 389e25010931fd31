package vhostuser

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/rights"
)

// requestTimeout bounds each message to a back end: it starts and stops virtqueues within
// milliseconds, and an answer to GET_VRING_BASE may wait for requests in progress.
const requestTimeout = 5 * time.Second

// client is the connection of a front end to a back end. One goroutine sends requests,
// another one reads the answers.
type client struct {
	conn     *rights.Conn
	answers  chan answer // holds one: that of the request under way
	done     chan struct{}
	wg       sync.WaitGroup
	once     sync.Once
	err      error  // why done is closed
	protocol uint64 // features
}

// answer is an answer of the back end.
type answer struct {
	header
	payload []byte
}

// dial connects to the socket of a back end.
func dial(ctx context.Context, path string, trash *rights.Disposer) (*client, error) {
	if trash.Full() {
		return nil, errors.New("descriptors of earlier connections cannot be closed")
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	c := &client{conn: rights.NewConn(conn.(*net.UnixConn), trash), answers: make(chan answer, 1), done: make(chan struct{})}
	c.wg.Go(func() { c.fail(c.read()) })
	return c, nil
}

// fail ends the connection. The first cause stays. It never blocks.
func (c *client) fail(err error) {
	c.once.Do(func() {
		c.err = err
		close(c.done)
		_ = c.conn.Close()
	})
}

// close ends the connection and waits for the goroutine.
func (c *client) close() {
	c.fail(net.ErrClosed)
	c.wg.Wait()
}

// read reads answers until the connection ends.
func (c *client) read() error {
	for {
		var raw [headerSize]byte
		if _, err := io.ReadFull(c.conn, raw[:]); err != nil {
			return fmt.Errorf("the back end has closed the connection: %w", err)
		}
		h, err := parseReply(raw[:])
		if err != nil {
			return err
		}
		payload := make([]byte, h.size)
		if _, err := io.ReadFull(c.conn, payload); err != nil {
			return fmt.Errorf("%v: %w", h.request, err)
		}
		select {
		case c.answers <- answer{h, payload}:
		default:
			return fmt.Errorf("the back end sends answers without a request: %v", h.request)
		}
	}
}

// send sends a message with descriptors.
func (c *client) send(r request, flags uint32, payload []byte, fds ...int) error {
	b := header{request: r, flags: flagVersion | flags, size: len(payload)}.append(make([]byte, 0, headerSize+len(payload)))
	b = append(b, payload...)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	if err := c.conn.SetWriteDeadline(time.Now().Add(requestTimeout)); err != nil {
		return fmt.Errorf("%v: %w", r, err)
	}
	n, _, err := c.conn.WriteMsgUnix(b, rights, nil)
	if err == nil && n < len(b) {
		_, err = c.conn.Write(b[n:])
	}
	if err != nil {
		return fmt.Errorf("%v: %w", r, err)
	}
	return nil
}

// call sends a message and returns its answer.
func (c *client) call(r request, payload []byte) ([]byte, error) {
	if err := c.send(r, 0, payload); err != nil {
		return nil, err
	}
	return c.await(r)
}

func (c *client) await(r request) ([]byte, error) {
	timeout := time.NewTimer(requestTimeout)
	defer timeout.Stop()
	select {
	case a := <-c.answers:
		if a.request != r {
			return nil, fmt.Errorf("%v: the answer is one to %v", r, a.request)
		}
		return a.payload, nil
	case <-c.done:
		return nil, fmt.Errorf("%v: %w", r, c.err)
	case <-timeout.C:
		return nil, fmt.Errorf("%v: no answer within %v", r, requestTimeout)
	}
}

// callU64 is call for an answer of one number.
func (c *client) callU64(r request) (uint64, error) {
	b, err := c.call(r, nil)
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("%v: %d bytes, want 8", r, len(b))
	}
	return binary.NativeEndian.Uint64(b), nil
}

// set sends a message without an answer of its own, and waits until the back end has
// carried it out if it can say so.
func (c *client) set(r request, payload []byte, fds ...int) error {
	if c.protocol&protocolReplyAck == 0 {
		return c.send(r, 0, payload, fds...)
	}
	if err := c.send(r, flagAck, payload, fds...); err != nil {
		return err
	}
	b, err := c.await(r)
	if err != nil {
		return err
	}
	if len(b) != 8 || binary.NativeEndian.Uint64(b) != 0 {
		return fmt.Errorf("%v: refused by the back end", r)
	}
	return nil
}

// settle waits until the back end has carried out all messages that set has sent. One that
// does not acknowledge them carries them out in order, so any answer tells.
func (c *client) settle() error {
	if c.protocol&protocolReplyAck != 0 {
		return nil
	}
	_, err := c.callU64(getFeatures)
	return err
}

// handshake negotiates the features and returns those of the device.
func (c *client) handshake() (features uint64, err error) {
	if features, err = c.callU64(getFeatures); err != nil {
		return 0, err
	}
	if features&featureProtocol != 0 {
		offered, err := c.callU64(getProtocolFeatures)
		if err != nil {
			return 0, err
		}
		// Messages before the acknowledgement have no reply.
		if err := c.send(setProtocolFeatures, 0, u64(offered&protocolUsed)); err != nil {
			return 0, err
		}
		c.protocol = offered & protocolUsed
	}
	return features, c.set(setOwner, nil)
}

// queues returns the number of virtqueues of the back end, or most if it cannot tell.
func (c *client) queues(most int) (int, error) {
	if c.protocol&protocolMultiQueue == 0 {
		return most, nil
	}
	n, err := c.callU64(getQueueNum)
	return int(min(n, 1<<16)), err
}

// config returns the first bytes of the device configuration.
func (c *client) config(size int) ([]byte, error) {
	if c.protocol&protocolConfig == 0 {
		return nil, errors.New("the back end does not tell the device configuration (protocol feature CONFIG)")
	}
	b, err := c.call(getConfig, configRequest(size))
	if err != nil {
		return nil, err
	}
	return parseConfig(b, size)
}

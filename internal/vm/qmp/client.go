package qmp

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/rawio/rights"
)

// ErrClosed is the cause of every failure after [Client.Close] or after QEMU has gone.
var ErrClosed = errors.New("qmp: connection closed")

// A Client is a connection to one QEMU, past its greeting and in command mode.
type Client struct {
	conn    net.Conn
	version Version
	done    chan struct{} // closed when the reader has returned

	write sync.Mutex // held while one command is written

	mu      sync.Mutex // guards the fields below
	next    uint64     // id of the next command
	pending map[uint64]chan reply
	subs    map[*Subscription]struct{}
	err     error // why the connection ended; set once
}

// Dial connects to the QMP server at the UNIX socket path and negotiates (section 4).
// trash closes the descriptors that the server sends.
func Dial(ctx context.Context, path string, trash *rights.Disposer) (*Client, error) {
	if trash.Full() {
		return nil, errors.New("qmp: descriptors of earlier connections cannot be closed")
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("qmp: %w", err)
	}
	return New(ctx, rights.NewConn(conn.(*net.UnixConn), trash))
}

// New negotiates on an open connection. It takes over conn: New closes it on an error,
// [Client.Close] closes it later.
func New(ctx context.Context, conn net.Conn) (*Client, error) {
	c := &Client{conn: conn, done: make(chan struct{}), pending: map[uint64]chan reply{}, subs: map[*Subscription]struct{}{}}
	r := bufio.NewReaderSize(conn, 64<<10)
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	err := c.greet(r)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("qmp: greeting: %w", err)
	}
	go c.read(r)
	if err := c.Execute(ctx, "qmp_capabilities", nil, nil); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Version is the version in QEMU's greeting.
func (c *Client) Version() Version { return c.version }

// PID is the process ID of the QEMU, which distinguishes it from a later QEMU at the
// same path; 0 if the connection does not give it.
func (c *Client) PID() int {
	conn, ok := c.conn.(syscall.Conn)
	if !ok {
		return 0
	}
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0
	}
	pid := 0
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(cred.Pid)
		}
	})
	return pid
}

// Close ends the connection and waits for the reader. QEMU keeps running.
func (c *Client) Close() error {
	c.fail(ErrClosed)
	<-c.done
	return nil
}

// Done is closed when either side has ended the connection.
func (c *Client) Done() <-chan struct{} { return c.done }

// Execute runs a command and waits for its reply. args is marshalled as the command's
// arguments (nil: none); the reply is unmarshalled into result (nil: dropped). A refusal by
// QEMU is an *[Error]. When ctx ends first, the command may still take effect.
func (c *Client) Execute(ctx context.Context, command string, args, result any) error {
	answer := make(chan reply, 1)
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return fmt.Errorf("qmp: %s: %w", command, c.err)
	}
	id := c.next
	c.next++
	c.pending[id] = answer
	c.mu.Unlock()
	defer c.forget(id)

	if err := c.send(ctx, request{Execute: command, Arguments: args, ID: id}); err != nil {
		return fmt.Errorf("qmp: %s: %w", command, err)
	}
	select {
	case r := <-answer:
		return r.into(command, result)
	case <-ctx.Done():
		return fmt.Errorf("qmp: %s: %w", command, context.Cause(ctx))
	case <-c.done:
	}
	select { // the reply may arrive together with the end, as that of quit does
	case r := <-answer:
		return r.into(command, result)
	default:
		return fmt.Errorf("qmp: %s: %w", command, c.cause())
	}
}

type request struct {
	Execute   string `json:"execute"`
	Arguments any    `json:"arguments,omitempty"`
	ID        uint64 `json:"id"`
}

func (r reply) into(command string, result any) error {
	if r.err != nil {
		r.err.Command = command
		return r.err
	}
	if result == nil {
		return nil
	}
	if err := json.Unmarshal(r.value, result); err != nil {
		return fmt.Errorf("qmp: %s: reply: %w", command, err)
	}
	return nil
}

// send writes one request. An unfinished write would leave half a command on the wire, so
// it ends the connection.
func (c *Client) send(ctx context.Context, r request) error {
	line, err := json.Marshal(r)
	if err != nil {
		return err
	}
	c.write.Lock()
	defer c.write.Unlock()
	if err := context.Cause(ctx); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetWriteDeadline(time.Unix(1, 0)) })
	_, err = c.conn.Write(append(line, '\n'))
	if !stop() {
		err = errors.Join(context.Cause(ctx), err)
	}
	if err != nil {
		c.fail(fmt.Errorf("%w: %w", ErrClosed, err))
	}
	return err
}

func (c *Client) greet(r *bufio.Reader) error {
	m, err := readMessage(r)
	if err != nil {
		return err
	}
	if m.greeting == nil {
		return fmt.Errorf("%w: no greeting", ErrNotQMP)
	}
	c.version = *m.greeting
	return nil
}

func (c *Client) read(r *bufio.Reader) {
	defer close(c.done)
	for {
		m, err := readMessage(r)
		if err == nil {
			err = c.take(m)
		}
		if err != nil {
			c.fail(fmt.Errorf("%w: %w", ErrClosed, err))
			return
		}
	}
}

// take handles one message of QEMU.
func (c *Client) take(m message) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case m.event != nil:
		for s := range c.subs {
			s.offerLocked(*m.event)
		}
	case m.reply != nil:
		if m.reply.id >= c.next {
			return fmt.Errorf("%w: reply to command %d, which was never sent", ErrNotQMP, m.reply.id)
		}
		if answer, waits := c.pending[m.reply.id]; waits {
			delete(c.pending, m.reply.id)
			answer <- *m.reply // has room for the one reply
		}
	default:
		return fmt.Errorf("%w: second greeting", ErrNotQMP)
	}
	return nil
}

func (c *Client) forget(id uint64) {
	c.mu.Lock()
	delete(c.pending, id)
	c.mu.Unlock()
}

// fail ends the connection; the first cause counts.
func (c *Client) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.mu.Unlock()
	_ = c.conn.Close()
}

func (c *Client) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// readMessage reads one message.
func readMessage(r *bufio.Reader) (message, error) {
	line, err := readLine(r)
	if err != nil {
		return message{}, err
	}
	return parse(line)
}

// readLine reads up to the next line end.
func readLine(r *bufio.Reader) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > MaxMessage {
			return nil, fmt.Errorf("%w: longer than %d bytes", ErrNotQMP, MaxMessage)
		}
		if line = append(line, part...); err == nil {
			return line, nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return nil, err
		}
	}
}

package qemu

import (
	"bufio"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// controlPort is the name of the guest's end of the control channel.
const controlPort = "dxpu.control"

const (
	// maxLine bounds one line of a guest's output.
	maxLine = 1 << 20
	// MaxOutput bounds what [Control.Run] keeps of a command's output, in bytes.
	MaxOutput = 16 << 20
)

// ErrGuestGone is the cause when the control channel has ended: the guest or its QEMU is gone.
var ErrGuestGone = errors.New("guest is gone")

// ErrGuestReset is the cause when a command ended because the guest was booted again.
var ErrGuestReset = errors.New("guest was reset")

var errProtocol = errors.New("not the control protocol")

// Control runs commands in a guest; any number of goroutines may use it at once. The protocol
// is in scripts/guest/PROTOCOL.md.
type Control struct {
	conn io.ReadWriteCloser
	done chan struct{}

	write sync.Mutex // held while one line is written

	mu     sync.Mutex // guards the fields below
	kernel string
	uptime time.Duration
	booted chan struct{} // closed when the guest is ready again
	next   uint64
	runs   map[uint64]*run
	err    error
}

// run is a command that has not ended.
type run struct {
	out    io.Writer
	status int
	err    error         // of out, or ErrGuestReset
	ended  chan struct{} // closed with status set
}

// NewControl waits for the guest's first line. It takes over conn, even on an error.
func NewControl(ctx context.Context, conn io.ReadWriteCloser) (*Control, error) {
	c := &Control{conn: conn, done: make(chan struct{}), booted: make(chan struct{}), runs: map[uint64]*run{}}
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	r := bufio.NewReaderSize(conn, 64<<10)
	line, err := readLine(r)
	if err == nil {
		err = c.takeReady(line)
	}
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("qemu: guest did not come up: %w", err)
	}
	go c.read(r)
	return c, nil
}

// Kernel is the release of the guest's kernel.
func (c *Control) Kernel() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.kernel
}

// Uptime is the age of the guest's kernel when it was ready.
func (c *Control) Uptime() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.uptime
}

// nextBoot is closed when the guest reports ready again.
func (c *Control) nextBoot() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.booted
}

// Close ends the channel and waits for its reader; running commands continue in the guest.
func (c *Control) Close() error {
	c.fail(ErrGuestGone)
	<-c.done
	return nil
}

// Run runs a shell command line in the guest, with an empty standard input, and returns its
// output (both streams; text, each line with its line end) and exit status. When ctx ends
// first it kills the command in the guest.
func (c *Control) Run(ctx context.Context, command string) (output string, exit int, err error) {
	var b bounded
	exit, err = c.RunTo(ctx, &b, command)
	return b.kept.String(), exit, err
}

// RunTo is [Control.Run] with the output written to out line by line, from another
// goroutine, never after RunTo has returned. A slow out delays all other commands.
func (c *Control) RunTo(ctx context.Context, out io.Writer, command string) (exit int, err error) {
	if err := context.Cause(ctx); err != nil {
		return 0, err
	}
	r := &run{out: out, ended: make(chan struct{})}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return 0, c.cause()
	}
	id := c.next
	c.next++
	c.runs[id] = r
	c.mu.Unlock()
	defer c.drop(id)

	if err := c.send(fmt.Sprintf("run %d %s\n", id, base64.StdEncoding.EncodeToString([]byte(command)))); err != nil {
		return 0, err
	}
	select {
	case <-r.ended:
		return r.status, r.err
	case <-ctx.Done():
		c.drop(id) // drop its further output: nothing is written after RunTo has returned
		_ = c.send(fmt.Sprintf("kill %d\n", id))
		return 0, fmt.Errorf("qemu: guest command: %w", context.Cause(ctx))
	case <-c.done:
	}
	select { // after a poweroff the status may arrive together with the end
	case <-r.ended:
		return r.status, r.err
	default:
		return 0, c.cause()
	}
}

func (c *Control) send(line string) error {
	c.write.Lock()
	defer c.write.Unlock()
	if _, err := io.WriteString(c.conn, line); err != nil {
		c.fail(fmt.Errorf("%w: %w", ErrGuestGone, err))
		return c.cause()
	}
	return nil
}

// takeReady handles "ready RELEASE UPTIME".
func (c *Control) takeReady(line string) error {
	f := strings.Fields(line)
	if len(f) != 3 || f[0] != "ready" {
		return fmt.Errorf("%w: %.40q", errProtocol, line)
	}
	s, err := strconv.ParseFloat(f[2], 64)
	if err != nil || !(s >= 0 && s < 1e9) {
		return fmt.Errorf("%w: uptime %.40q", errProtocol, f[2])
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.kernel, c.uptime = f[1], time.Duration(s*float64(time.Second))
	return nil
}

// rebooted ends the commands from before the reset.
func (c *Control) rebooted(line string) error {
	if err := c.takeReady(line); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for id, r := range c.runs {
		delete(c.runs, id)
		r.err = ErrGuestReset
		close(r.ended)
	}
	close(c.booted)
	c.booted = make(chan struct{})
	return nil
}

func (c *Control) read(r *bufio.Reader) {
	defer close(c.done)
	for {
		line, err := readLine(r)
		if err == nil {
			err = c.take(line)
		}
		if err != nil {
			c.fail(fmt.Errorf("%w: %w", ErrGuestGone, err))
			return
		}
	}
}

// take handles "o ID TEXT" and "x ID STATUS", and "ready" of a guest that was booted again.
func (c *Control) take(line string) error {
	verb, rest, _ := strings.Cut(line, " ")
	if verb == "ready" {
		return c.rebooted(line)
	}
	number, text, _ := strings.Cut(rest, " ")
	id, err := strconv.ParseUint(number, 10, 64)
	if err != nil {
		return fmt.Errorf("%w: %.40q", errProtocol, line)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	r := c.runs[id]
	switch {
	case verb == "o" && r != nil:
		if r.err == nil {
			// Under the lock, so that nothing is written after drop.
			_, r.err = io.WriteString(r.out, text+"\n")
		}
	case verb == "x" && r != nil:
		if r.status, err = strconv.Atoi(text); err != nil {
			return fmt.Errorf("%w: status %.40q", errProtocol, text)
		}
		delete(c.runs, id)
		close(r.ended)
	case (verb == "o" || verb == "x") && id < c.next: // of a command without a waiting caller
	default:
		return fmt.Errorf("%w: %.40q", errProtocol, line)
	}
	return nil
}

func (c *Control) drop(id uint64) {
	c.mu.Lock()
	delete(c.runs, id)
	c.mu.Unlock()
}

func (c *Control) fail(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = err
	}
	c.mu.Unlock()
	_ = c.conn.Close()
}

func (c *Control) cause() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("qemu: control channel: %w", c.err)
}

// readLine reads a line of at most maxLine bytes, without its end.
func readLine(r *bufio.Reader) (string, error) {
	var b strings.Builder
	for {
		part, err := r.ReadSlice('\n')
		if b.Len()+len(part) > maxLine {
			return "", fmt.Errorf("%w: line longer than %d bytes", errProtocol, maxLine)
		}
		b.Write(part)
		if err == nil {
			return strings.TrimSuffix(b.String(), "\n"), nil
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return "", err
		}
	}
}

// bounded keeps the first MaxOutput bytes.
type bounded struct{ kept strings.Builder }

func (b *bounded) Write(p []byte) (int, error) {
	if b.kept.Len()+len(p) > MaxOutput {
		return 0, fmt.Errorf("qemu: guest command: more than %d bytes of output", MaxOutput)
	}
	return b.kept.Write(p)
}

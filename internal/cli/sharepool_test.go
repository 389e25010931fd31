//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// sharedProgram behaves like a program with the driver library in a share.
type sharedProgram struct {
	log    *os.File
	orders string // a file with a number of bytes to allocate, which is removed then
	holds  uint64
}

// fakeShared writes to a file what the share grants. It takes orders from FILE.ask, comes
// back to a later agent, and ends by SIGTERM or when the agent says so.
func fakeShared(file string) error {
	log, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	p := &sharedProgram{log: log, orders: file + ".ask"}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		ended, err := p.session(ctx, tick.C)
		if ended || ctx.Err() != nil {
			fmt.Fprintln(log, "ended")
			return nil
		}
		if err != nil {
			<-tick.C
		}
	}
}

// session serves one connection.
func (p *sharedProgram) session(ctx context.Context, tick <-chan time.Time) (ended bool, err error) {
	c, err := net.Dial("unixpacket", os.Getenv("DXPU_SHARE"))
	if err != nil {
		return false, err
	}
	defer c.Close()
	send := func(m wire.Message) error { _, err := c.Write(m.Append(nil)); return err }
	err = errors.Join(send(wire.Message{Type: wire.Hello, ID: wire.Version, Arg: [wire.Args]uint64{uint64(os.Getpid())}}),
		send(wire.Message{Type: wire.Holds, Bytes: p.holds, Arg: [wire.Args]uint64{p.holds}}))
	if err != nil {
		return false, err
	}
	buffer := make([]byte, wire.MessageSize)
	for ctx.Err() == nil {
		if err := c.SetReadDeadline(time.Now().Add(20 * time.Millisecond)); err != nil {
			return false, err
		}
		n, err := c.Read(buffer)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if text, err := os.ReadFile(p.orders); err == nil && strings.HasSuffix(string(text), "\n") {
				bytes, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
				if err := errors.Join(err, os.Remove(p.orders), send(wire.Message{Type: wire.Allocate, ID: 1, Bytes: bytes})); err != nil {
					return false, err
				}
			}
			continue
		}
		if err != nil {
			return false, err
		}
		m, err := wire.ParseAnswer(buffer[:n])
		if err != nil {
			return false, err
		}
		switch m.Type {
		case wire.End:
			return true, nil
		case wire.Granted:
			p.holds += m.Bytes
		}
		fmt.Fprintln(p.log, m.Type, m.Bytes)
	}
	return false, nil
}

//go:build linux

package agent_test

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// client speaks the protocol.
type client struct {
	socket *net.UnixConn
	page   []byte
}

func dial(path string) (*client, error) {
	s, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: path, Net: "unixpacket"})
	return &client{socket: s}, err
}

func (c *client) send(m wire.Message) error {
	_, err := c.socket.Write(m.Append(nil))
	return err
}

func (c *client) receive() (wire.Message, error) {
	b, rights := make([]byte, wire.MessageSize+1), make([]byte, 64)
	n, r, _, _, err := c.socket.ReadMsgUnix(b, rights)
	if err != nil {
		return wire.Message{}, err
	}
	if r > 0 {
		messages, err := unix.ParseSocketControlMessage(rights[:r])
		if err != nil {
			return wire.Message{}, err
		}
		fds, err := unix.ParseUnixRights(&messages[0])
		if err != nil {
			return wire.Message{}, err
		}
		if c.page, err = unix.Mmap(fds[0], 0, wire.PageSize, unix.PROT_READ, unix.MAP_SHARED); err != nil {
			return wire.Message{}, err
		}
		if _, err := unix.Mmap(fds[0], 0, wire.PageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			return wire.Message{}, fmt.Errorf("the page can be written")
		}
		_ = unix.Close(fds[0])
	}
	return wire.ParseAnswer(b[:n])
}

// greet sends HELLO and returns the type of the answer, or an error as text.
func (c *client) greet() string { return c.greetWith(0) }

func (c *client) greetWith(tells uint64) string {
	if err := c.send(wire.Message{Type: wire.Hello, ID: wire.Version, Arg: [wire.Args]uint64{uint64(os.Getpid()), tells}}); err != nil {
		return err.Error()
	}
	m, err := c.receive()
	if err != nil {
		return err.Error()
	}
	return m.Type.String()
}

// child is a process of a share.
type child struct {
	cmd   *exec.Cmd
	input interface{ Write([]byte) (int, error) }
	lines *bufio.Scanner
}

func (m *machine) child(s agent.Share) *child {
	m.t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SHARE_TEST_SOCKET="+s.Socket)
	in, err := cmd.StdinPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		m.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	c := &child{cmd, in, bufio.NewScanner(out)}
	m.t.Cleanup(c.kill)
	if got := c.line(); got != "WELCOME" {
		m.t.Fatalf("child: %s", got)
	}
	return c
}

func (c *child) line() string {
	if !c.lines.Scan() {
		return ""
	}
	return c.lines.Text()
}

func (c *child) allocate(bytes uint64) string {
	_, _ = fmt.Fprintln(c.input, bytes)
	return c.line()
}

func (c *child) kill() {
	if c.cmd.ProcessState == nil {
		_ = c.cmd.Process.Kill()
		_ = c.cmd.Wait()
	}
}

func (c *client) state(t testing.TB) wire.Page {
	t.Helper()
	p, err := wire.ParsePage(c.page)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

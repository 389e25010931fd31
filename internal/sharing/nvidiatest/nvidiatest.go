// Package nvidiatest has fakes of nvidia-smi and nvidia-cuda-mps-control for tests. The
// fakes behave as NVIDIA documents the programs: their commands, output and exit
// codes. Scripts make them slow, silent, wrong or broken.
//
// A test binary stands for the programs: its TestMain calls Main first, and Install
// makes links with the programs' names to it.
package nvidiatest

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	smiName     = "nvidia-smi"
	controlName = "nvidia-cuda-mps-control"
	serverName  = "nvidia-cuda-mps-server"
)

// Main runs a fake program and exits if the process was started under its name. In a
// test binary it also tells the race detector, by the environment of the fakes, not to
// sleep for a second at the end of each of them, as it does by default.
func Main() {
	switch filepath.Base(os.Args[0]) {
	case smiName:
		os.Exit(smi())
	case controlName:
		os.Exit(control())
	case serverName:
		os.Exit(server())
	}
	if os.Getenv("GORACE") == "" {
		_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
	}
}

// Install makes the programs in a new folder, which it returns.
func Install(t testing.TB) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{smiName, controlName, serverName} {
		if err := os.Symlink(self, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// Client is a process that uses a GPU through MPS. Its process ID is its own word.
type Client struct {
	conn net.Conn
	in   *bufio.Reader
}

// Connect makes a client. It returns the limits that it got, as percentage and memory,
// or an error with the number of the CUDA error.
func Connect(pipes string, pid int) (*Client, string, error) {
	conn, err := net.Dial("unix", filepath.Join(pipes, "control"))
	if err != nil {
		return nil, "", fmt.Errorf("805: %w", err)
	}
	c := &Client{conn, bufio.NewReader(conn)}
	if _, err := fmt.Fprintf(conn, "connect %d\n", pid); err != nil {
		return nil, "", err
	}
	answer, err := c.in.ReadString('\n')
	if err != nil {
		return nil, "", fmt.Errorf("805: %w", err)
	}
	limits, ok := strings.CutPrefix(strings.TrimSpace(answer), "connected ")
	if !ok {
		_ = conn.Close()
		return nil, "", fmt.Errorf("%s", strings.TrimSpace(answer))
	}
	return c, limits, nil
}

// Close ends the client.
func (c *Client) Close() { _ = c.conn.Close() }

// Wait returns when the service has ended the client.
func (c *Client) Wait() {
	_, _ = c.in.ReadString(0)
}

// Script gives the fake daemon an order:
//
//	fault      a fatal fault, from which the server recovers when its clients have left
//	wedge      a fatal fault from which it never recovers
//	hang       the daemon answers nothing any more
//	garbage    its answers are garbage
//	crash      the server ends
func Script(pipes, order string) error {
	conn, err := net.Dial("unix", filepath.Join(pipes, "control"))
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, "fake %s\n", order); err != nil {
		return err
	}
	_, err = bufio.NewReader(conn).ReadString('\n')
	return err
}

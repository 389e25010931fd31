//go:build linux

package agent_test

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/sharing/agent"
)

// dialAs connects many times to a socket, as another user if this one is root.
func dialAs(uid, count int, path string) (conns []net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // until its end, which ends the thread: others stay root
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
			err = errno
			return
		}
		for range count {
			var c net.Conn
			if c, err = net.Dial("unix", path); err != nil {
				return
			}
			conns = append(conns, c)
		}
	}()
	<-done
	return conns, err
}

// A user who opens connections and says nothing has some of them only, and keeps no others from the
// agent.
func TestSilentCallers(t *testing.T) {
	m := start(t, "", "gemini")
	path := filepath.Join(m.dir, "run", agent.ControlName)
	if err := errors.Join(os.Chmod(m.dir, 0o755), os.Chmod(path, 0o666)); err != nil {
		t.Fatal(err)
	}
	uid := os.Getuid()
	if uid == 0 {
		uid = 65534
	}
	const many = 300
	conns, err := dialAs(uid, many, path)
	defer func() {
		for _, c := range conns {
			_ = c.Close()
		}
	}()
	if err != nil {
		t.Fatal(err)
	}
	if uid != os.Getuid() {
		m.create(agent.Part{Memory: gib})
	}
	refused := make(chan bool, many)
	for _, c := range conns {
		go func() {
			answer := make([]byte, 1024)
			n, _ := c.Read(answer) // nothing from one that was silent for too long
			text := string(answer[:n])
			refused <- strings.HasPrefix(text, "HTTP/1.1 503 ") && strings.Contains(text, "this user has 128 calls")
		}()
	}
	for left := many; !<-refused; left-- {
		if left == 1 {
			t.Fatalf("%d silent connections of one user were accepted", many)
		}
	}
	// When they have ended the user may call again.
	for _, c := range conns {
		_ = c.Close()
	}
	m.until("the user is served", func() bool {
		conns, err := dialAs(uid, 1, path)
		if err != nil {
			t.Fatal(err)
		}
		defer conns[0].Close()
		if _, err := conns[0].Write([]byte("GET /v1/gpus HTTP/1.0\r\n\r\n")); err != nil {
			return false
		}
		answer := make([]byte, 1024)
		n, err := conns[0].Read(answer)
		return err == nil && strings.HasPrefix(string(answer[:n]), "HTTP/1.0 200 ")
	})
}

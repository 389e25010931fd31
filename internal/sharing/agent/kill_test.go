//go:build linux

package agent

import (
	"net"
	"os"
	"testing"

	"github.com/dxpu-project/dxpu/internal/sharing/wire"
)

// The agent closes the connection of a process that it may not kill, such as a process of root beside
// an agent of a user: the process would launch for ever in a share that ends.
func TestProcessThatIsNotKilled(t *testing.T) {
	c, _ := damaged(t, inShortDir(t))
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.restore(); err != nil {
		t.Fatal(err)
	}
	defer a.close()
	socket, err := net.DialUnix("unixpacket", nil, &net.UnixAddr{Name: SocketPath(c.Dir, "web"), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	if _, err := socket.Write(wire.Message{Type: wire.Hello, ID: wire.Version}.Append(nil)); err != nil {
		t.Fatal(err)
	}
	if _, err := socket.Read(make([]byte, wire.MessageSize)); err != nil {
		t.Fatal(err)
	}
	a.mu.Lock()
	w := a.watches[os.Getpid()]
	if w == nil || len(w.ids) != 1 {
		t.Errorf("the watches are %v", a.watches)
	} else {
		w.process.close() // whose signal fails
		a.killLocked(w.ids[0])
	}
	left := len(a.conns)
	a.mu.Unlock()
	if left != 0 {
		t.Errorf("%d connections are left", left)
	}
}

package fdstore

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

func TestMessages(t *testing.T) {
	dir, err := os.MkdirTemp("", "fds") //nolint:usetesting // a socket's path has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "notify")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", name)
	s, err := Open()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if err := s.Put("slot0-b1", r, w); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove("slot0-b1"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []struct {
		text  string
		files int
	}{{"FDSTORE=1\nFDNAME=slot0-b1", 2}, {"FDSTOREREMOVE=1\nFDNAME=slot0-b1", 0}} {
		text, oob := make([]byte, 256), make([]byte, 256)
		n, k, _, _, err := manager.ReadMsgUnix(text, oob)
		if err != nil {
			t.Fatal(err)
		}
		files := 0
		messages, err := unix.ParseSocketControlMessage(oob[:k])
		for i := range messages {
			fds, _ := unix.ParseUnixRights(&messages[i])
			for _, fd := range fds {
				_ = unix.Close(fd)
				files++
			}
		}
		if string(text[:n]) != want.text || files != want.files || err != nil {
			t.Errorf("%q with %d files, %v; want %q with %d", text[:n], files, err, want.text, want.files)
		}
	}
}

func TestNoServiceManager(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if s, err := Open(); s != nil || err != nil {
		t.Errorf("%v, %v", s, err)
	}
	t.Setenv("LISTEN_PID", "1")
	t.Setenv("LISTEN_FDS", "3")
	if files := Inherited(); len(files) != 0 {
		t.Errorf("inherited %v from a variable of another process", files)
	}
}

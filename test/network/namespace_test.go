package network

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// namespace is a network namespace that has no name: a thread holds it.
type namespace struct {
	t     *testing.T
	file  *os.File
	calls chan func()
}

// newNamespace makes one that lasts as long as the test, or skips the test where
// that is forbidden.
func newNamespace(t *testing.T) *namespace {
	t.Helper()
	if _, err := exec.LookPath("ip"); errors.Is(err, exec.ErrNotFound) {
		t.Skipf("needs ip of iproute2: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	n := &namespace{t: t, calls: make(chan func())}
	made, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		err := os.NewSyscallError("unshare", unix.Unshare(unix.CLONE_NEWNET))
		if err == nil {
			n.file, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid()))
		}
		made <- err
		for f := range n.calls {
			f()
		}
	}()
	err := <-made
	t.Cleanup(func() {
		close(n.calls)
		<-ended
		if n.file != nil {
			_ = n.file.Close()
		}
	})
	switch {
	case errors.Is(err, unix.EPERM):
		t.Skipf("needs root (CAP_SYS_ADMIN) for network namespaces: %v", err)
	case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOSPC): // unshare(2): not in this kernel; a limit of none
		t.Skipf("no network namespaces here: %v", err)
	case err != nil:
		t.Fatal(err)
	}
	n.ip("link set lo up")
	return n
}

// do runs f in the namespace. A process that f starts lives in it, and dies
// with its thread if it wants to (prctl(2), PR_SET_PDEATHSIG).
func (n *namespace) do(f func()) {
	done := make(chan struct{})
	n.calls <- func() {
		defer close(done)
		f()
	}
	<-done
}

// ip runs the ip command in the namespace. What the kernel forbids, or has no
// such device for, skips the test.
func (n *namespace) ip(format string, args ...any) {
	n.t.Helper()
	line := fmt.Sprintf(format, args...)
	var out []byte
	var err error
	n.do(func() { out, err = exec.Command("ip", strings.Fields(line)...).CombinedOutput() })
	switch text := strings.TrimSpace(string(out)); {
	case err == nil:
	case strings.Contains(text, "Operation not permitted"), strings.Contains(text, "Unknown device type"):
		n.t.Skipf("ip %s: %s", line, text)
	default:
		n.t.Fatalf("ip %s: %v: %s", line, err, text)
	}
}

// ends of a network.
const (
	hostEnd = 0
	boxEnd  = 1
)

// network is two namespaces, joined by paths: interface "p0" of one is joined to
// "p0" of the other, and so on.
type network [2]*namespace

const jumbo = 9000 // MTU of the interfaces

func newNetwork(t *testing.T, paths int) network {
	t.Helper()
	n := network{newNamespace(t), newNamespace(t)}
	for i := range paths {
		peer := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), n[boxEnd].file.Fd())
		n[hostEnd].ip("link add p%d mtu %d type veth peer name p%d mtu %d netns %s", i, jumbo, i, jumbo, peer)
		for end, ns := range n {
			ns.ip("addr add %s/24 dev p%d", address(end, i), i)
			ns.ip("link set p%d up", i)
		}
	}
	return n
}

// address is that of an end in a path's network, which is one for
// documentation and examples (RFC 5737).
func address(end, path int) string {
	return fmt.Sprintf("%s.%d", [...]string{"192.0.2", "198.51.100"}[path], end+1)
}

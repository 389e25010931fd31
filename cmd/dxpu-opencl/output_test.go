package main

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// What kernels print is there at once after they have ended, in pieces, and it has a bound.
func TestOutput(t *testing.T) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = unix.Close(fds[0]), unix.Close(fds[1]) })
	o := &output{fd: fds[0]}
	print := func(text []byte) {
		if n, err := unix.Write(fds[1], text); err != nil || n != len(text) {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
	print([]byte("abcdef"))
	for _, want := range []string{"abcd", "ef", ""} {
		if got := o.take(4); string(got) != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	page := bytes.Repeat([]byte("x"), 4096)
	for range reg.MaxOutput/len(page) + 3 {
		print(page)
		o.read()
	}
	if n := len(o.take(2 * reg.MaxOutput)); n != reg.MaxOutput {
		t.Errorf("%d bytes", n)
	}
}

// A kernel that never stops to print holds up no other call of its program.
func TestEndlessOutput(t *testing.T) {
	fd, err := unix.Open("/dev/zero", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	o := &output{fd: fd}
	if n := len(o.take(4)); n != 4 {
		t.Errorf("%d bytes", n)
	}
}

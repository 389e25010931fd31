package main

import (
	"sync"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// output holds what kernels print. A platform on the processors writes it to the standard
// output of its process, which here is a pipe. A goroutine empties the pipe, so a kernel
// never waits for it.
type output struct {
	fd int // of the pipe; it does not block

	mu   sync.Mutex // guards text and the reads of fd
	text []byte     // not yet taken, up to reg.MaxOutput bytes; further ones are dropped
}

// captureOutput puts a pipe in the place of the standard output. Its goroutine ends with the
// process.
func captureOutput() (*output, error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, err
	}
	if err := unix.Dup3(fds[1], unix.Stdout, 0); err != nil {
		return nil, err
	}
	if err := unix.Close(fds[1]); err != nil {
		return nil, err
	}
	o := &output{fd: fds[0]}
	go o.drain()
	return o, nil
}

func (o *output) drain() {
	wait := []unix.PollFd{{Fd: int32(o.fd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(wait, -1); err != nil && err != unix.EINTR {
			return
		}
		o.mu.Lock()
		o.read()
		o.mu.Unlock()
	}
}

// maxPipe is what a pipe holds at most.
const maxPipe = 1 << 20

// read moves what is in the pipe to text. A kernel may print all the time, so it ends when
// it has read more than there was.
func (o *output) read() {
	var b [16 << 10]byte
	for done := 0; done < maxPipe; {
		n, err := unix.Read(o.fd, b[:])
		if err != nil || n <= 0 {
			return
		}
		done += n
		o.text = append(o.text, b[:min(n, reg.MaxOutput-len(o.text))]...)
	}
}

// take returns up to n bytes and forgets them: all that kernels have printed that have ended.
func (o *output) take(n int) []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.read()
	n = min(n, len(o.text))
	out := append([]byte(nil), o.text[:n]...)
	if o.text = o.text[n:]; len(o.text) == 0 {
		o.text = nil
	}
	return out
}

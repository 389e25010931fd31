// Command dxpu-opencl is the OpenCL engine of a GPU box: "dxpu box" starts it, once
// to list the devices, and once for each binding to execute the packets of a tenant.
// It is a program of its own because it is not static, unlike dxpu, and because a
// platform's fault ends it.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/opencl/cl"
	"github.com/dxpu-project/dxpu/internal/opencl/ring"
	"github.com/dxpu-project/dxpu/internal/opencl/session"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "dxpu-opencl:", err)
		os.Exit(1)
	}
}

func run(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("dxpu-opencl", flag.ContinueOnError)
	index := flags.Int("serve", -1, "`index` of the device to serve; without it, list the devices")
	memory := flags.Uint64("memory", 0, "`bytes` of the device to offer; 0 for all")
	most := flags.Uint64("most", 0, "highest `bytes` that the box may allow later; 0 for --memory")
	turns := flags.Bool("turns", false, "wait for a turn of the device, which several tenants share")
	moves := flags.Bool("moves", false, "let the context move to another device")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *index >= 0 {
		if err := confine(); errors.Is(err, errLess) {
			fmt.Fprintln(os.Stderr, "dxpu-opencl:", err)
		} else if err != nil {
			return err
		}
	}
	library, err := cl.Open()
	if err != nil {
		return err
	}
	devices, err := library.Devices()
	if err != nil {
		return err
	}
	if *index < 0 {
		return json.NewEncoder(out).Encode(devices)
	}
	if *index >= len(devices) {
		return fmt.Errorf("device %d of %d", *index, len(devices))
	}
	return serve(library, devices[*index], *memory, *most, *turns, *moves)
}

// The box passes these descriptors: the socket and the memory of the ring of packets, the
// memory that it shares, and with --turns the socket for turns, or with --moves the socket for
// moves and a ring.
const (
	socketFD  = 3
	vramFD    = 4
	channelFD = 5
	turnsFD   = 6
	movesFD   = 6
	ringFD    = 7
)

// compilerMemory is what the process may use besides buffers: the platform, its
// compiler, and copies that it makes.
const compilerMemory = 4 << 30

func serve(library *cl.Library, device cl.Found, memory, most uint64, turns, moves bool) error {
	unix.CloseOnExec(socketFD)
	unix.CloseOnExec(vramFD)
	unix.CloseOnExec(channelFD)
	if memory == 0 || memory > device.Memory {
		memory = device.Memory
	}
	most = min(max(most, memory), device.Memory)
	if err := limitMemory(memory, most); err != nil {
		return fmt.Errorf("limit of memory: %w", err)
	}
	if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{}); err != nil {
		return fmt.Errorf("limit of core dumps: %w", err)
	}
	// Processes of other tenants run as the same user: they must not trace this one.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("forbid tracing: %w", err)
	}
	reader.ReserveProcessors()
	debug.SetTraceback("none") // a fault of a tenant's program is no news of the box
	vram, err := shared(vramFD)
	if err != nil {
		return err
	}
	channel, err := shared(channelFD)
	if err != nil {
		return err
	}
	conn, err := ring.NewProcess(channel, socketFD)
	if err != nil {
		return err
	}
	out, err := captureOutput()
	if err != nil {
		return fmt.Errorf("output of kernels: %w", err)
	}
	config := session.Config{Library: library, Device: device, VRAM: vram, Memory: memory, Conn: conn, Output: out.take}
	if turns {
		unix.CloseOnExec(turnsFD)
		config.Turns = socket(turnsFD)
		config.Allowed = func(memory uint64) error { return limitMemory(memory, most) }
	} else if moves {
		unix.CloseOnExec(movesFD)
		unix.CloseOnExec(ringFD)
		config.Moves = socket(movesFD)
		if config.Ring, err = shared(ringFD); err != nil {
			return err
		}
	}
	return session.Run(config)
}

// shared maps shared memory.
func shared(fd int) ([]byte, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	b, err := unix.Mmap(fd, 0, int(st.Size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("shared memory: %w", err)
	}
	return b, nil
}

// limitMemory limits the memory of the process, and how far it may raise the limit.
func limitMemory(memory, most uint64) error {
	return unix.Setrlimit(unix.RLIMIT_DATA, &unix.Rlimit{Cur: compilerMemory + min(memory, most), Max: compilerMemory + most})
}

// socket is a connection to the box: the descriptor of a socket of type SOCK_SEQPACKET that
// blocks.
type socket uintptr

func (s socket) Receive(p []byte, block bool) (int, error) {
	flags := unix.MSG_DONTWAIT
	if block {
		flags = 0
	}
	for {
		switch n, err := s.recv(p, flags); {
		case err == unix.EINTR:
		case err == unix.EAGAIN:
			return 0, reader.ErrNothing
		case err != nil:
			return 0, fmt.Errorf("socket: %w", err)
		case n == 0:
			return 0, io.EOF
		default:
			return n, nil
		}
	}
}

// recv is recv(2), which package unix has only with the address of the sender.
func (s socket) recv(p []byte, flags int) (int, error) {
	n, _, e := unix.Syscall6(unix.SYS_RECVFROM, uintptr(s), uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)), uintptr(flags), 0, 0)
	if e != 0 {
		return 0, e
	}
	return int(n), nil
}

func (s socket) Send(events []byte) error {
	for {
		err := unix.Sendto(int(s), events, unix.MSG_NOSIGNAL, nil)
		if err != unix.EINTR {
			return err
		}
	}
}

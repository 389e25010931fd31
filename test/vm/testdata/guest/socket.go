package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// vsock makes a stream socket of the family AF_VSOCK and calls use with a port.
func vsock(port string, use func(fd int, port uint32) error) (*os.File, error) {
	n, err := strconv.ParseUint(port, 10, 32)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_VSOCK, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), "port "+port)
	if err := use(fd, uint32(n)); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// dial connects to a port of the host.
func dial(port string) (*os.File, error) {
	return vsock(port, func(fd int, port uint32) error {
		return unix.Connect(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_HOST, Port: port})
	})
}

// echo sends data to a port of the host and compares what comes back.
func echo(_ context.Context, args []string) error {
	f, err := dial(args[0])
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // its data has been read
	want := make([]byte, 2<<20)
	for i := range want {
		want[i] = byte(i * i >> 9)
	}
	sent := make(chan error, 1)
	go func() {
		_, err := f.Write(want)
		sent <- err
	}()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(f, got); err != nil {
		return err
	}
	if err := <-sent; err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("other bytes came back")
	}
	fmt.Println(len(got), "bytes")
	return nil
}

// stay connects to a port of the host and prints why the connection has ended.
func stay(_ context.Context, args []string) error {
	f, err := dial(args[0])
	if err != nil {
		return err
	}
	fmt.Println("connected")
	_, err = f.Read(make([]byte, 1))
	fmt.Println("ended:", err)
	return f.Close()
}

// serve sends back what comes from each program that connects, one after the other.
func serve(_ context.Context, args []string) error {
	f, err := vsock(args[0], func(fd int, port uint32) error {
		if err := unix.Bind(fd, &unix.SockaddrVM{CID: unix.VMADDR_CID_ANY, Port: port}); err != nil {
			return err
		}
		return unix.Listen(fd, 8)
	})
	if err != nil {
		return err
	}
	defer f.Close() //nolint:errcheck // the loop ends with an error of its own
	fmt.Println("listening")
	for {
		fd, _, err := unix.Accept(int(f.Fd()))
		if err != nil {
			return err
		}
		c := os.NewFile(uintptr(fd), "connection")
		n, err := io.Copy(c, c)
		fmt.Println(n, "bytes", err)
		_ = c.Close()
	}
}

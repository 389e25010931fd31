// Guest is a helper of the tests that runs in the guest, for checks that "dxpu gpu
// test" does not have or that need less of it.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfio"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

func main() {
	commands := map[string]func(ctx context.Context, args []string) error{
		"use":  use,    // ADDRESS...: copies to each GPU and back
		"poll": poll,   // ADDRESS: reads a register until the end and prints each change
		"hold": hold,   // ADDRESS: does nothing until it loses the GPU
		"move": move,   // ADDRESS: asks the kernel to move the GPU's memory to another node
		"peer": peer,   // FROM TO: a GPU writes into the other's memory
		"copy": copies, // ADDRESS: drives the device of test/conformance/libvfio-user/device.c
		"echo": echo,   // PORT: exchanges data with an echo at a port of the host
		"stay": stay,   // PORT: is connected with a port of the host until that ends
		"wait": serve,  // PORT: is an echo at a port of the guest
	}
	err := errors.New("usage: guest use|poll|hold|move|peer|copy ADDRESS [ADDRESS], or guest echo|stay|wait PORT")
	if len(os.Args) > 2 && commands[os.Args[1]] != nil {
		err = commands[os.Args[1]](context.Background(), os.Args[2:])
	}
	if err != nil {
		fmt.Println("error:", err)
		os.Exit(1)
	}
}

// gpu is an opened GPU.
type gpu struct {
	bus    *vfio.Bus
	dev    *driver.Device
	stream *driver.Stream
}

func open(ctx context.Context, address string) (*gpu, error) {
	g := &gpu{}
	var err error
	if g.bus, err = vfio.Open(address, vfio.Options{Bind: os.Getuid() == 0}); err != nil {
		return nil, err
	}
	if g.dev, err = driver.Open(ctx, g.bus, driver.Options{}); err != nil {
		return nil, errors.Join(err, g.bus.Close())
	}
	if g.stream, err = g.dev.NewStream(); err != nil {
		return nil, errors.Join(err, g.close())
	}
	return g, nil
}

func (g *gpu) close() error { return errors.Join(g.dev.Close(), g.bus.Close()) }

func use(ctx context.Context, addresses []string) error {
	for _, a := range addresses {
		if err := useOne(ctx, a); err != nil {
			return fmt.Errorf("%s: %w", a, err)
		}
	}
	return nil
}

func useOne(ctx context.Context, address string) (err error) {
	g, err := open(ctx, address)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, g.close()) }()
	in, out := make([]byte, 1<<20), make([]byte, 1<<20)
	for i := range in {
		in[i] = byte(i*7 + i>>8)
	}
	if err := errors.Join(g.stream.Upload(ctx, 4096, in), g.stream.Download(ctx, out, 4096)); err != nil {
		return err
	}
	if !bytes.Equal(in, out) {
		return errors.New("other bytes came back")
	}
	woke, missed := g.dev.Interrupts()
	memory, err := g.bus.AllocDMA(4096)
	if err != nil {
		return err
	}
	fmt.Printf("%s: serial %d, %v, memory at %#x, %d interrupts, %d missed\n", address, g.dev.Info().Serial, g.bus.Mode(), memory.Segments()[0].Addr, woke, missed)
	return memory.Free()
}

func poll(_ context.Context, args []string) error {
	bus, err := vfio.Open(args[0], vfio.Options{Bind: true})
	if err != nil {
		return err
	}
	regs, err := bus.BAR(reg.BARRegisters)
	if err != nil {
		return err
	}
	bus.ConfigWrite32(4, 6)
	for last := uint32(0); ; {
		select {
		case <-bus.Lost():
			fmt.Println("lost")
			return bus.Close()
		default:
		}
		at := time.Now()
		v := regs.Read32(reg.ID)
		if took := time.Since(at); v != last {
			last = v
			fmt.Printf("%#08x after %d ms\n", v, took.Milliseconds())
		}
	}
}

func hold(ctx context.Context, args []string) error {
	g, err := open(ctx, args[0])
	if err != nil {
		return err
	}
	fmt.Println("held")
	<-g.bus.Lost()
	fmt.Println("lost")
	return g.close()
}

// peer lets the first GPU copy from its memory into the second's window. The bus
// address of the window comes from sysfs: no IOMMU maps it.
func peer(ctx context.Context, args []string) (err error) {
	var gpus [2]*gpu
	for i := range gpus {
		if gpus[i], err = open(ctx, args[i]); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, gpus[i].close()) }()
	}
	window, err := windowOf(args[1])
	if err != nil {
		return err
	}
	const n, from, to = 64<<10 + 12, 4096, 8192
	in, out := make([]byte, n), make([]byte, n)
	for i := range in {
		in[i] = byte(i*11 + i>>8)
	}
	if err := errors.Join(gpus[0].stream.Upload(ctx, from, in), gpus[1].stream.Fill(ctx, to, 0, n)); err != nil {
		return err
	}
	at := time.Now()
	err = errors.Join(gpus[1].stream.Sync(ctx), gpus[0].stream.Submit(ctx, reg.CopyFromVRAM(0, window+to, from, n)), gpus[0].stream.Sync(ctx))
	if err != nil {
		return err
	}
	took := time.Since(at)
	// A register read behind the copy: the writes of the first GPU are there.
	if err := errors.Join(gpus[1].dev.Alive(), gpus[1].stream.Download(ctx, out, to)); err != nil {
		return err
	}
	if !bytes.Equal(in, out) {
		return errors.New("other bytes arrived")
	}
	fmt.Printf("%d bytes from GPU to GPU at %#x in %v\n", n, window, took)
	return nil
}

// windowOf returns the bus address of a GPU's aperture.
func windowOf(address string) (start uint64, err error) {
	text, err := os.ReadFile(filepath.Join("/sys/bus/pci/devices", address, "resource"))
	if err != nil {
		return 0, err
	}
	_, err = fmt.Sscanf(strings.Split(string(text), "\n")[reg.BARVRAM], "0x%x", &start)
	return start, err
}

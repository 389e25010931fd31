package vfiouser_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"

	"github.com/dxpu-project/dxpu/vfiouser"
)

// adder is a device with one 4 KiB BAR: it adds up the writes to offset 0, and a
// read of offset 8 returns the sum.
type adder struct {
	vfiouser.NopHandler
	config [256]byte
	sum    uint64
}

func (d *adder) Access(_ *vfiouser.Conn, a *vfiouser.Access) {
	switch {
	case a.Region == vfiouser.RegionConfig && !a.Write:
		copy(a.Data, d.config[a.Offset:])
	case a.Region == vfiouser.RegionBAR0 && a.Write && a.Offset == 0 && len(a.Data) == 8:
		d.sum += binary.LittleEndian.Uint64(a.Data)
	case a.Region == vfiouser.RegionBAR0 && !a.Write && a.Offset == 8 && len(a.Data) == 8:
		binary.LittleEndian.PutUint64(a.Data, d.sum)
	}
	a.Reply()
}

// A device in a few lines, and a client that drives it. QEMU would be the
// client with
//
//	-device '{"driver":"vfio-user-pci","socket":{"type":"unix","path":"adder.sock"}}'
func Example() {
	const rw = vfiouser.RegionFlagRead | vfiouser.RegionFlagWrite
	dev := &adder{}
	binary.LittleEndian.PutUint32(dev.config[:], 0x11e81234) // device and vendor ID
	cfg := vfiouser.Config{Handler: dev, HideMSIXAtRealize: true}
	cfg.Regions[vfiouser.RegionBAR0] = vfiouser.Region{Size: 4096, Flags: rw}
	cfg.Regions[vfiouser.RegionConfig] = vfiouser.Region{Size: 256, Flags: rw}
	srv, err := vfiouser.NewServer(cfg)
	if err != nil {
		fmt.Println(err)
		return
	}
	dir, err := os.MkdirTemp("", "adder")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	ln, err := vfiouser.Listen(filepath.Join(dir, "adder.sock"))
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	served := make(chan error)
	go func() { served <- srv.Serve(ctx, ln) }()

	c, err := vfiouser.Dial(ctx, filepath.Join(dir, "adder.sock"), vfiouser.ClientConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	buf := make([]byte, 8)
	for n := range uint64(5) {
		binary.LittleEndian.PutUint64(buf, n)
		if err := c.PostWrite(vfiouser.RegionBAR0, 0, buf); err != nil {
			fmt.Println(err)
		}
	}
	if err := c.RegionRead(ctx, vfiouser.RegionBAR0, 8, buf); err != nil {
		fmt.Println(err)
	}
	fmt.Println("sum:", binary.LittleEndian.Uint64(buf))
	_ = c.Close()
	cancel()
	fmt.Println(<-served)
	// Output:
	// sum: 10
	// context canceled
}

// A handler that asks another machine: the answer comes later, from another
// goroutine. Before the answer of a read, what the device has written to guest
// memory is there.
func ExampleAccess() {
	remote := make(chan *vfiouser.Access, 16)
	handle := func(_ *vfiouser.Conn, a *vfiouser.Access) {
		if a.Write {
			a.Reply()
			return
		}
		remote <- a // returns at once; the reader goes on
	}
	answer := func(c *vfiouser.Conn, value byte) {
		a := <-remote
		if err := c.Memory().Write(0x1000, []byte{value}); err != nil {
			a.Fail(err)
			return
		}
		a.Data[0] = value
		a.Reply()
	}
	_, _ = handle, answer
}

// Drive any device server.
func ExampleDial() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel() // an example does not wait for a server
	c, err := vfiouser.Dial(ctx, "/run/device.sock", vfiouser.ClientConfig{})
	if err != nil {
		fmt.Println("no server")
		return
	}
	defer c.Close()
	info, err := c.DeviceInfo(ctx)
	fmt.Println(info.Regions, "regions", err)
	// Output: no server
}

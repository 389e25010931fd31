package vfiouserbus_test

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/internal/leaktest"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// still is a device without registers.
type still struct {
	vfiouser.NopHandler
	config *cfgspace.Space
}

func (s still) DMAMap(*vfiouser.Conn, vfiouser.Mapping) error { return nil }

func (s still) Access(_ *vfiouser.Conn, a *vfiouser.Access) {
	if !a.Write {
		copy(a.Data, s.config.Bytes()[a.Offset:])
	}
	a.Reply()
}

// mappings returns the number of mappings of DMA memory in this process.
func mappings(t *testing.T) int {
	t.Helper()
	leaktest.NeedProc(t)
	text, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), "memfd:dxpu-dma")
}

// Close releases the DMA memory that the program has not freed.
func TestCloseReleasesMemory(t *testing.T) {
	space, err := cfgspace.NewEndpoint(cfgspace.Identity{Vendor: 0x1234, Device: 1, Class: 0xff0000}).
		Express(cfgspace.Express{Type: cfgspace.Endpoint, Generation: pcie.Gen3, Width: 1, MaxPayload: 128}).Build()
	if err != nil {
		t.Fatal(err)
	}
	cfg := vfiouser.Config{Handler: still{config: space}}
	cfg.Regions[vfiouser.RegionConfig] = vfiouser.Region{Size: pcie.ConfigSize, Flags: vfiouser.RegionFlagRead | vfiouser.RegionFlagWrite}
	server, err := vfiouser.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	ln, err := vfiouser.Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(context.Background(), ln)
	}()
	defer func() {
		_ = server.Close()
		<-served
	}()
	for _, messages := range []bool{false, true} {
		before := mappings(t)
		bus, err := vfiouserbus.Options{Messages: messages}.Open(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		kept, err := bus.AllocDMA(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		freed, err := bus.AllocDMA(1 << 20)
		if err != nil {
			t.Fatal(err)
		}
		if err := freed.Free(); err != nil {
			t.Fatal(err)
		}
		if err := bus.Close(); err != nil {
			t.Error(err)
		}
		<-bus.Lost()
		for server.Conn() != nil { // the server unmaps its view
			runtime.Gosched()
		}
		if now := mappings(t); now != before {
			t.Errorf("messages %v: %d mappings of DMA memory, %d before", messages, now, before)
		}
		kept.Bytes()[0]++ // a program that has not noticed the end of the bus
		_ = kept.Free()
	}
}

package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/internal/bench/process"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// Sockets of the device servers, which take one client each.
const (
	serverDirect = "direct"
	serverBox    = "box"
	serverTunnel = "tunnel"
)

// servers are device servers as of another project: they sleep until a request
// comes. Each device has one page of registers.
type servers struct{ process.Background }

func newServers(dir string) (*servers, error) {
	s := &servers{}
	for _, name := range []string{serverDirect, serverBox, serverTunnel} {
		if err := s.add(filepath.Join(dir, name)); err != nil {
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

func (s *servers) add(path string) error {
	d := &pageDevice{}
	var err error
	d.config, err = cfgspace.NewEndpoint(cfgspace.Identity{Vendor: 0x1234, Device: 0x70f2, Class: 0xff0000}).
		BAR(0, cfgspace.BAR{Kind: cfgspace.Memory32, Size: uint64(len(d.page))}).
		Express(cfgspace.Express{Type: cfgspace.Endpoint, Generation: pcie.Gen3, Width: 1, MaxPayload: 512, ExtendedTag: true}).Build()
	if err != nil {
		return err
	}
	const rw = vfiouser.RegionFlagRead | vfiouser.RegionFlagWrite
	cfg := vfiouser.Config{Resettable: true, Handler: d}
	cfg.Regions[0] = vfiouser.Region{Size: uint64(len(d.page)), Flags: rw}
	cfg.Regions[vfiouser.RegionConfig] = vfiouser.Region{Size: pcie.ConfigSize, Flags: rw}
	server, err := vfiouser.NewServer(cfg)
	if err != nil {
		return err
	}
	ln, err := vfiouser.Listen(path)
	if err != nil {
		return err
	}
	s.Go(func(ctx context.Context) error { return server.Serve(ctx, ln) })
	return nil
}

// pageDevice is a device whose registers are memory.
type pageDevice struct {
	vfiouser.NopHandler

	mu     sync.Mutex // guards the fields below
	config *cfgspace.Space
	page   [4096]byte
}

// DMAMap accepts every mapping: the device does no DMA.
func (d *pageDevice) DMAMap(*vfiouser.Conn, vfiouser.Mapping) error { return nil }

// Reset resets the device.
func (d *pageDevice) Reset(_ *vfiouser.Conn, done func(error)) {
	d.mu.Lock()
	d.config.Reset(false)
	clear(d.page[:])
	d.mu.Unlock()
	done(nil)
}

// Access serves the registers and the configuration space.
func (d *pageDevice) Access(_ *vfiouser.Conn, a *vfiouser.Access) {
	d.mu.Lock()
	switch {
	case a.Region == 0 && a.Write:
		copy(d.page[a.Offset:], a.Data)
	case a.Region == 0:
		copy(a.Data, d.page[a.Offset:])
	case !a.Write:
		copy(a.Data, d.config.Bytes()[a.Offset:])
	default:
		var v [pcie.DW]byte
		copy(v[:], a.Data)
		d.config.Write(int(a.Offset), len(a.Data), binary.LittleEndian.Uint32(v[:]))
	}
	d.mu.Unlock()
	a.Reply()
}

// openServers adds a register read of a device server: directly, and behind a box.
func (r *rttRun) openServers(ctx context.Context, dir string) error {
	far, err := r.opts.spawn(ctx, memberSpec{Kind: kindServers, SocketDirs: []string{dir}})
	if err != nil {
		return err
	}
	r.closers = append(r.closers, far.stop)
	if err := r.addServer(ctx, "device server, directly", filepath.Join(dir, serverDirect)); err != nil {
		return err
	}
	p, err := r.opts.newPair(ctx, pairSpec{slots: 1, vm: true, server: filepath.Join(dir, serverBox)})
	if err != nil {
		return err
	}
	r.closers = append(r.closers, p.close)
	if err := p.attach(1); err != nil {
		return err
	}
	return r.addServer(ctx, "vfio-user client, remote device server", p.socket(0))
}

// addServer adds the read of the first register of the device at a socket.
func (r *rttRun) addServer(ctx context.Context, name, path string) error {
	bus, err := vfiouserbus.Options{Polling: r.opts.driverPolling()}.Open(ctx, path)
	if err != nil {
		return err
	}
	r.closers = append(r.closers, bus.Close)
	regs, err := bus.BAR(0)
	if err != nil {
		return err
	}
	regs.Write32(0, readPattern)
	r.add(name, func() error {
		if got := regs.Read32(0); got != readPattern {
			return fmt.Errorf("read %#x from the register, want %#x", got, readPattern)
		}
		return nil
	})
	return nil
}

// tunnelTimeout bounds the start of the tunnel's processes.
const tunnelTimeout = 5 * time.Second

// openTunnel adds the same read through a tunnel of two socats over TCP, the usual
// way to reach a socket on another machine. It adds none where socat is missing.
func (r *rttRun) openTunnel(ctx context.Context, dir string) error {
	socat, err := exec.LookPath("socat")
	if errors.Is(err, exec.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	near := filepath.Join(dir, "near")
	for _, args := range [][]string{
		{"TCP-LISTEN:" + port + ",bind=127.0.0.1,reuseaddr,nodelay", "UNIX-CONNECT:" + filepath.Join(dir, serverTunnel)},
		{"UNIX-LISTEN:" + near, "TCP:127.0.0.1:" + port + ",nodelay,retry=50,interval=0.1"},
	} {
		cmd := exec.CommandContext(ctx, socat, args...)
		if err := cmd.Start(); err != nil {
			return err
		}
		r.closers = append(r.closers, func() error {
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
			return nil
		})
	}
	for deadline := time.Now().Add(tunnelTimeout); ; time.Sleep(10 * time.Millisecond) {
		r.tunnel = len(r.probes)
		err := r.addServer(ctx, "device server, behind a socat tunnel", near)
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// freePort returns a TCP port that is free now.
func freePort(ctx context.Context) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return strconv.Itoa(l.Addr().(*net.TCPAddr).Port), l.Close()
}

// besideServers describes the read of a remote device server beside its parts: the
// read of the software GPU, which has the same way, and the direct read.
func (r *rttRun) besideServers(f Figure) Figure {
	parts := make([]float64, r.opts.Rounds)
	for i := range parts {
		parts[i] = r.probes[rttVM].p50[i] + r.probes[rttServer].p50[i]
	}
	return f.beside("remote GPU + direct", r.probes[rttServerBox].p50, parts)
}

package demo

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/localpool"
	"github.com/dxpu-project/dxpu/internal/quantile"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// OpenCL is what the third chapter needs: an unmodified OpenCL program computes in the guest on an
// OpenCL device of this machine.
type OpenCL struct {
	Reason  string // why the chapter is left out; "": it is not
	Driver  string // libdxpu-opencl.so
	Program string // clpeak
	Device  string // name of the device
}

const (
	openCLDir   = "/opt/opencl" // in the guest
	openCLSlots = `slots:
  - opencl: {memory: 1073741824, aperture: 16777216}
`
)

// openCLBoxes have one slot each, of the same device: the GPU of the guest moves between them.
var openCLBoxes = []string{"box-d", "box-e"}

func (o OpenCL) there() bool { return o.Driver != "" }

// files are those of the guest.
func (o OpenCL) files(ctx context.Context) ([]qemu.File, error) {
	if !o.there() {
		return nil, nil
	}
	files, err := qemu.ProgramFiles(ctx, openCLDir, o.Program)
	return append(files, qemu.File{Path: path.Join(openCLDir, filepath.Base(o.Driver)), Source: o.Driver}), err
}

// openCL returns the steps of the third chapter.
func (d *demo) openCL() []action {
	if !d.cfg.OpenCL.there() {
		if d.cfg.OpenCL.Reason != "" {
			d.say("The part about OpenCL is left out: %s.", d.cfg.OpenCL.Reason)
		}
		return nil
	}
	return []action{
		{"two boxes with an OpenCL device of this machine start", d.startOpenCL},
		{"the guest gets the device as a GPU", d.attachOpenCL},
		{"clpeak, unmodified, computes on it in the guest, and the GPU moves between the boxes meanwhile", d.runOpenCL},
		{"the lease is deleted, the device detached", d.release},
	}
}

func (d *demo) startOpenCL(ctx context.Context) (string, error) {
	file := d.procs.Path("opencl.yaml")
	if err := os.WriteFile(file, []byte(openCLSlots), 0o644); err != nil {
		return "", err
	}
	for _, name := range openCLBoxes {
		if err := d.procs.Start(name, "box", "--manager", d.url, "--name", name, "--config", file); err != nil {
			return "", err
		}
		err := localpool.Poll(ctx, func() (bool, error) {
			box, err := d.api.GetBox(ctx, connect.NewRequest(&dxpuv1.GetBoxRequest{BoxId: name}))
			return err == nil && box.Msg.GetBox().GetNode().GetConnected(), nil
		})
		if err != nil {
			return "", err
		}
	}
	return d.cfg.OpenCL.Device, nil
}

func (d *demo) attachOpenCL(ctx context.Context) (string, error) {
	box, err := d.api.GetBox(ctx, connect.NewRequest(&dxpuv1.GetBoxRequest{BoxId: openCLBoxes[0]}))
	if err != nil {
		return "", err
	}
	gpus := box.Msg.GetBox().GetGpus()
	if len(gpus) != 1 {
		return "", fmt.Errorf("%s has %d GPUs", openCLBoxes[0], len(gpus))
	}
	// By its model: a GPU of that model in the other box can take the place of this one.
	res, err := d.api.CreateLease(ctx, connect.NewRequest(&dxpuv1.CreateLeaseRequest{Spec: &dxpuv1.LeaseSpec{
		Count: 1, HostId: hostName, Model: gpus[0].GetDevice().GetModel(),
	}}))
	if err != nil {
		return "", err
	}
	d.lease = res.Msg.GetLease().GetId()
	if _, err := d.active(ctx); err != nil {
		return "", err
	}
	return d.pc.sees(ctx, true)
}

// bindGPU gives the GPU of the guest to vfio-pci.
const bindGPU = `for d in /sys/bus/pci/devices/*; do
	[ "$(cat $d/vendor 2>/dev/null)$(cat $d/device 2>/dev/null)" = "0x%04x0x%04x" ] || continue
	echo vfio-pci >$d/driver_override && echo ${d##*/} >/sys/bus/pci/drivers_probe
done
`

// runOpenCL runs clpeak's test of the latency of kernels, which compiles all its kernels.
func (d *demo) runOpenCL(ctx context.Context) (string, error) {
	at := time.Now()
	ended := make(chan struct{})
	var out string
	var err error
	go func() {
		defer close(ended)
		out, err = d.pc.openCL(ctx, d.cfg.OpenCL)
	}()
	moves, last := d.moveUntil(ctx, ended)
	<-ended
	var lines []string
	for line := range strings.Lines(out) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "Device:") || strings.HasPrefix(line, "Kernel launch latency") {
			lines = append(lines, line)
		}
	}
	if err == nil && len(lines) != 2 {
		err = fmt.Errorf("clpeak prints %q", out)
	}
	d.figure("clpeak in the guest, with the compilation of its kernels", time.Since(at))
	if len(moves) == 0 {
		return "", cmp.Or(err, fmt.Errorf("the GPU has not moved: %w", last))
	}
	d.figure("live migration of the OpenCL GPU, it stands still (median)", quantile.Of(moves, 0.5))
	d.figure("live migration of the OpenCL GPU, it stands still (longest)", slices.Max(moves))
	lines = append(lines, fmt.Sprintf("the GPU moved %d times meanwhile", len(moves)))
	return strings.Join(lines, "\n"), err
}

// moveUntil moves the GPU of the lease from box to box until a program ends, and returns how
// long it stood still each time. A move that fails, as on a busy machine, has changed nothing;
// last is such an error.
func (d *demo) moveUntil(ctx context.Context, ended <-chan struct{}) (moves []time.Duration, last error) {
	for {
		if done, err := d.moveLive(ctx); err == nil {
			moves = append(moves, done.standstill)
		} else {
			last = err
		}
		select {
		case <-ended:
			return moves, last
		case <-ctx.Done():
			return moves, ctx.Err()
		case <-time.After(moveInterval):
		}
	}
}

// moveInterval is the time between two moves: the GPU that was left is reset meanwhile.
const moveInterval = time.Second

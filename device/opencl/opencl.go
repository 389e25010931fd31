// Package opencl makes GPUs of the OpenCL devices of a box: a GPU with a compute
// channel whose engine is a process, dxpu-opencl, for each binding.
package opencl

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

// Found is an OpenCL device of this machine.
type Found struct {
	Index     int    `json:"index"` // over all platforms
	Platform  string `json:"platform"`
	Name      string `json:"name"`
	Vendor    string `json:"vendor"`
	Type      string `json:"type"` // gpu, cpu, accelerator or custom
	Version   string `json:"version"`
	Driver    string `json:"driver"`
	Memory    uint64 `json:"memory"` // bytes
	Units     int    `json:"units"`  // compute units
	Available bool   `json:"available"`
}

// Program is the name of the engine's program.
const Program = "dxpu-opencl"

// FindProgram returns the path of the engine's program: beside this program, or
// else in PATH.
func FindProgram() (string, error) {
	if self, err := os.Executable(); err == nil {
		if path := filepath.Join(filepath.Dir(self), Program); exists(path) {
			return path, nil
		}
	}
	path, err := exec.LookPath(Program)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside dxpu nor in PATH: install it from the same build", Program)
	}
	return path, nil
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// identity describes the device as a tenant sees it.
func (f Found) identity() string {
	return fmt.Sprintf("%s, %s, %s, driver %s, %d compute units", f.Platform, f.Name, f.Version, f.Driver, f.Units)
}

// maxList bounds the list of devices in bytes, and listTimeout the time it takes:
// platforms initialize their devices.
const (
	maxList     = 1 << 20
	listTimeout = 30 * time.Second
)

// List lists the OpenCL devices of this machine.
func List(ctx context.Context, program string) ([]Found, error) {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	dir, err := os.MkdirTemp("", "dxpu-opencl-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir) // the platforms leave files there
	cmd := exec.CommandContext(ctx, program)
	cmd.Env = environment(dir)
	cmd.WaitDelay = time.Second // a child of the platform may keep the output open
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("list the OpenCL devices: %w: %.300s", err, strings.TrimSpace(stderr.String()))
	}
	if len(out) > maxList {
		return nil, fmt.Errorf("list the OpenCL devices: %d bytes", len(out))
	}
	var found []Found
	if err := json.Unmarshal(out, &found); err != nil {
		return nil, fmt.Errorf("list the OpenCL devices: %w", err)
	}
	return found, nil
}

// Spec describes a GPU that is an OpenCL device. The zero value is the first device of
// the machine.
type Spec struct {
	Device string `yaml:"device,omitempty"` // index or name of the device; the first one
	Memory uint64 `yaml:"memory,omitempty"` // bytes to offer; all
	// Aperture is the memory that the host reaches, in bytes: a power of two from
	// minAperture; 64 MiB.
	Aperture  int64         `yaml:"aperture,omitempty"`
	TimeLimit time.Duration `yaml:"time_limit,omitempty"` // of a command without progress; ten minutes
	// Cold means that the process of a tenant starts when the tenant's program does. It
	// takes longer, and an idle device has no process with a context, which takes memory.
	Cold   bool   `yaml:"cold,omitempty"`
	Serial uint64 `yaml:"serial,omitempty"`
}

// Device is a GPU with its engine.
type Device struct {
	*gpu.GPU
	engine *engine
	found  Found
	out    bool // of a part: a job is out
}

// minAperture has room for the driver's ring of packets, 1 MiB, and as much staging memory.
const minAperture = 2 << 20

var (
	_ device.Device    = (*Device)(nil)
	_ device.Runner    = (*Device)(nil)
	_ device.Notifier  = (*Device)(nil)
	_ device.Poller    = (*Device)(nil)
	_ device.Scrubber  = (*Device)(nil)
	_ device.Describer = (*Device)(nil)
	_ device.Checker   = (*Device)(nil)
)

// New makes a GPU of the device that spec names, with the engine's program at a path.
func New(ctx context.Context, program string, spec Spec, log *slog.Logger) (*Device, error) {
	f, err := find(ctx, program, spec)
	if err != nil {
		return nil, err
	}
	return newDevice(program, f, spec, limits{memory: f.Memory}, log)
}

// find returns the device that spec names, with the memory to offer.
func find(ctx context.Context, program string, spec Spec) (Found, error) {
	found, err := List(ctx, program)
	if err != nil {
		return Found{}, err
	}
	f, err := choose(found, spec.Device)
	if spec.Memory != 0 {
		f.Memory = min(f.Memory, spec.Memory)
	}
	return f, err
}

func newDevice(program string, f Found, spec Spec, limits limits, log *slog.Logger) (*Device, error) {
	aperture := cmp.Or(spec.Aperture, 64<<20)
	if aperture < minAperture || aperture > 1<<32 || aperture&(aperture-1) != 0 {
		return nil, fmt.Errorf("aperture %d: want a power of two from 2 MiB to 4 GiB", aperture)
	}
	e, err := newEngine(program, f, limits, int(aperture), spec.Cold, log)
	if err != nil {
		return nil, err
	}
	g, err := gpu.NewWithEngine(gpu.Spec{Model: modelName(f.Name), Serial: spec.Serial, Aperture: aperture}, e, spec.TimeLimit)
	if err != nil {
		return nil, errors.Join(err, e.close())
	}
	return &Device{GPU: g, engine: e, found: f}, nil
}

// ErrNoDevice means that this machine has no OpenCL device.
var ErrNoDevice = errors.New("this machine has no OpenCL device: install the OpenCL platform of the GPU's vendor, or pocl-opencl-icd for the processors")

// choose finds a device by its index or its name.
func choose(found []Found, want string) (Found, error) {
	for i, f := range found {
		if want == "" || want == fmt.Sprint(i) || want == f.Name {
			return f, nil
		}
	}
	if len(found) == 0 {
		return Found{}, ErrNoDevice
	}
	return Found{}, fmt.Errorf("no OpenCL device %.100q: \"dxpu box devices\" lists them", want)
}

// modelName cuts a name to what the GPU's Model register takes.
func modelName(name string) string {
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return -1
		}
		return r
	}, name)
	return name[:min(len(name), reg.ModelSize-1)]
}

// Info implements device.Describer: the memory is that of the OpenCL device.
func (d *Device) Info() device.Info {
	i := d.GPU.Info()
	i.Memory = d.engine.Memory()
	return i
}

// Check implements device.Checker.
func (d *Device) Check() (bool, string) {
	if ok, detail := d.GPU.Check(); !ok {
		return false, detail
	}
	if !d.found.Available {
		return false, "the OpenCL platform says that the device is not available"
	}
	return true, ""
}

// Run implements device.Runner: it starts and ends the engine's processes.
func (d *Device) Run(ctx context.Context) { d.engine.run(ctx) }

// SetNotify implements device.Notifier.
func (d *Device) SetNotify(notify func()) { d.engine.setNotify(notify) }

// Due implements device.Poller.
func (d *Device) Due() bool { return d.engine.due() }

// Poll implements device.Poller.
func (d *Device) Poll() bool { return d.engine.poll() }

// Hold implements device.Poller.
func (d *Device) Hold() (fd uintptr, release func()) { return d.engine.hold() }

// Scrub implements device.Scrubber. It waits until the process of the former tenant
// has ended, because that still writes to the memory.
func (d *Device) Scrub() {
	d.engine.waitGone()
	if err := d.engine.renew(); err != nil {
		// Without new memory, there is no compute channel until the next Scrub.
		d.engine.log.Error("the OpenCL engine has no memory for the next tenant", "err", err)
		d.GPU.Scrub()
	}
}

// ModelName is the name of Model.
const ModelName = "opencl"

// Model makes GPUs of OpenCL devices with the parameters of Spec.
func Model(log *slog.Logger) device.Model {
	return device.NewModel(ModelName, "OpenCL device of this machine", "device", func(ctx context.Context, at device.Place, spec Spec) (device.Device, error) {
		program, err := FindProgram()
		if err != nil {
			return nil, err
		}
		spec.Serial = cmp.Or(spec.Serial, at.Serial())
		return New(ctx, program, spec, log.With("slot", at.Slot))
	})
}

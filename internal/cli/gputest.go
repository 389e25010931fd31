//go:build linux

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/driver/drivertest"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfio"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
)

const sysfsRoot = "/sys"

func newGPUListCommand() *cobra.Command {
	return valueCommand(&cobra.Command{
		Use: "list", Short: "List the GPUs on the PCI bus of this machine", Args: cobra.NoArgs,
		Long:    `List the software GPUs on the PCI bus of this machine, usually a guest, with the kernel driver and the IOMMU group of each.`,
		Example: `  dxpu gpu list --json`,
	}, func(*cobra.Command, []string) ([]vfio.Function, error) { return findGPUs() }, func(w io.Writer, found []vfio.Function) {
		t := newTable(w, "ADDRESS", "DRIVER", "IOMMU GROUP")
		for _, f := range found {
			t.row(f.Address, f.Driver, f.IOMMUGroup)
		}
		t.flush()
	})
}

func findGPUs() ([]vfio.Function, error) {
	found, err := vfio.Find(os.DirFS(sysfsRoot), reg.VendorID, reg.DeviceID)
	return append([]vfio.Function{}, found...), err // an empty list is [] in JSON
}

// maxRounds bounds the ordering check of "dxpu gpu test": some hours.
const maxRounds = 100_000_000

// accessModes are the values of --mode.
var accessModes = []vfio.Mode{vfio.Auto, vfio.IOMMU, vfio.NoIOMMU, vfio.Sysfs}

// gpuTest holds the flags of "dxpu gpu test".
type gpuTest struct {
	pci      string
	mode     string
	wait     time.Duration
	timeout  time.Duration
	form     *output
	bind     bool
	embedded bool
	socket   string
	driver   driver.Options
	test     driver.SelfTestOptions
}

func newGPUTestCommand() *cobra.Command {
	var o gpuTest
	cmd := &cobra.Command{
		Use: "test", Short: "Test a GPU", Args: cobra.NoArgs,
		Long: `Test a GPU from user space: copies of many sizes and alignments in both directions,
kernels, interrupts, the order of DMA and register reads, and refused commands. The
test checks every result on the CPU, and measures latency and bandwidth.

Without --pci there must be exactly one GPU. The device must be bound to vfio-pci;
--bind binds it (as root). VFIO also works without an IOMMU. On a kernel without VFIO
the test uses sysfs, without interrupts.

--socket tests the device behind a vfio-user socket, such as that of a slot of "dxpu
host" that no VMM uses. --embedded needs no device: it tests a software GPU below an
embedded host in this process.

The exit code is 1 if a check fails, if the device is lost, or if there is none.`,
		Example: `  dxpu gpu test --quick
  dxpu gpu test --pci 01:00.0 --bind --wait 30s --json
  dxpu gpu test --socket /run/vm1/slot0.sock
  dxpu gpu test --embedded`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := inRange("--rounds", 0, maxRounds, o.test.Rounds); err != nil {
				return err
			}
			if !slices.Contains(accessModes, vfio.Mode(o.mode)) {
				return usagef("--mode: %q is not auto, iommu, noiommu or sysfs", o.mode)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), o.timeout)
			defer cancel()
			return o.run(ctx, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.pci, "pci", "", "PCI `address` of the GPU, such as 01:00.0")
	durationVar(f, &o.wait, "wait", 0, "longest wait for the GPU to appear")
	positiveDurationVar(f, &o.timeout, "timeout", 10*time.Minute, "longest duration of the test")
	o.form = jsonFlag(cmd)
	f.BoolVar(&o.test.Quick, "quick", false, "use smaller sizes and fewer rounds")
	f.IntVar(&o.test.Rounds, "rounds", 0, "number of rounds of the ordering check (default 2000, with --quick 200)")
	f.Uint64Var(&o.test.Seed, "seed", 0, "seed of the test data")
	f.StringVar(&o.mode, "mode", string(vfio.Auto), "access to the device: auto, iommu, noiommu or sysfs")
	f.BoolVar(&o.bind, "bind", false, "bind the device to vfio-pci first")
	f.BoolVar(&o.driver.Polling, "polling", false, "poll instead of using interrupts")
	f.BoolVar(&o.embedded, "embedded", false, "test a software GPU in this process")
	f.StringVar(&o.socket, "socket", "", "vfio-user socket of the device to test")
	cmd.MarkFlagsMutuallyExclusive("embedded", "pci", "socket")
	return cmd
}

func (o *gpuTest) run(ctx context.Context, w io.Writer) (err error) {
	bus, cleanUp, err := o.open(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bus.Close()); cleanUp() }()
	d, err := driver.Open(ctx, bus, o.driver)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	progress := w
	if o.form.structured() {
		progress = io.Discard
	}
	i := d.Info()
	if _, err := fmt.Fprintf(progress, "%s, serial %#x, %d MiB, %d queues, %d vectors, %d tags of %d bytes\n",
		i.Model, i.Serial, i.VRAMSize>>20, i.Queues, i.Vectors, i.Tags, i.ReadSize); err != nil {
		return err
	}
	report, err := d.SelfTest(ctx, progress, o.test)
	if o.form.structured() {
		err = errors.Join(err, writeJSON(w, report))
	}
	if err == nil && !report.OK {
		err = errors.New("a check failed")
	}
	if err != nil || o.form.structured() {
		return err
	}
	_, err = fmt.Fprintf(w, "%d checks passed in %v; %d interrupts, %d stale\n",
		len(report.Checks), report.Duration.Round(time.Millisecond), report.Interrupts, report.Stale)
	return err
}

// open returns the bus of the device, and a function to call after the bus is closed.
func (o *gpuTest) open(ctx context.Context) (bus driver.Bus, cleanUp func(), err error) {
	if o.embedded {
		return openEmbedded()
	}
	if o.socket != "" {
		b, err := vfiouserbus.Open(ctx, o.socket)
		if err != nil {
			return nil, nil, withHint(fmt.Errorf("--socket: %w", err), `"dxpu host" makes the socket of a slot, slot0.sock in its --socket-dir, and a lease puts a GPU behind it`)
		}
		return b, func() {}, nil
	}
	address, err := o.find(ctx)
	if err != nil {
		return nil, nil, err
	}
	b, err := vfio.Open(address, vfio.Options{Mode: vfio.Mode(o.mode), Bind: o.bind})
	if err != nil {
		return nil, nil, err
	}
	return b, func() {}, nil
}

func openEmbedded() (driver.Bus, func(), error) {
	sys, err := drivertest.New(drivertest.Config{Slots: 1})
	if err != nil {
		return nil, nil, err
	}
	var b driver.Bus
	g, err := gpu.New(gpu.Spec{})
	if err == nil {
		err = sys.Plug(0, g)
	}
	if err == nil {
		b, err = sys.Open(0)
	}
	if err != nil {
		sys.Close()
		return nil, nil, err
	}
	return b, sys.Close, nil
}

// find waits for the GPU to appear.
func (o *gpuTest) find(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, o.wait)
	defer cancel()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		address, err := o.lookup()
		if err == nil {
			return address, nil
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-tick.C:
		}
	}
}

func (o *gpuTest) lookup() (string, error) {
	if o.pci != "" {
		f, err := vfio.Lookup(os.DirFS(sysfsRoot), o.pci)
		if errors.Is(err, fs.ErrNotExist) {
			err = withHint(fmt.Errorf("--pci: there is no device %s on the PCI bus of this machine", o.pci), `"dxpu gpu list" lists the GPUs`)
		}
		return f.Address, err
	}
	found, err := findGPUs()
	switch {
	case err != nil:
		return "", err
	case len(found) == 0:
		return "", withHint(fmt.Errorf("there is no device %04x:%04x on the PCI bus of this machine", reg.VendorID, reg.DeviceID),
			"--socket tests a GPU behind a socket, --embedded one in this process")
	case len(found) > 1:
		return "", withHint(fmt.Errorf("there are %d GPUs", len(found)), "choose one with --pci, such as --pci %s", found[0].Address)
	}
	return found[0].Address, nil
}

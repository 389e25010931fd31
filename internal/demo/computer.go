package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu/driver"
	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/agent"
	"github.com/dxpu-project/dxpu/internal/dataplane/netio"
	"github.com/dxpu-project/dxpu/internal/hostproxy"
	"github.com/dxpu-project/dxpu/internal/localpool"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// vm is a guest in an unmodified QEMU. A host proxy plugs devices into it.
type vm struct{ *qemu.VM }

const (
	vmSlots      = 2
	guestProgram = "/bin/dxpu"
)

func (d *demo) startVM(ctx context.Context) (computer, error) {
	files, err := d.cfg.OpenCL.files(ctx)
	if err != nil {
		return nil, err
	}
	v, err := qemu.Start(ctx, qemu.Spec{
		Install: *d.cfg.Install, Dir: d.cfg.Dir, Slots: vmSlots, IOMMU: true, QMPSocket: d.procs.Path("qmp.sock"),
		Files: append(files, qemu.File{Path: guestProgram, Source: d.cfg.Program}),
	})
	if err != nil {
		return nil, err
	}
	d.procs.Watch(v.PID())
	d.figure("boot of the guest (QEMU without KVM)", v.BootTime())
	err = d.procs.Start(hostName, "host", "--manager", d.url, "--name", hostName, "--slots", fmt.Sprint(vmSlots),
		"--socket-dir", d.procs.Path("slots"), "--qmp", d.procs.Path("qmp.sock"))
	if err != nil {
		return nil, errors.Join(err, v.Close())
	}
	return vm{v}, nil
}

func (v vm) name() string {
	version := v.QMP().Version()
	return fmt.Sprintf("QEMU %d.%d.%d (%s), Linux %s", version.Major, version.Minor, version.Micro, version.Package, v.Kernel())
}

// lookForGPU waits for a GPU and prints its address, or waits until there is none.
const lookForGPU = `want=%s; i=0
while [ $i -lt 1000 ]; do
	found=
	for d in /sys/bus/pci/devices/*; do
		[ "$(cat $d/vendor 2>/dev/null)$(cat $d/device 2>/dev/null)" = "0x%04x0x%04x" ] && found=${d##*/}
	done
	[ $want = yes ] && [ -n "$found" ] && exec lspci -s $found
	[ $want = no ] && [ -z "$found" ] && exit 0
	i=$((i+1)); sleep 0.02
done
exit 1`

func (v vm) sees(ctx context.Context, present bool) (string, error) {
	want := "no"
	if present {
		want = "yes"
	}
	out, exit, err := v.Run(ctx, fmt.Sprintf(lookForGPU, want, reg.VendorID, reg.DeviceID))
	if err == nil && exit != 0 {
		err = fmt.Errorf("timeout after 20 s (GPU expected: %s)", want)
	}
	return strings.TrimSpace(out), err
}

func (v vm) test(ctx context.Context, out io.Writer) error {
	exit, err := v.RunTo(ctx, out, guestProgram+" gpu test --quick --bind --wait 20s")
	if err == nil && exit != 0 {
		err = fmt.Errorf("the program in the guest exited with status %d", exit)
	}
	return err
}

func (v vm) openCL(ctx context.Context, o OpenCL) (string, error) {
	out, exit, err := v.Run(ctx, fmt.Sprintf(bindGPU, reg.VendorID, reg.DeviceID)+fmt.Sprintf("OCL_ICD_VENDORS=%s/%s %s --kernel-latency",
		openCLDir, filepath.Base(o.Driver), qemu.ProgramCommand(openCLDir, o.Program)))
	if err == nil && exit != 0 {
		err = fmt.Errorf("clpeak exited with status %d: %s", exit, lastLine(out))
	}
	return out, err
}

func (v vm) bootID(ctx context.Context) (string, error) {
	out, exit, err := v.Run(ctx, "cat /proc/sys/kernel/random/boot_id")
	if err == nil && exit != 0 {
		err = fmt.Errorf("boot ID: status %d", exit)
	}
	return strings.TrimSpace(out), err
}

func (v vm) close() error { return v.Close() }

// embeddedHost is a host proxy in this process with a root complex in Go in place of
// the VM.
type embeddedHost struct {
	front *hostproxy.Embedded
	stop  []func()
	log   *os.File
}

func (d *demo) startEmbedded() (computer, error) {
	e, err := d.newEmbedded(hostName)
	if err != nil {
		return nil, err
	}
	return e, nil
}

func (d *demo) newEmbedded(name string) (*embeddedHost, error) {
	log, err := os.Create(d.procs.Path(name + ".log"))
	if err != nil {
		return nil, err
	}
	e := &embeddedHost{front: hostproxy.NewEmbedded(hostproxy.EmbeddedSpec{}), log: log}
	logger := slog.New(slog.NewTextHandler(log, nil))
	reader.ReserveProcessors()
	f, err := netio.Open(netio.Config{Paths: []netio.PathConfig{{Listen: "127.0.0.1:0"}}, Logger: logger})
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	h, err := hostproxy.New(hostproxy.Config{Slots: vmSlots, Front: e.front, Fabric: f, Domain: "embedded", Logger: logger})
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	a, err := agent.New(agent.Config{Manager: d.url, JoinToken: d.procs.JoinToken, Kind: dxpuv1.NodeKind_NODE_KIND_HOST, Name: name, Log: logger}, h)
	if err != nil {
		return nil, errors.Join(err, log.Close())
	}
	h.OnChange(a.Changed)
	// They end in this order: the proxy sends a last message to the box.
	for _, run := range []func(context.Context) error{a.Run, h.Run, f.Run} {
		e.stop = append(e.stop, background(run, logger))
	}
	return e, nil
}

// background runs f in a goroutine. stop cancels it and waits for its end.
func background(f func(context.Context) error, log *slog.Logger) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f(ctx); err != nil {
			log.Error("a part of the proxy failed", "err", err)
		}
	})
	return func() {
		cancel()
		wg.Wait()
	}
}

func (e *embeddedHost) name() string { return "embedded host (a root complex in Go, in this process)" }

func (e *embeddedHost) sees(ctx context.Context, present bool) (string, error) {
	var found string
	err := localpool.Poll(ctx, func() (bool, error) {
		bus, err := e.front.Open(0)
		if err != nil {
			return !present, nil
		}
		found = fmt.Sprintf("%v: %08x", bus.Function().ID, bus.ConfigRead32(0))
		return present, bus.Close()
	})
	return found, err
}

func (e *embeddedHost) test(ctx context.Context, out io.Writer) error {
	bus, err := e.front.Open(0)
	if err != nil {
		return err
	}
	defer bus.Close()
	dev, err := driver.Open(ctx, bus, driver.Options{})
	if err != nil {
		return err
	}
	report, err := dev.SelfTest(ctx, out, driver.SelfTestOptions{Quick: true})
	if err != nil {
		_, _ = fmt.Fprintln(out, err)
		return errors.Join(err, dev.Close())
	}
	if !report.OK {
		return errors.Join(errors.New("a check failed"), dev.Close())
	}
	_, _ = fmt.Fprintf(out, "%d checks passed in %v; %d interrupts, %d stale\n",
		len(report.Checks), report.Duration.Round(time.Millisecond), report.Interrupts, report.Stale)
	return dev.Close()
}

func (e *embeddedHost) openCL(context.Context, OpenCL) (string, error) {
	return "", errors.New("OpenCL programs need a VM")
}

// bootID returns the process ID: the embedded host boots with this process.
func (e *embeddedHost) bootID(context.Context) (string, error) {
	return fmt.Sprintf("process %d", os.Getpid()), nil
}

func (e *embeddedHost) close() error {
	for _, stop := range e.stop {
		stop()
	}
	return e.log.Close()
}

package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// vm is a guest in an unmodified QEMU. A host proxy plugs devices into it.
type vm struct{ *qemu.VM }

const (
	vmSlots      = 2
	guestProgram = "/bin/dxpu"
)

func (d *demo) startVM(ctx context.Context) (computer, error) {
	v, err := qemu.Start(ctx, qemu.Spec{
		Install: *d.cfg.Install, Dir: d.cfg.Dir, Slots: vmSlots, IOMMU: true, QMPSocket: d.path("qmp.sock"),
		Files: []qemu.File{{Path: guestProgram, Source: d.cfg.Program}},
	})
	if err != nil {
		return nil, err
	}
	d.procs.pids = append(d.procs.pids, v.PID())
	d.figure("boot of the guest (QEMU without KVM)", v.BootTime())
	err = d.start(hostName, "host", "--manager", d.url, "--name", hostName, "--slots", fmt.Sprint(vmSlots),
		"--socket-dir", d.path("slots"), "--qmp", d.path("qmp.sock"))
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

func (v vm) bootID(ctx context.Context) (string, error) {
	out, exit, err := v.Run(ctx, "cat /proc/sys/kernel/random/boot_id")
	if err == nil && exit != 0 {
		err = fmt.Errorf("boot ID: status %d", exit)
	}
	return strings.TrimSpace(out), err
}

func (v vm) close() error { return v.Close() }

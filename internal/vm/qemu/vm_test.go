package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/vm/qmp"
)

// boot starts a VM, or skips the test where nothing is installed.
func boot(t *testing.T, spec Spec) *VM {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	install, err := Locate()
	if errors.Is(err, ErrNotInstalled) {
		t.Skip(err)
	} else if err != nil {
		t.Fatal(err)
	}
	spec.Install, spec.Dir = install, t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	vm, err := Start(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("kernel %s ready %v after Start, %v after its own start", vm.Kernel(), vm.BootTime(), vm.Uptime())
	return vm
}

func sh(t *testing.T, vm *VM, command string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	began := time.Now()
	out, exit, err := vm.Run(ctx, command)
	if err != nil || exit != 0 {
		t.Fatalf("%s: exit %d, %v\n%s", command, exit, err, out)
	}
	t.Logf("%6.3f s: %.60s", time.Since(began).Seconds(), command)
	return out
}

// edu is a device that QEMU has itself: 1234:11e8, with a BAR, DMA and MSI.
func edu(slot int) qmp.Device { return qmp.Device{Driver: "edu", ID: "edu0", Bus: Slot(slot)} }

const (
	waitPlugged   = "until lspci -n -d 1234:11e8 | grep .; do usleep 20000; done"
	waitUnplugged = "while lspci -n -d 1234:11e8 | grep .; do usleep 20000; done"
)

func TestGuest(t *testing.T) {
	source := filepath.Join(t.TempDir(), "greeting")
	if err := os.WriteFile(source, []byte("#!/bin/sh\necho hello from the outside\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	vm := boot(t, Spec{Slots: 4, IOMMU: true, Files: []File{{Path: "/bin/greeting", Source: source}}})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()

	t.Run("commands", func(t *testing.T) {
		if out := sh(t, vm, "/bin/greeting"); out != "hello from the outside\n" {
			t.Errorf("output %q", out)
		}
		out, exit, err := vm.Run(ctx, "echo one; echo two >&2\nprintf three; exit 7")
		if out != "one\ntwo\nthree\n" || exit != 7 || err != nil {
			t.Errorf("got %q, exit %d, %v", out, exit, err)
		}
	})

	t.Run("a cancelled command is killed", func(t *testing.T) {
		for _, limit := range []time.Duration{time.Millisecond, 200 * time.Millisecond} { // the first one before the command has begun
			ctx, cancel := context.WithTimeout(ctx, limit)
			if _, _, err := vm.Run(ctx, "sleep 4321"); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("got %v", err)
			}
			cancel()
		}
		sh(t, vm, "while cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep '[s]leep 4321'; do usleep 20000; done")
	})

	t.Run("hot plug", func(t *testing.T) {
		for i := range 4 {
			began := time.Now()
			if err := vm.QMP().DeviceAdd(ctx, edu(i)); err != nil {
				t.Fatal(err)
			}
			added := time.Since(began)
			sh(t, vm, waitPlugged)
			seen := time.Since(began)
			if i == 0 {
				t.Log("\n" + sh(t, vm, "lspci -vvv -d 1234:11e8; lspci -t"))
			}
			began = time.Now()
			if err := vm.QMP().Unplug(ctx, "edu0"); err != nil {
				t.Fatal(err)
			}
			t.Logf("port %d: device_add %v, seen by the guest %v, unplugged in %v", i, added, seen, time.Since(began))
			sh(t, vm, waitUnplugged)
		}
	})

	t.Run("VFIO owns a device", func(t *testing.T) {
		if err := vm.QMP().DeviceAdd(ctx, edu(0)); err != nil {
			t.Fatal(err)
		}
		sh(t, vm, waitPlugged)
		out := sh(t, vm, `d=$(echo /sys/bus/pci/devices/$(lspci -D -n -d 1234:11e8 | cut -d' ' -f1))
			echo vfio-pci >$d/driver_override
			echo ${d##*/} >/sys/bus/pci/drivers_probe
			ls -l $d/driver $d/iommu_group | sed 's/.*-> //'; ls /dev/vfio`)
		if !strings.Contains(out, "drivers/vfio-pci") || !strings.Contains(out, "iommu_groups/") {
			t.Errorf("not bound:\n%s", out)
		}
		t.Log("\n" + out)
	})

	t.Run("buses as QEMU sees them", func(t *testing.T) {
		var buses json.RawMessage
		if err := vm.QMP().Execute(ctx, "query-pci", nil, &buses); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`"qdev_id": "edu0"`, `"device": 4584`, `"size": 1048576`} {
			if !strings.Contains(string(buses), want) {
				t.Errorf("no %s in %s", want, buses)
			}
		}
	})

	t.Run("Close", func(t *testing.T) { closes(t, vm) })
}

// closes checks that Close leaves nothing behind.
func closes(t *testing.T, vm *VM) {
	if _, err := os.Stat(filepath.Join(filepath.Dir(vm.Log()), "initramfs.cpio")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the initramfs is still there: %v", err)
	}
	if err := vm.Close(); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(vm.PID(), 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("process %d: %v", vm.PID(), err)
	}
	if _, _, err := vm.Run(t.Context(), "true"); !errors.Is(err, ErrGuestGone) {
		t.Errorf("Run after Close: %v", err)
	}
	if err := vm.QMP().Execute(t.Context(), "query-status", nil, nil); !errors.Is(err, qmp.ErrClosed) {
		t.Errorf("QMP after Close: %v", err)
	}
}

// helperDir names the directory of the VM that a child of a test starts.
const helperDir = "DXPU_TEST_HELPER_DIR"

// A process that is killed takes its VM with it.
func TestDiesWithUs(t *testing.T) {
	if dir := os.Getenv(helperDir); dir != "" {
		helper(t, dir)
		return
	}
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	if _, err := Locate(); errors.Is(err, ErrNotInstalled) {
		t.Skip(err)
	}
	child := exec.Command(os.Args[0], "-test.run=^TestDiesWithUs$", "-test.v")
	child.Env = append(os.Environ(), helperDir+"="+t.TempDir())
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	pid := 0
	for in := bufio.NewScanner(out); pid == 0 && in.Scan(); {
		_, _ = fmt.Sscanf(in.Text(), "QEMU runs as %d", &pid)
	}
	if pid == 0 {
		_ = child.Process.Kill()
		t.Fatalf("the child started no VM: %v", child.Wait())
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	if err := child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = child.Wait()
	// Readable when the process has ended: pidfd_open(2).
	ready := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(ready, 10_000); n != 1 || err != nil {
		t.Errorf("QEMU lives on after 10 s: %d, %v", n, err)
	}
}

// helper boots a VM and waits to be killed.
func helper(t *testing.T, dir string) {
	install, err := Locate()
	if err != nil {
		t.Fatal(err)
	}
	vm, err := Start(t.Context(), Spec{Install: install, Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Printf("QEMU runs as %d\n", vm.PID())
	<-vm.Exited()
}

// Start undoes everything when the machine does not come up, and says why.
func TestStartFails(t *testing.T) {
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	install, err := Locate()
	if errors.Is(err, ErrNotInstalled) {
		t.Skip(err)
	}
	for _, c := range []struct {
		name, want string
		spec       Spec
	}{
		{"QEMU refuses its arguments", "no-such-device", Spec{Args: []string{"-device", "no-such-device"}}},
		{"the kernel panics", "Kernel panic - not syncing: VFS", Spec{Cmdline: "rdinit=/none root=/none"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			c.spec.Install, c.spec.Dir = install, t.TempDir()
			vm, err := Start(ctx, c.spec)
			if err == nil {
				_ = vm.Close()
				t.Fatal("it came up")
			}
			if !strings.Contains(err.Error(), c.want) {
				t.Errorf("error: %v", err)
			}
			t.Log(err)
		})
	}
}

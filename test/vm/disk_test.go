package vm_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/device/vhostuser/vhostusertest"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// TestDiskFaults resets and suspends a guest that writes to a remote disk by its kernel's own
// driver. All earlier data must be there afterwards, and the disk must work. The machine is one
// whose slots survive a suspend (suspend_test.go). A box that dies under requests is not among the
// faults: Linux' driver waits for their answers for ever (docs/disks.md).
func TestDiskFaults(t *testing.T) {
	bin := vhostusertest.Installed(t)
	g := boot(t, qemu.Spec{NativeHotPlug: true, Args: withS3, Cmdline: withoutMMCONFIG, Files: fioFiles(t, bin)})
	v := &virtio{cluster: &cluster{t: t, g: g}, bin: bin}
	image := filepath.Join(g.dir, "disk.img")
	if err := os.WriteFile(image, make([]byte, 128<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	v.storage(image)
	v.plug("blk")
	defer func() {
		if t.Failed() {
			g.tell(t)
		}
	}()
	v.appears()
	want := g.sh(t, "dd if=/dev/urandom of=/dev/vda bs=1M count=8 seek=64 conv=fsync 2>/dev/null; %s", sumOfDisk)
	var all []string
	for _, fault := range []func(v *virtio) string{diskReset, diskSuspended} {
		all = append(all, fault(v))
		v.appears()
		if got := g.sh(t, sumOfDisk); got != want {
			t.Fatalf("%s: the disk has the sum %s, before %s", all[len(all)-1], got, want)
		}
		g.sh(t, "%s", v.fio("/dev/vda", "--direct=1"))
		g.healthy(t)
	}
	v.unplug(g.pluggedWith(t, 0, "resource0"))
	seen(t, "%s", strings.Join(all, "; "))
}

// sumOfDisk prints the sum of the part of the disk that fio does not write, as the disk has it.
const sumOfDisk = "echo 3 >/proc/sys/vm/drop_caches; dd if=/dev/vda bs=1M count=8 skip=64 2>/dev/null | sha256sum"

// appears waits until the guest has the disk.
func (v *virtio) appears() {
	v.t.Helper()
	v.g.sh(v.t, "modprobe virtio_blk; until [ -b /dev/vda ] && dd if=/dev/vda of=/dev/null bs=4096 count=1 2>/dev/null; do usleep 10000; done")
}

// writes starts fio and waits until it writes.
func (v *virtio) writes() *job {
	v.t.Helper()
	j := v.g.start(v.t, `written() { awk '{ print $5 }' /sys/block/vda/stat; }; before=$(written); (
		until [ $(written) -gt $((before + 50)) ]; do usleep 1000; done; echo writes) & %s && echo verified`,
		v.fio("/dev/vda", "--direct=1 --loops=4"))
	j.says(v.t, "writes")
	return j
}

// The machine is reset while fio writes.
func diskReset(v *virtio) string {
	for range 3 {
		writing := v.writes()
		v.g.reset(v.t)
		<-writing.ended
		v.appears()
	}
	return "3 resets while fio wrote"
}

// The guest is suspended while fio writes, which goes on afterwards. It can be suspended once
// in a boot: at the resume the firmware does not set PMBASE (see tourWithEdu).
func diskSuspended(v *virtio) string {
	writing := v.writes()
	suspendOnly(v.t, v.g)
	if exit := writing.wait(v.t); exit != 0 || !strings.Contains(writing.out.String(), "verified") {
		v.t.Fatalf("fio: status %d\n%s", exit, writing.out.String())
	}
	return "a suspend while fio wrote and verified"
}

package vm_test

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/vhostuser/vhostusertest"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// fioDir is the directory of fio and its libraries in the guest.
const fioDir = "/opt/fio"

// fioFiles returns fio and its libraries for the guest.
func fioFiles(t *testing.T, bin string) (files []qemu.File) {
	t.Helper()
	tree := filepath.Dir(bin)
	lib := filepath.Join(tree, "usr/lib/x86_64-linux-gnu")
	fio := filepath.Join(tree, "usr/bin/fio")
	out, err := exec.Command(filepath.Join(lib, "ld-linux-x86-64.so.2"), "--inhibit-cache",
		"--library-path", lib+":"+lib+"/ceph", "--list", fio).Output()
	if err != nil {
		t.Fatal(err)
	}
	files = append(files, qemu.File{Path: fioDir + "/fio", Source: fio})
	for line := range strings.Lines(string(out)) {
		name, rest, ok := strings.Cut(strings.TrimSpace(line), " => ")
		if path, _, _ := strings.Cut(rest, " "); ok && !strings.Contains(name, "/") && strings.HasPrefix(path, "/") {
			files = append(files, qemu.File{Path: fioDir + "/" + name, Source: path})
		}
	}
	return files
}

// virtio is a guest, a pool, and the back end of a virtio device.
type virtio struct {
	*cluster
	bin    string // directory of the servers
	server *process
}

// TestVirtio plugs virtio devices of other people's back ends into a guest, whose kernel
// drives them by its own drivers.
func TestVirtio(t *testing.T) {
	bin := vhostusertest.Installed(t)
	g := boot(t, qemu.Spec{IOMMU: true, Files: fioFiles(t, bin)})
	for _, c := range []struct {
		name string
		test func(t *testing.T, v *virtio)
	}{
		{"a disk of qemu-storage-daemon", virtioDisk},
		{"a directory of virtiofsd", virtioDirectory},
		{"a network card of passt", virtioNetwork},
		{"sockets", virtioSockets},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.test(t, &virtio{cluster: &cluster{t: t, g: g}, bin: bin})
			g.healthy(t)
		})
		if t.Failed() {
			g.tell(t)
			t.FailNow() // the slots may not be empty
		}
	}
}

func (v *virtio) socket() string { return filepath.Join(v.g.dir, "backend.sock") }

// serve starts the back end.
func (v *virtio) serve(name string, args ...string) {
	v.t.Helper()
	_ = os.Remove(v.socket()) // of a server that was killed
	v.server = v.launch("server", exec.CommandContext(v.t.Context(), filepath.Join(v.bin, name), args...))
	for deadline := time.Now().Add(patience); ; {
		if _, err := os.Stat(v.socket()); err == nil {
			return
		}
		if time.Now().After(deadline) {
			v.t.Fatalf("%s makes no socket", name)
		}
	}
}

// storage starts qemu-storage-daemon with an image.
func (v *virtio) storage(image string) {
	v.t.Helper()
	v.serve("qemu-storage-daemon", "--blockdev", "file,node-name=disk,filename="+image,
		"--export", "vhost-user-blk,id=disk,node-name=disk,writable=on,addr.type=unix,addr.path="+v.socket())
}

// plug leases a device of a model into the guest and returns its address.
func (v *virtio) plug(kind string) string {
	v.t.Helper()
	v.startManager()
	v.start("box", "box", "--manager", v.url, "--name", "box", "--virtio", kind+"="+v.socket())
	v.start("host", "host", "--manager", v.url, "--name", "host", "--slots", "1", "--socket-dir", v.g.dir,
		"--state-dir", v.t.TempDir(), "--qmp", v.g.qmp)
	v.says("host +connected", "get", "hosts")
	v.says("box +[a-z-]+ +connected", "get", "boxes")
	v.dxpu("lease", "create", "--host", "host", "--model", "virtio-"+kind, "--wait", "--queue", "--timeout", patience.String())
	return v.g.pluggedWith(v.t, 0, "resource0")
}

// unplug ends the lease.
func (v *virtio) unplug(address string) {
	v.t.Helper()
	v.dxpu("lease", "delete", v.lease(), "--wait")
	v.g.unplugged(v.t, address)
}

// fio writes a file by fio and verifies it.
func (v *virtio) fio(file, more string) string {
	return fmt.Sprintf(`LD_LIBRARY_PATH=%[1]s %[1]s/fio --name=verify --filename=%s --size=16M --rw=randwrite --bsrange=4k-128k --ioengine=psync --verify=crc32c --verify_fatal=1 --verify_state_save=0 --end_fsync=1 %s`,
		fioDir, file, more)
}

// virtioDisk makes a file system on a remote disk, writes and verifies, also while the
// back end is killed and starts again.
func virtioDisk(t *testing.T, v *virtio) {
	image := filepath.Join(v.g.dir, "disk.img")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	const size = 128 << 20
	if err := os.Truncate(image, size); err != nil {
		t.Fatal(err)
	}
	v.storage(image)
	address := v.plug("blk")
	g := v.g
	t.Log(g.sh(t, `modprobe virtio_blk; until [ -b /dev/vda ]; do usleep 10000; done
		[ $(cat /sys/block/vda/size) = %d ] && basename $(readlink -f /sys/block/vda/device/driver)`, size/512))
	g.sh(t, `mke2fs -q /dev/vda && mkdir -p /mnt && mount -t ext2 /dev/vda /mnt`)
	t.Log(tail(g.sh(t, "%s", v.fio("/mnt/a", "")), 6))

	// The back end is killed while fio writes. Its requests wait until the back end has started again.
	j := g.start(t, `written() { awk '{ print $5 }' /sys/block/vda/stat; }; before=$(written); (
		until [ $(written) -gt $((before + 50)) ]; do usleep 1000; done; echo writes) & %s && echo verified`, v.fio("/mnt/b", "--direct=1 --loops=4"))
	j.says(t, "writes")
	v.kill(v.server)
	waiting := g.sh(t, `while [ "$(awk '{ print $1 + $2 }' /sys/block/vda/inflight)" = 0 ]; do usleep 1000; done; cat /sys/block/vda/inflight; pidof fio`)
	t.Logf("requests that wait, and the process that issued them: %s", waiting)
	v.storage(image)
	if exit := j.wait(t); exit != 0 || !strings.Contains(j.out.String(), "verified") {
		t.Fatalf("fio: status %d\n%s", exit, j.out.String())
	}
	sum := g.sh(t, `umount /mnt && echo 3 >/proc/sys/vm/drop_caches && mount -t ext2 /dev/vda /mnt && dd if=/dev/urandom of=/mnt/c bs=1M count=8 2>/dev/null &&
		sha256sum </mnt/c; umount /mnt`)
	v.unplug(address)

	// Another lease of the disk finds the data.
	v.dxpu("lease", "create", "--host", "host", "--model", "virtio-blk", "--wait", "--timeout", patience.String())
	again := g.sh(t, `until [ -b /dev/vda ]; do usleep 10000; done; mount -t ext2 /dev/vda /mnt && sha256sum </mnt/c; umount /mnt`)
	if sum != again {
		t.Errorf("the file has the sum %s, before %s", again, sum)
	}
	v.unplug(g.pluggedWith(t, 0, "resource0"))
}

// virtioDirectory shares a directory of the box with the guest.
func virtioDirectory(t *testing.T, v *virtio) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "hello"), []byte("from the box\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	v.serve("virtiofsd", "--socket-path="+v.socket(), "--shared-dir="+dir, "--sandbox=none")
	address := v.plug("fs")
	g := v.g
	// The driver knows the tag some time after it has bound the device.
	if out := g.sh(t, `mkdir -p /mnt; until mount -t virtiofs dxpu /mnt 2>/dev/null; do usleep 10000; done; cat /mnt/hello`); out != "from the box" {
		t.Errorf("the guest reads %q", out)
	}
	sum := g.sh(t, `mkdir /mnt/d && dd if=/dev/urandom of=/mnt/d/file bs=64k count=64 2>/dev/null && mv /mnt/d/file /mnt/d/moved && echo 3 >/proc/sys/vm/drop_caches && sha256sum </mnt/d/moved`)
	out, err := exec.Command("sha256sum", filepath.Join(dir, "d", "moved")).Output()
	if err != nil || !bytes.Equal(out[:64], []byte(sum[:64])) {
		t.Errorf("the box has %s, the guest %s: %v", out, sum, err)
	}
	g.sh(t, "umount /mnt")
	v.unplug(address)
}

// virtioNetwork gives the guest a network card, through which it reaches a server of the
// box. passt puts the address of its router in the place of the box's loopback.
func virtioNetwork(t *testing.T, v *virtio) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	body := bytes.Repeat([]byte("remote\n"), 1<<18)
	go func() {
		_ = http.Serve(l, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }))
	}()
	v.serve("passt", "--foreground", "--vhost-user", "--socket", v.socket(), "--ipv4-only",
		"--address", "10.9.0.2", "--netmask", "24", "--gateway", "10.9.0.1", "--map-host-loopback", "10.9.0.1")
	address := v.plug("net")
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	out := v.g.sh(t, `modprobe virtio_net; d=/sys/bus/pci/devices/%s; until n=$(ls $d/virtio*/net 2>/dev/null); do usleep 10000; done
		ip addr add 10.9.0.2/24 dev $n && ip link set $n up && wget -q -O - http://10.9.0.1:%s/ | sha256sum`, address, port)
	if want := fmt.Sprintf("%x", sha256.Sum256(body)); !strings.HasPrefix(out, want) {
		t.Errorf("the guest gets %s, want %s", out, want)
	}
	v.unplug(address)
}

// TestVirtioSpeed measures a disk beside the same back end that QEMU has as its own
// vhost-user-blk device, in turn. The guest has no IOMMU: behind one, each page of a request is mapped
// by a message of QEMU, which measures QEMU.
func TestVirtioSpeed(t *testing.T) {
	if !thorough() {
		t.Skip("a measurement: DXPU_VMTEST=thorough runs it")
	}
	bin := vhostusertest.Installed(t)
	v := &virtio{cluster: &cluster{t: t, g: boot(t, qemu.Spec{Files: fioFiles(t, bin)})}, bin: bin}
	image := filepath.Join(v.g.dir, "speed.img")
	if err := os.WriteFile(image, make([]byte, 128<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	g := v.g
	g.sh(t, "modprobe virtio_blk")
	run := func(name string) {
		for _, job := range []string{"read --bs=1M --iodepth=8", "write --bs=1M --iodepth=8", "randread --bs=4k --iodepth=1", "randwrite --bs=4k --iodepth=1"} {
			out := g.sh(t, `until [ -b /dev/vda ]; do usleep 10000; done; LD_LIBRARY_PATH=%[1]s %[1]s/fio --name=x --filename=/dev/vda --size=128M --time_based --runtime=4 --direct=1 --ioengine=libaio --rw=%[2]s --minimal`, fioDir, job)
			f := strings.Split(out, ";") // the terse format 3: KiB/s and operations per second
			at := 6
			if strings.Contains(job, "write") {
				at = 47
			}
			t.Logf("%-8s %-28s %8s KiB/s %7s /s", name, job, f[at], f[at+1])
		}
	}
	for round := range 3 {
		v.storage(image)
		v.direct(func() { run("direct") })
		v.kill(v.server)
		v.storage(image)
		if round == 0 {
			v.unplugAfter(v.plug("blk"), func() { run("remote") })
			continue
		}
		v.dxpu("lease", "create", "--host", "host", "--model", "virtio-blk", "--wait", "--queue", "--timeout", patience.String())
		v.unplugAfter(g.pluggedWith(t, 0, "resource0"), func() { run("remote") })
	}
}

func (v *virtio) unplugAfter(address string, f func()) {
	f()
	v.unplug(address)
	v.kill(v.server)
}

// direct gives the back end to QEMU while f runs.
func (v *virtio) direct(f func()) {
	v.t.Helper()
	q, ctx := v.g.QMP(), v.t.Context()
	chardev := map[string]any{"id": "backend", "backend": map[string]any{"type": "socket", "data": map[string]any{
		"addr": map[string]any{"type": "unix", "data": map[string]any{"path": v.socket()}}, "server": false,
	}}}
	if err := q.Execute(ctx, "chardev-add", chardev, nil); err != nil {
		v.t.Fatal(err)
	}
	add := map[string]any{"driver": "vhost-user-blk-pci", "id": "direct", "chardev": "backend", "bus": qemu.Slot(1), "num-queues": 1}
	if err := q.Execute(ctx, "device_add", add, nil); err != nil {
		v.t.Fatal(err)
	}
	address := v.g.pluggedWith(v.t, 1, "resource4")
	f()
	if err := q.Unplug(ctx, "direct"); err != nil {
		v.t.Fatal(err)
	}
	v.g.unplugged(v.t, address)
	if err := q.Execute(ctx, "chardev-remove", map[string]string{"id": "backend"}, nil); err != nil {
		v.t.Fatal(err)
	}
}

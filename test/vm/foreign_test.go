package vm_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/cfgspace"
	"github.com/dxpu-project/dxpu/internal/vm/qemu"
	"github.com/dxpu-project/dxpu/pcie"
)

// foreign is a guest and a pool with device servers of libvfio-user.
type foreign struct {
	*cluster
	programs string   // directory of the servers
	server   *process // the latest
}

// TestLibvfioUser runs programs of libvfio-user, which
// test/conformance/libvfio-user/build.sh has built into $DXPU_LIBVFIO_USER: servers behind
// a box, whose devices a guest drives, and a client of a host proxy.
func TestLibvfioUser(t *testing.T) {
	programs := os.Getenv("DXPU_LIBVFIO_USER")
	if programs == "" {
		t.Skip("build libvfio-user by test/conformance/libvfio-user/build.sh and set DXPU_LIBVFIO_USER to its directory")
	}
	version, err := os.ReadFile(filepath.Join(programs, "version"))
	if err != nil {
		t.Fatal(err)
	}
	g := boot(t, qemu.Spec{IOMMU: true})
	t.Attr("peer", "libvfio-user "+strings.TrimSpace(string(version)))
	for _, c := range []struct {
		name string
		test func(t *testing.T, f *foreign)
	}{
		{"lspci", foreignLspci},
		{"gpio-pci-idio-16", foreignIO},
		{"server", foreignServer},
		{"gpio-pci-idio-16 in memory space", foreignGPIO},
		{"shadow_ioeventfd_server with a class", foreignShadow},
		{"a device with DMA by messages and MSI-X", foreignCopies},
		{"a device with INTx", foreignINTx},
		{"client", foreignClient},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.test(t, &foreign{cluster: &cluster{t: t, g: g}, programs: programs})
			g.healthy(t)
		})
		if t.Failed() {
			g.tell(t)
			t.FailNow() // the slots may not be empty
		}
	}
}

// serve starts a device server.
func (f *foreign) serve(name string, args ...string) {
	f.t.Helper()
	f.clear()
	cmd := exec.CommandContext(f.t.Context(), filepath.Join(f.programs, name), append(args, f.socket())...)
	f.server = f.launch("server", cmd)
	for deadline := time.Now().Add(patience); ; {
		if _, err := os.Stat(f.socket()); err == nil {
			return
		}
		if time.Now().After(deadline) {
			f.t.Fatalf("%s makes no socket", name)
		}
	}
}

func (f *foreign) socket() string { return filepath.Join(f.g.dir, "device.sock") }

// clear removes the socket, which a server that was killed leaves behind.
func (f *foreign) clear() {
	f.t.Helper()
	if err := os.Remove(f.socket()); err != nil && !errors.Is(err, os.ErrNotExist) {
		f.t.Fatal(err)
	}
}

// pool starts a manager, a box with the server's device, and a host. Without a VM the
// tests take the place of the VMM.
func (f *foreign) pool(hostArgs ...string) {
	f.t.Helper()
	config := filepath.Join(f.g.dir, "box.yaml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "slots:\n  - vfio_user: %s\n", f.socket()), 0o600); err != nil {
		f.t.Fatal(err)
	}
	f.startManager()
	f.start("box", "box", "--manager", f.url, "--name", "box", "--config", config)
	f.start("host", append([]string{
		"host", "--manager", f.url, "--name", "host", "--slots", "1", "--socket-dir", f.g.dir,
		"--state-dir", f.t.TempDir(),
	}, hostArgs...)...)
	f.says("host +connected", "get", "hosts")
	f.says("box +[a-z-]+ +connected", "get", "boxes")
}

// plug leases the device into the guest and returns its address.
func (f *foreign) plug(file string) string {
	f.t.Helper()
	f.pool("--qmp", f.g.qmp)
	f.dxpu("lease", "create", "--host", "host", "--wait", "--queue", "--timeout", patience.String())
	return f.g.pluggedWith(f.t, 0, file)
}

// unplug ends the lease.
func (f *foreign) unplug(address string) {
	f.t.Helper()
	f.dxpu("lease", "delete", f.lease(), "--wait")
	f.g.unplugged(f.t, address)
}

// restart kills the server and starts it again: the guest loses the device and gets it back.
func (f *foreign) restart(address, file, name string, args ...string) string {
	f.t.Helper()
	gone := f.g.leaves(f.t, address)
	f.kill(f.server)
	gone.wait(f.t)
	f.serve(name, args...)
	return f.g.pluggedWith(f.t, 0, file)
}

// foreignLspci reads the configuration space that the sample prints.
func foreignLspci(t *testing.T, f *foreign) {
	out, err := exec.CommandContext(t.Context(), filepath.Join(f.programs, "lspci")).Output()
	if err != nil {
		t.Fatal(err)
	}
	var dump []byte
	for _, line := range strings.Split(string(out), "\n")[1:] {
		_, bytes, _ := strings.Cut(line, ":")
		b, err := hex.DecodeString(strings.ReplaceAll(bytes, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		dump = append(dump, b...)
	}
	if len(dump) != pcie.ConfigSize {
		t.Fatalf("%d bytes", len(dump))
	}
	var found []string
	for id := range cfgspace.Capabilities(dump) {
		found = append(found, fmt.Sprintf("%#x", id))
	}
	for c := range cfgspace.ExtendedCapabilities(dump) {
		found = append(found, fmt.Sprintf("%#x", c.ID))
	}
	// Power management, vendor-specific, PCI Express; serial number, vendor-specific twice.
	if got, want := strings.Join(found, " "), "0x1 0x9 0x10 0x3 0xb 0xb"; got != want {
		t.Errorf("capabilities %s, want %s", got, want)
	}
	seen(t, "capabilities %s", strings.Join(found, " "))
}

// foreignIO is a device whose BARs are all I/O: the tenant reads the reason.
func foreignIO(t *testing.T, f *foreign) {
	f.serve(filepath.Base(t.Name()))
	f.pool("--qmp", f.g.qmp)
	out, err := f.try("lease", "create", "--host", "host", "--wait", "--timeout", patience.String())
	if err == nil {
		t.Errorf("it is attached:\n%s", out)
	}
	t.Attr("limit", complaint(out))
}

// foreignServer starts the sample, which ends at once: its library refuses a BAR of three pages.
// The client drives it with BARs of the next possible size.
func foreignServer(t *testing.T, f *foreign) {
	f.serve("server")
	select {
	case <-f.server.ended:
	case <-time.After(patience):
		t.Fatal("it runs: a guest could drive it")
	}
	text, err := os.ReadFile(filepath.Join(f.g.dir, "server.log"))
	if err != nil {
		t.Fatal(err)
	}
	why := regexp.MustCompile(`BAR region size \d+ must be a power of 2`).FindString(string(text))
	if why == "" {
		t.Fatalf("it ends: %s", text)
	}
	t.Attr("limit", "the sample ends when it starts: "+why)
}

// complaint returns the line of a command's output that says what went wrong.
func complaint(out string) string {
	for line := range strings.Lines(out) {
		if text, ok := strings.CutPrefix(line, "dxpu: error: "); ok {
			return strings.TrimSpace(text)
		}
	}
	return out
}

// foreignGPIO drives the sample with its BAR in memory space: a pin reads as 1 while the
// number of writes to it is a multiple of three.
func foreignGPIO(t *testing.T, f *foreign) {
	f.serve("gpio-memory")
	address := f.plug("resource2")
	for range 2 {
		f.g.sh(t, "setpci -s %s COMMAND=2", address)
		at := f.g.sh(t, "sed -n '3s/ .*//p' /sys/bus/pci/devices/%s/resource", address)
		out := f.g.sh(t, `lspci -n -s %[1]s | cut -d' ' -f3
			devmem $((%[2]s+1)) 8; devmem %[2]s 8 1; devmem $((%[2]s+1)) 8
			devmem $((%[2]s+5)) 8; devmem $((%[2]s+4)) 8 0x80; devmem $((%[2]s+5)) 8`, address, at)
		if got, want := strings.Join(strings.Fields(out), " "), "494f:0dc8 0xFF 0xFE 0xFF 0x7F"; got != want {
			t.Fatalf("%s, want %s", got, want)
		}
		address = f.restart(address, "resource2", "gpio-memory")
	}
	f.unplug(address)
	seen(t, "registers; server killed and started; unplug")
}

func foreignShadow(t *testing.T, f *foreign) {
	f.serve("shadow-memory")
	address := f.plug("resource0")
	f.g.sh(t, "setpci -s %s COMMAND=2", address)
	out := f.g.sh(t, `at=$(sed -n '1s/ .*//p' /sys/bus/pci/devices/%s/resource)
		lspci -n -s %[1]s | cut -d' ' -f3; devmem $at 32 1; devmem $((at+8)) 32`, address)
	if !strings.Contains(out, "4e58:0000") {
		t.Errorf("the guest sees %q", out)
	}
	address = f.restart(address, "resource0", "shadow-memory")
	f.unplug(address)
	seen(t, "registers, without ioeventfds; server killed and started; unplug")
}

func foreignCopies(t *testing.T, f *foreign) {
	f.serve("device")
	address := f.plug("resource0")
	out := f.g.sh(t, "%s copy %s && %[1]s copy %[2]s", helper, address)
	address = f.restart(address, "resource0", "device")
	f.g.sh(t, "%s copy %s", helper, address)
	f.unplug(address)
	seen(t, "%s; server killed and started; unplug", tail(out, 1))
}

// foreignINTx waits for interrupts with the kernel's uio_pci_generic, which sets Interrupt
// Disable at each. Before the program clears that, it reads a register: VFIO has no other
// sign that an interrupt was handled.
func foreignINTx(t *testing.T, f *foreign) {
	f.serve("device", "-x")
	address := f.plug("resource0")
	out := f.g.sh(t, `modprobe uio_pci_generic
		echo uio_pci_generic >/sys/bus/pci/devices/%[1]s/driver_override && echo %[1]s >/sys/bus/pci/drivers_probe
		at=$(sed -n '1s/ .*//p' /sys/bus/pci/devices/%[1]s/resource)
		exec 4</dev/uio0 # counts from here on
		for i in 1 2 3; do
			devmem $at 32 >/dev/null
			setpci -s %[1]s COMMAND=6:406 # Interrupt Disable off
			devmem $((at+28)) 32 2
			timeout 60 dd bs=4 count=1 <&4 2>/dev/null | hexdump -e '"%%d\n"'
		done`, address)
	if got := strings.Join(strings.Fields(out), " "); !regexp.MustCompile(`^1 2 3$`).MatchString(got) {
		t.Errorf("numbers of interrupts %q", got)
	}
	f.unplug(address)
	seen(t, "three interrupts")
}

// foreignClient runs the client of libvfio-user against the socket of a host proxy. Behind
// it, across the network, is the server that the client was written for. The client ends
// at its reset: the device has no function level reset, which the network could carry.
func foreignClient(t *testing.T, f *foreign) {
	if os.Getuid() != 0 {
		t.Skip("only root can give the client a tmpfs as its /tmp")
	}
	f.serve("server-memory")
	sockets, err := os.MkdirTemp("/run", "dxpu") // visible below the other /tmp
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.RemoveAll(sockets) }()
	f.pool("--socket-dir", sockets)
	f.dxpu("lease", "create", "--host", "host", "--wait", "--queue", "--timeout", patience.String())
	cmd := exec.CommandContext(t.Context(), "unshare", "-m", "sh", "-c", `mount -t tmpfs tmp /mnt && cp "$0" /mnt/client && mount --move /mnt /tmp && exec /tmp/client "$1"`,
		filepath.Join(f.programs, "client"), filepath.Join(sockets, "slot0.sock"))
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	for _, want := range []string{"failed to read from region -559038737", "num_regions 9", "region_info[8]", "failed to reset device: Function not implemented"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("the client ends with %v without %q:\n%s", err, want, out.String())
		}
	}
	f.dxpu("lease", "delete", f.lease(), "--wait")
	t.Attr("limit", "ends at DEVICE_RESET: the device behind the network has no function level reset")
	seen(t, "version, an unknown region, regions, configuration space")
}

package vm_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

const (
	guestSlots = 3 // of a VM whose spec does not say
	// Programs in the guest: the product, and testdata/guest.
	program = "/bin/dxpu"
	helper  = "/bin/dxpu-guest"
)

// patience is the limit of everything that should take a second: the machine may
// be busy with other tests, and emulates the guest's processor. A boot alone has taken
// 136 s beside 20 busy threads on two processors; the thorough tests wait for longer ones.
var patience = func() time.Duration {
	if thorough() {
		return 10 * time.Minute
	}
	return 5 * time.Minute
}()

// thorough reports whether to run the long tests and to check the promised times.
func thorough() bool { return os.Getenv("DXPU_VMTEST") == "thorough" }

// programsDir is the directory of programs; "": they were not needed.
var programsDir string

// programs builds the programs of the guest, once.
var programs = sync.OnceValues(func() (dir string, err error) {
	if dir, err = os.MkdirTemp("", "dxpu-vmtest"); err != nil {
		return "", err
	}
	programsDir = dir
	for _, pkg := range []string{"./cmd/dxpu", "./cmd/dxpu-opencl", "./test/vm/testdata/guest"} {
		build := exec.Command("go", "build", "-o", filepath.Join(dir, filepath.Base(pkg)), pkg)
		build.Dir, build.Env = "../..", append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			return dir, fmt.Errorf("go build %s: %w\n%s", pkg, err, out)
		}
	}
	return dir, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if programsDir != "" {
		_ = os.RemoveAll(programsDir)
	}
	os.Exit(code)
}

// guest is a VM with slots into which a host proxy plugs devices.
type guest struct {
	*qemu.VM
	spec qemu.Spec
	dir  string
	qmp  string // socket
}

// boot starts a VM for the duration of the test, or skips the test if QEMU or the
// guest is not installed.
func boot(t *testing.T, spec qemu.Spec) *guest {
	t.Helper()
	g := prepare(t, "", spec)
	g.powerOn(t)
	return g
}

// prepare makes a VM that is not yet powered on, with a guest of
// scripts/build-guest.sh; "" is the default one.
func prepare(t *testing.T, name string, spec qemu.Spec) *guest {
	t.Helper()
	if testing.Short() {
		t.Skip("boots a virtual machine")
	}
	install, err := qemu.LocateGuest(name)
	if errors.Is(err, qemu.ErrNotInstalled) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	bin, err := programs()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "dxpu") // short: a socket's path has 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	g := &guest{dir: dir, qmp: filepath.Join(dir, "qmp.sock"), spec: spec}
	g.spec.Install, g.spec.Dir, g.spec.QMPSocket = install, dir, g.qmp
	g.spec.Slots = cmp.Or(spec.Slots, guestSlots)
	g.spec.Files = append(g.spec.Files, qemu.File{Path: program, Source: filepath.Join(bin, "dxpu")},
		qemu.File{Path: helper, Source: filepath.Join(bin, "guest")})
	return g
}

// powerOn starts the VM for the duration of the test, also after the end of an earlier one.
func (g *guest) powerOn(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	vm, err := qemu.Start(ctx, g.spec)
	if err != nil {
		t.Fatal(err)
	}
	g.VM = vm
	t.Cleanup(func() {
		if err := vm.Close(); err != nil {
			t.Error(err)
		}
	})
	t.Logf("QEMU %v, Linux %s, up in %v", g.QMP().Version(), g.Kernel(), g.BootTime())
	t.Attr("with", fmt.Sprintf("QEMU %v, Linux %s", g.QMP().Version(), g.Kernel()))
}

// sh runs a command that must succeed.
func (g *guest) sh(t *testing.T, format string, args ...any) string {
	t.Helper()
	out, exit := g.try(t, format, args...)
	if exit != 0 {
		t.Fatalf("%s: status %d\n%s", fmt.Sprintf(format, args...), exit, out)
	}
	return strings.TrimSpace(out)
}

// try runs a command.
func (g *guest) try(t *testing.T, format string, args ...any) (out string, exit int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	out, exit, err := g.Run(ctx, fmt.Sprintf(format, args...))
	if err != nil {
		t.Fatalf("%s: %v\n%s", fmt.Sprintf(format, args...), err, out)
	}
	return out, exit
}

// plugged waits until the guest has a GPU in a slot and returns its address.
func (g *guest) plugged(t *testing.T, slot int) string {
	t.Helper()
	return g.pluggedWith(t, slot, "resource2")
}

// pluggedWith is plugged for a device with another file than that of a GPU's aperture.
func (g *guest) pluggedWith(t *testing.T, slot int, file string) string {
	t.Helper()
	return g.sh(t, `while :; do
		for d in %s; do [ -e $d/%s ] && echo ${d##*/} && exit; done
		usleep 10000
	done`, g.spec.SlotPath(slot), file)
}

// leaves starts a job that ends when the device at an address is gone. A spare may
// take the address at once, so the job compares the inodes of the directories.
func (g *guest) leaves(t *testing.T, address string) *job {
	t.Helper()
	j := g.start(t, `cd /sys/bus/pci/devices && inode() { stat -Lc %%i %s 2>/dev/null; }; was=$(inode)
		echo watching; while [ "$(inode)" = "$was" ]; do usleep 10000; done`, address)
	j.says(t, "watching")
	return j
}

// unplugged waits until the guest has no device at an address.
func (g *guest) unplugged(t *testing.T, address string) {
	t.Helper()
	g.sh(t, "while [ -e /sys/bus/pci/devices/%s ]; do usleep 10000; done", address)
}

// job is a command that runs in the guest.
type job struct {
	command string
	out     output
	ended   chan struct{}
	exit    int
	err     error
}

// start starts a command and returns at once.
func (g *guest) start(t *testing.T, format string, args ...any) *job {
	t.Helper()
	j := &job{command: fmt.Sprintf(format, args...), ended: make(chan struct{})}
	j.out.grown = make(chan struct{}, 1)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	go func() {
		defer close(j.ended)
		j.exit, j.err = g.RunTo(ctx, &j.out, j.command)
	}()
	t.Cleanup(func() { cancel(); <-j.ended })
	return j
}

// wait waits for the end of the command and returns the exit status.
func (j *job) wait(t *testing.T) int {
	t.Helper()
	<-j.ended
	if j.err != nil {
		t.Fatalf("%s: %v\n%s", j.command, j.err, j.out.String())
	}
	return j.exit
}

// says waits until the command has written something.
func (j *job) says(t *testing.T, text string) {
	t.Helper()
	for !strings.Contains(j.out.String(), text) {
		select {
		case <-j.out.grown:
		case <-j.ended:
			if !strings.Contains(j.out.String(), text) {
				t.Fatalf("%s: ended with status %d, %v, without the output %q\n%s", j.command, j.exit, j.err, text, j.out.String())
			}
		}
	}
}

// output holds the output of a command so far.
type output struct {
	grown chan struct{}
	mu    sync.Mutex // guards text
	text  bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case o.grown <- struct{}{}:
	default:
	}
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// healthy checks that QEMU runs and that the guest's kernel has logged no errors.
func (g *guest) healthy(t *testing.T) {
	t.Helper()
	select {
	case <-g.Exited():
		text, _ := os.ReadFile(g.Log())
		t.Fatalf("QEMU has ended: %s", text)
	default:
	}
	out, _ := g.try(t, `dmesg | grep -E 'Oops|BUG|WARNING|Call Trace|blocked for more|general protection|stall|DMAR: \[|lockup'`)
	if out != "" {
		t.Errorf("the guest's kernel has logged errors:\n%s", out)
	}
}

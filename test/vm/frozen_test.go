package vm_test

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/vm/qemu"
)

// TestFrozen stops the processes of the box and of the host for a while, by a signal and by
// the freezer of control groups, while a program of the guest reads a register. Afterwards the
// guest must have a GPU that works. A stop that ends before the link is given up must leave the
// device in the guest.
func TestFrozen(t *testing.T) {
	g := boot(t, qemu.Spec{IOMMU: true})
	c, host, box := newCluster(t, g)
	control := monitorOfNothing(t, g)
	for _, f := range []struct {
		name    string
		prepare func(t *testing.T, p *process) (freeze, thaw func())
	}{
		{"SIGSTOP", stopProcess},
		{"freezer", freezeProcess},
	} {
		for _, s := range []struct {
			name    string
			process *process
			lasts   time.Duration
			stopped bool // the VM, meanwhile
		}{
			{"box", box, 300 * time.Millisecond, false},
			{"box", box, 4 * time.Second, false},
			{"box", box, 4 * time.Second, true},
			{"host", host, 300 * time.Millisecond, false},
			{"host", host, 4 * time.Second, false},
			{"host", host, 4 * time.Second, true},
			{"host", host, 12 * time.Second, false},
		} {
			name := fmt.Sprintf("%s, %s for %v", f.name, s.name, s.lasts)
			if s.stopped {
				name += ", the VM is stopped"
			}
			t.Run(name, func(t *testing.T) {
				if s.lasts != 4*time.Second && !thorough() {
					t.Skip("set DXPU_VMTEST=thorough to run it")
				}
				freeze, thaw := f.prepare(t, s.process)
				address := g.plugged(t, 0)
				reading := g.start(t, "echo $$; exec %s poll %s", helper, address)
				reading.says(t, "0x")
				watched := g.watch(t, control, host.beside)
				if s.stopped {
					g.monitor(t, "stop")
				}
				freeze()
				<-time.After(s.lasts)
				thaw()
				at := time.Now()
				if s.stopped {
					g.monitor(t, "cont")
				}
				pid, _, _ := strings.Cut(reading.out.String(), "\n")
				// The program has ended if the device was lost.
				if out, exit := g.try(t, "usleep 100000; kill %s", pid); exit != 0 && s.lasts < time.Second {
					t.Errorf("the device was lost: %s", out)
				}
				reading.wait(t)
				g.useAgain(t)
				answers := watched()
				if s.process == box {
					answers.check(t) // QEMU waits for a host that is frozen
				}
				seen(t, "a GPU worked %v later; the program saw %q; the monitor %v", time.Since(at).Round(100*time.Millisecond),
					strings.Split(strings.TrimSpace(reading.out.String()), "\n")[1:], answers)
				g.healthy(t)
			})
			if t.Failed() {
				g.tell(t)
				return
			}
		}
	}
	c.end()
}

// useAgain uses the GPU. The device may be the former one at first, which is still to be taken away.
func (g *guest) useAgain(t *testing.T) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		out, exit := g.try(t, "%s use %s", helper, g.plugged(t, 0))
		if exit == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the GPU does not work: %s", out)
		}
	}
}

// monitor runs a command of QEMU's monitor.
func (g *guest) monitor(t *testing.T, command string) {
	t.Helper()
	if err := g.QMP().Execute(t.Context(), command, nil, nil); err != nil {
		t.Fatalf("%s: %v", command, err)
	}
}

// stopProcess stops a process by a signal.
func stopProcess(t *testing.T, p *process) (freeze, thaw func()) {
	t.Helper()
	send := func(s syscall.Signal) {
		if err := p.cmd.Process.Signal(s); err != nil {
			t.Errorf("%v: %v", s, err)
		}
	}
	return func() { send(syscall.SIGSTOP) }, func() { send(syscall.SIGCONT) }
}

// freezeProcess stops a process by a control group of its own (version 2).
func freezeProcess(t *testing.T, p *process) (freeze, thaw func()) {
	t.Helper()
	root, err := controlGroups()
	if err != nil {
		t.Skip(err)
	}
	group, err := os.MkdirTemp(root, "dxpu")
	if err != nil {
		t.Skip(err) // only root may
	}
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0); err != nil {
			t.Fatal(err)
		}
	}
	pid := strconv.Itoa(p.cmd.Process.Pid)
	was := groupOf(t, pid)
	write(filepath.Join(group, "cgroup.procs"), pid)
	freeze = func() { write(filepath.Join(group, "cgroup.freeze"), "1") }
	return freeze, func() {
		write(filepath.Join(group, "cgroup.freeze"), "0")
		write(filepath.Join(root, was, "cgroup.procs"), pid)
		if err := os.Remove(group); err != nil {
			t.Error(err)
		}
	}
}

// controlGroups returns where the hierarchy of version 2 is mounted.
func controlGroups() (string, error) {
	text, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return "", err
	}
	for s := bufio.NewScanner(bytes.NewReader(text)); s.Scan(); {
		if f := strings.Fields(s.Text()); len(f) > 2 && f[2] == "cgroup2" {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("control groups of version 2 are not mounted")
}

// groupOf returns the control group of a process in the hierarchy of version 2.
func groupOf(t *testing.T, pid string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/proc", pid, "cgroup"))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if path, ok := strings.CutPrefix(line, "0::"); ok {
			return strings.TrimSpace(path)
		}
	}
	t.Fatalf("no control group of version 2 in %s", text)
	return ""
}

package vm_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/internal/rawio/rights"
	"github.com/dxpu-project/dxpu/internal/vm/qmp"
)

// monitorLimit is the promised limit of an answer of QEMU's monitor.
const monitorLimit = time.Second

// answers are the times that QEMU's monitor took to answer while it was watched.
type answers struct {
	count   int
	longest time.Duration
	// own is the longest without the time in which there was no host proxy, and without that in
	// which a thread of QEMU or of the proxy was ready to run and had no processor: on a busy
	// machine that is not the work of a device.
	own time.Duration
	// control is the longest of a QEMU without a device and without a guest, which was
	// asked at the same time.
	control time.Duration
	// late counts the watches with a late answer, excused those of them in which the
	// control was late, too.
	late, excused int
}

// judged returns the answers of one watch with its verdict.
func (a answers) judged() answers {
	a.late, a.excused = 0, 0
	if a.own > monitorLimit {
		a.late = 1
		if a.control > monitorLimit {
			a.excused = 1
		}
	}
	return a
}

// and joins the answers of watches that are judged.
func (a answers) and(b answers) answers {
	return answers{
		a.count + b.count, max(a.longest, b.longest), max(a.own, b.own), max(a.control, b.control),
		a.late + b.late, a.excused + b.excused,
	}
}

// String prints the longest time, and how much of it is QEMU's own where that matters.
func (a answers) String() string {
	text := fmt.Sprintf("%d times within %v", a.count, a.longest.Round(time.Millisecond))
	if a.longest > monitorLimit {
		text += fmt.Sprintf(" (%v without waiting for a processor; a QEMU without a device %v)",
			a.own.Round(time.Millisecond), a.control.Round(time.Millisecond))
	}
	return text
}

// check compares the times with the promise. Only a QEMU without a device that was late in
// the same rounds excuses a late answer.
func (a answers) check(t *testing.T) {
	t.Helper()
	if a.count == 0 {
		t.Error("QEMU's monitor was not asked")
	}
	switch {
	case !thorough() || a.late == 0:
	case a.late == a.excused:
		t.Attr("limit", fmt.Sprintf("%d times a QEMU without a device was late, too: the monitor %v", a.late, a))
	default:
		t.Errorf("QEMU's monitor was late in %d rounds, and a QEMU without a device in %d of them: %v, want %v", a.late, a.excused, a, monitorLimit)
	}
}

// readAll reads the files of a pattern, by their names; none of threads that have ended.
func readAll(pattern string) map[string]string {
	out := map[string]string{}
	names, err := filepath.Glob(pattern)
	if err != nil {
		return out
	}
	for _, name := range names {
		if text, err := os.ReadFile(name); err == nil {
			out[name] = string(text)
		}
	}
	return out
}

// monitorOfNothing starts a QEMU without a device and without a guest, for the duration of
// the test, and returns its monitor: it is late only where the machine is too busy for any QEMU.
func monitorOfNothing(t *testing.T, g *guest) *qmp.Client {
	t.Helper()
	socket := filepath.Join(g.dir, "control.sock")
	cmd := exec.Command(g.spec.Install.QEMU, "-S", "-M", "none", "-display", "none", "-nodefaults", "-no-user-config",
		"-qmp", "unix:"+socket+",server=on,wait=off")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, ended := make(chan error), make(chan struct{})
	go func() {
		defer close(ended)
		runtime.LockOSThread() // never unlocked: the signal comes when the thread that forked ends
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait() // killed
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-ended
	})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for {
		monitor, err := qmp.Dial(ctx, socket, new(rights.Disposer))
		if err == nil {
			t.Cleanup(func() { _ = monitor.Close() })
			return monitor
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
}

// beside is the host proxy beside a QEMU.
type beside struct {
	pid      int
	from, to time.Time // when there was none for the last time: a service manager starts it again
}

// absent returns for how long there was none between two times.
func (b *beside) absent(began, ended time.Time) time.Duration {
	from, to := began, ended
	if b.from.After(from) {
		from = b.from
	}
	if b.to.Before(to) {
		to = b.to
	}
	return max(to.Sub(from), 0)
}

func (p *process) beside() *beside { return &beside{pid: p.cmd.Process.Pid} }

// inside is a proxy in the test's own process.
func inside() *beside { return &beside{pid: os.Getpid()} }

// watch asks QEMU's monitor again and again until the caller calls the function that it
// returns, and that of a QEMU without a device beside it. The end of QEMU ends the watch;
// another error fails the test.
func (g *guest) watch(t *testing.T, control *qmp.Client, proxy func() *beside) (stop func() answers) {
	t.Helper()
	monitor, pid, exited := g.QMP(), g.PID(), g.Exited()
	over := make(chan struct{})
	var done sync.WaitGroup
	var all answers
	done.Go(func() {
		err := repeat(over, func() error {
			ready, began := readyTimes(pid, proxy().pid), time.Now()
			err := status(monitor) // also of an answer that never came
			ended, waited, p := time.Now(), time.Duration(0), proxy()
			for thread, now := range readyTimes(pid, p.pid) { // all of it, of a process that has started since
				waited = max(waited, now-ready[thread])
			}
			took := ended.Sub(began)
			all = all.and(answers{count: 1, longest: took, own: max(took-waited-p.absent(began, ended), 0)})
			return err
		})
		if err == nil {
			return
		}
		select {
		case <-exited:
		case <-time.After(patience):
			t.Errorf("QEMU's monitor: %v", err)
		}
	})
	longest := time.Duration(0)
	done.Go(func() {
		if err := repeat(over, func() error {
			began := time.Now()
			err := status(control)
			longest = max(longest, time.Since(began))
			return err
		}); err != nil {
			t.Errorf("the monitor of a QEMU without a device: %v", err)
		}
	})
	stop = sync.OnceValue(func() answers {
		close(over)
		done.Wait()
		all.control = longest
		return all.judged()
	})
	t.Cleanup(func() { stop() })
	return stop
}

// status asks a monitor for the state of its VM.
func status(monitor *qmp.Client) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return monitor.Execute(ctx, "query-status", nil, nil)
}

// repeat calls ask every 20 ms until over is closed or ask fails: not in the middle of a
// command, which would end the connection.
func repeat(over <-chan struct{}, ask func() error) error {
	pause := time.NewTicker(20 * time.Millisecond)
	defer pause.Stop()
	for {
		if err := ask(); err != nil {
			return err
		}
		select {
		case <-over:
			return nil
		case <-pause.C:
		}
	}
}

// readyTimes returns for how long each thread of processes was ready to run and waited for
// a processor (Documentation/scheduler/sched-stats.rst); none where the kernel does not tell.
func readyTimes(pids ...int) map[string]time.Duration {
	out := map[string]time.Duration{}
	for _, pid := range pids {
		for name, text := range readAll(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) {
			fields := strings.Fields(text)
			if len(fields) < 2 {
				continue
			}
			if ns, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
				out[name] = time.Duration(ns)
			}
		}
	}
	return out
}

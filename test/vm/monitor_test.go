package vm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	// monitorLimit is the promised limit of an answer of QEMU's monitor.
	monitorLimit = time.Second
	// busyLimit is that of a machine with busy processors: a host proxy waits up to four
	// seconds for an answer while the acknowledgements of its link are slow.
	busyLimit = 4*time.Second + monitorLimit
)

// answers are the times that QEMU's monitor took to answer.
type answers struct {
	count   int
	longest time.Duration
	// own is the longest without the time in which a thread of QEMU was ready to run and
	// had no processor: on a busy machine that is not the work of a device.
	own time.Duration
}

func (a answers) and(b answers) answers {
	return answers{a.count + b.count, max(a.longest, b.longest), max(a.own, b.own)}
}

func (a answers) late() bool { return a.own > monitorLimit }

// String prints the longest time, and how much of it is QEMU's own where that matters.
func (a answers) String() string {
	text := fmt.Sprintf("%d times within %v", a.count, a.longest.Round(time.Millisecond))
	if a.longest > monitorLimit {
		text += fmt.Sprintf(" (%v without waiting for a processor)", a.own.Round(time.Millisecond))
	}
	return text
}

// check compares the times with the promise.
func (a answers) check(t *testing.T) {
	t.Helper()
	if a.count == 0 {
		t.Error("QEMU's monitor was not asked")
	}
	switch load := loadOf(t); {
	case !thorough() || !a.late():
	case a.own <= busyLimit && load > 2*float64(runtime.NumCPU()):
		t.Attr("limit", fmt.Sprintf("at a load of %.0f on %d processors the host waits longer for an answer: the monitor %v", load, runtime.NumCPU(), a))
	default:
		t.Errorf("QEMU's monitor answered %v, want %v", a, monitorLimit)
	}
}

// loadOf returns the number of threads that ran or were ready in the last minute.
func loadOf(t *testing.T) (load float64) {
	t.Helper()
	text, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, err = fmt.Sscan(string(text), &load)
	}
	if err != nil {
		t.Error(err)
	}
	return load
}

// watch asks QEMU's monitor again and again until the caller calls the function that it
// returns. The end of QEMU ends the watch; another error fails the test.
func (g *guest) watch(t *testing.T) (stop func() answers) {
	t.Helper()
	monitor, pid, exited := g.QMP(), g.PID(), g.Exited()
	over := make(chan struct{})
	var done sync.WaitGroup
	var all answers
	done.Go(func() {
		for pause := time.NewTicker(20 * time.Millisecond); ; <-pause.C {
			select {
			case <-over: // not in the middle of a command, which would end the connection
				return
			default:
			}
			ready, began := readyTimes(pid), time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			err := monitor.Execute(ctx, "query-status", nil, nil)
			cancel()
			took, waited := time.Since(began), time.Duration(0) // also of an answer that never came
			for thread, now := range readyTimes(pid) {
				waited = max(waited, now-ready[thread])
			}
			all = all.and(answers{1, took, max(took-waited, 0)})
			if err == nil {
				continue
			}
			select {
			case <-exited:
			case <-time.After(patience):
				t.Errorf("QEMU's monitor: %v", err)
			}
			return
		}
	})
	stop = sync.OnceValue(func() answers {
		close(over)
		done.Wait()
		return all
	})
	t.Cleanup(func() { stop() })
	return stop
}

// readyTimes returns for how long each thread of a process was ready to run and waited for
// a processor (Documentation/scheduler/sched-stats.rst); none where the kernel does not tell.
func readyTimes(pid int) map[string]time.Duration {
	out := map[string]time.Duration{}
	names, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	if err != nil {
		return out
	}
	for _, name := range names {
		text, err := os.ReadFile(name)
		fields := strings.Fields(string(text))
		if err != nil || len(fields) < 2 { // the thread has ended
			continue
		}
		if ns, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			out[name] = time.Duration(ns)
		}
	}
	return out
}

package vm_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// monitorLimit is the promised limit of an answer of QEMU's monitor.
const monitorLimit = time.Second

// answers are the times that QEMU's monitor took to answer.
type answers struct {
	longest time.Duration
	// own is the longest without the time in which a thread of QEMU was ready to run and
	// had no processor: on a busy machine that is not the work of a device.
	own time.Duration
}

func (a answers) and(b answers) answers {
	return answers{max(a.longest, b.longest), max(a.own, b.own)}
}

func (a answers) late() bool { return a.own > monitorLimit }

// String prints the longest time, and how much of it is QEMU's own where that matters.
func (a answers) String() string {
	text := fmt.Sprintf("within %v", a.longest.Round(time.Millisecond))
	if a.longest > monitorLimit {
		text += fmt.Sprintf(" (%v without waiting for a processor)", a.own.Round(time.Millisecond))
	}
	return text
}

// check compares the times with the promise.
func (a answers) check(t *testing.T) {
	t.Helper()
	if thorough() && a.late() {
		t.Errorf("QEMU's monitor answered %v, want %v", a, monitorLimit)
	}
}

// watch asks QEMU's monitor again and again until the caller calls the function that it
// returns. The end of QEMU ends the watch.
func (g *guest) watch(t *testing.T) (stop func() answers) {
	t.Helper()
	monitor, pid := g.QMP(), g.PID()
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	var all answers
	done.Go(func() {
		for pause := time.NewTicker(20 * time.Millisecond); ctx.Err() == nil; <-pause.C {
			ready, began := readyTimes(pid), time.Now()
			err := monitor.Execute(ctx, "query-status", nil, nil)
			took, waited := time.Since(began), time.Duration(0) // also of an answer that never came
			for thread, now := range readyTimes(pid) {
				waited = max(waited, now-ready[thread])
			}
			all = all.and(answers{took, max(took-waited, 0)})
			if err != nil {
				return
			}
		}
	})
	stop = func() answers {
		cancel()
		done.Wait()
		return all
	}
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

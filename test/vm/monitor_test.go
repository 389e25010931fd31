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
	// others is the sum of the numbers of threads of other programs that ran or were ready
	// to run, and looks how many numbers these are.
	others, looks int
}

func (a answers) and(b answers) answers {
	return answers{a.count + b.count, max(a.longest, b.longest), max(a.own, b.own), a.others + b.others, a.looks + b.looks}
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

// busy reports whether other programs took the processors: more than two of their threads
// for each wanted to run. The work of the test and its children does not count, or a device
// that keeps its VM busy would excuse itself.
func (a answers) busy(processors int) bool { return a.others > 2*processors*a.looks }

// excused reports whether an answer that was late for a quiet machine is a limit of a busy one.
func (a answers) excused(processors int) bool { return a.busy(processors) && a.own <= busyLimit }

// check compares the times with the promise.
func (a answers) check(t *testing.T) {
	t.Helper()
	if a.count == 0 {
		t.Error("QEMU's monitor was not asked")
	}
	switch processors := runtime.NumCPU(); {
	case !thorough() || !a.late():
	case a.excused(processors):
		t.Attr("limit", fmt.Sprintf("beside %d threads of other programs on %d processors the host waits longer for an answer: the monitor %v", a.others/a.looks, processors, a))
	default:
		t.Errorf("QEMU's monitor answered %v, want %v", a, monitorLimit)
	}
}

// readyOthers returns how many threads of programs other than this one and its children run
// or are ready to run.
func readyOthers() (int, error) {
	text, err := os.ReadFile("/proc/loadavg") // 0.20 0.18 0.12 running/all last
	if err != nil {
		return 0, err
	}
	var ready int
	if _, err = fmt.Sscanf(string(text), "%f %f %f %d/", new(float64), new(float64), new(float64), &ready); err != nil {
		return 0, fmt.Errorf("/proc/loadavg: %w", err)
	}
	for _, pid := range family(os.Getpid()) {
		ready -= readyThreads(pid)
	}
	return max(ready, 0), nil
}

// family returns a process and all its descendants.
func family(root int) (pids []int) {
	children := map[int][]int{}
	for name, text := range readAll("/proc/[0-9]*/stat") {
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(name)))
		fields := statFields(text)
		if err != nil || len(fields) < 2 {
			continue
		}
		if parent, err := strconv.Atoi(fields[1]); err == nil {
			children[parent] = append(children[parent], pid)
		}
	}
	pids = []int{root}
	for i := 0; i < len(pids); i++ {
		pids = append(pids, children[pids[i]]...)
	}
	return pids
}

// readyThreads returns how many threads of a process run or are ready to run.
func readyThreads(pid int) (n int) {
	for _, text := range readAll(fmt.Sprintf("/proc/%d/task/*/stat", pid)) {
		if fields := statFields(text); len(fields) > 0 && fields[0] == "R" {
			n++
		}
	}
	return n
}

// statFields returns the fields of a stat file behind the name of the program: the state, the
// parent and so on (proc_pid_stat(5)).
func statFields(text string) []string {
	return strings.Fields(text[strings.LastIndexByte(text, ')')+1:])
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

// watch asks QEMU's monitor again and again until the caller calls the function that it
// returns. The end of QEMU ends the watch; another error fails the test.
func (g *guest) watch(t *testing.T) (stop func() answers) {
	t.Helper()
	monitor, pid, exited := g.QMP(), g.PID(), g.Exited()
	over := make(chan struct{})
	var done sync.WaitGroup
	var all answers
	done.Go(func() {
		pause := time.NewTicker(20 * time.Millisecond)
		defer pause.Stop()
		for n := 0; ; n++ {
			if n > 0 {
				<-pause.C
			}
			select {
			case <-over: // not in the middle of a command, which would end the connection
				return
			default:
			}
			if n%50 == 0 {
				others, err := readyOthers()
				if err != nil {
					t.Error(err)
					return
				}
				all = all.and(answers{others: others, looks: 1})
			}
			ready, began := readyTimes(pid), time.Now()
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			err := monitor.Execute(ctx, "query-status", nil, nil)
			cancel()
			took, waited := time.Since(began), time.Duration(0) // also of an answer that never came
			for thread, now := range readyTimes(pid) {
				waited = max(waited, now-ready[thread])
			}
			all = all.and(answers{count: 1, longest: took, own: max(took-waited, 0)})
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
	for name, text := range readAll(fmt.Sprintf("/proc/%d/task/*/schedstat", pid)) {
		fields := strings.Fields(text)
		if len(fields) < 2 {
			continue
		}
		if ns, err := strconv.ParseInt(fields[1], 10, 64); err == nil {
			out[name] = time.Duration(ns)
		}
	}
	return out
}

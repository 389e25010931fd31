package vm_test

import (
	"io"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"
)

// Late answers of the monitor are a limit only where other programs took the processors,
// and only up to busyLimit.
func TestExcusesOfTheMonitor(t *testing.T) {
	const late = monitorLimit + time.Millisecond
	for _, c := range []struct {
		name          string
		own           time.Duration
		others, looks int
		excused       bool
	}{
		{"a quiet machine", late, 0, 10, false},
		{"two threads for each processor", late, 80, 10, false},
		{"more", late, 81, 10, true},
		{"later than a host may wait", busyLimit + time.Millisecond, 1000, 10, false},
		{"not looked", late, 0, 0, false},
	} {
		a := answers{count: 1, longest: c.own, own: c.own}.and(answers{others: c.others, looks: c.looks})
		if !a.late() || a.excused(4) != c.excused {
			t.Errorf("%s: late %v, excused %v, want %v", c.name, a.late(), a.excused(4), c.excused)
		}
	}
}

// The children of the test and their children are not other programs.
func TestFamily(t *testing.T) {
	child := exec.Command("sh", "-c", "cat; exit") // sh waits for cat
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = in.Close(), child.Wait() }()
	if _, err := in.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil { // cat runs
		t.Fatal(err)
	}
	own, its := family(os.Getpid()), family(child.Process.Pid)
	if len(its) != 2 || !slices.Contains(own, its[0]) || !slices.Contains(own, its[1]) {
		t.Errorf("family %v, of the child %v", own, its)
	}
	if readyThreads(os.Getpid()) == 0 {
		t.Error("no thread of the test is ready, and one asks")
	}
	if _, err := readyOthers(); err != nil {
		t.Error(err)
	}
}

package vm_test

import (
	"testing"
	"time"
)

// A late answer of the monitor is excused only if a QEMU without a device was late in the
// same watch.
func TestExcusesOfTheMonitor(t *testing.T) {
	const late = monitorLimit + time.Millisecond
	for _, c := range []struct {
		name               string
		longest, own, idle time.Duration
		late, excused      int
	}{
		{"in time", monitorLimit, monitorLimit, 0, 0, 0},
		{"late, and only because QEMU waited for a processor", late, monitorLimit, 0, 0, 0},
		{"late", late, late, monitorLimit, 1, 0},
		{"late, as is a QEMU without a device", late, late, late, 1, 1},
		{"in time beside a QEMU without a device that is late", monitorLimit, monitorLimit, late, 0, 0},
	} {
		a := answers{count: 1, longest: c.longest, own: c.own, control: c.idle}.judged()
		if a.late != c.late || a.excused != c.excused {
			t.Errorf("%s: late %d, excused %d, want %d and %d", c.name, a.late, a.excused, c.late, c.excused)
		}
	}
	// The excuse of one watch is none for another.
	two := answers{own: late, control: late}.judged().and(answers{own: late}.judged())
	if two.late != 2 || two.excused != 1 {
		t.Errorf("of two watches %d are late and %d excused, want 2 and 1", two.late, two.excused)
	}
}

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

// Only the part of a time without a proxy in which QEMU was asked excuses its answer.
func TestTimeWithoutAProxy(t *testing.T) {
	at := func(s int) time.Time { return time.Unix(1_000_000, 0).Add(time.Duration(s) * time.Second) }
	b := &beside{from: at(10), to: at(15)}
	for _, c := range []struct{ began, ended, want int }{
		{0, 9, 0}, {5, 12, 2}, {11, 12, 1}, {5, 20, 5}, {14, 20, 1}, {16, 20, 0},
	} {
		if got := b.absent(at(c.began), at(c.ended)); got != time.Duration(c.want)*time.Second {
			t.Errorf("from %d to %d: %v, want %d s", c.began, c.ended, got, c.want)
		}
	}
	if got := new(beside).absent(at(0), at(100)); got != 0 {
		t.Errorf("a proxy that was always there: %v", got)
	}
}

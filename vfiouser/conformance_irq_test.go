package vfiouser

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/internal/leaktest"
)

func itoa(n int) string { return strconv.Itoa(n) }

// setIRQs is the payload of SET_IRQS.
func setIRQs(flags, index, start, count int, bools ...byte) []byte {
	return append(le(20+len(bools), flags, index, start, count), bools...)
}

// Flags of SET_IRQS as VMMs send them.
const (
	disable   = 0x21 // NONE | TRIGGER
	arm       = 0x24 // EVENTFD | TRIGGER
	unmask    = 0x11 // NONE | UNMASK
	mask      = 0x09 // NONE | MASK
	unmaskFD  = 0x14 // EVENTFD | UNMASK
	boolFire  = 0x22 // BOOL | TRIGGER
	boolMask  = 0x0a
	twoKinds  = 0x23
	twoWays   = 0x31
	noAction  = 0x01
	strayBits = 0x121
)

func wantSignals(t *testing.T, ev *os.File, want uint64) {
	t.Helper()
	if n := signals(ev); n != want {
		t.Errorf("%d signals, want %d", n, want)
	}
}

func fire(t *testing.T, c *Conn, index, vector uint32, want error) {
	t.Helper()
	if err := c.TriggerIRQ(index, vector); !errors.Is(err, want) {
		t.Errorf("trigger %d/%d: %v, want %v", index, vector, err, want)
	}
}

var irqTests = []conformance{
	{"G_MSIX_as_QEMU_does_it", func(t *testing.T) {
		f := serve(t)
		p, c := f.connect()
		x, y := event(t), event(t)
		p.ok(8, setIRQs(disable, 0, 0, 0))
		p.ok(8, setIRQs(arm, 2, 0, 1)) // reserve: no descriptor
		fire(t, c, IRQMSIX, 0, ErrNotArmed)
		p.ok(8, setIRQs(arm, 2, 0, 1), mustFD(t, x))
		p.ok(8, setIRQs(arm, 2, 5, 1), mustFD(t, y))
		fire(t, c, IRQMSIX, 5, nil)
		fire(t, c, IRQMSIX, 0, nil)
		fire(t, c, IRQMSIX, 0, nil)
		fire(t, c, IRQMSIX, 1, ErrNotArmed)
		wantSignals(t, x, 2)
		wantSignals(t, y, 1)
		p.ok(8, setIRQs(disable, 2, 0, 0))
		fire(t, c, IRQMSIX, 0, ErrNotArmed)
		fire(t, c, IRQMSIX, 5, ErrNotArmed)
		wantSignals(t, x, 0)
		if err := c.TriggerIRQ(IRQMSIX, 64); err == nil || errors.Is(err, ErrNotArmed) {
			t.Errorf("no such vector: %v", err)
		}
		f.dev.mu.Lock()
		defer f.dev.mu.Unlock()
		want := []IRQChange{{0, 0, 1, IRQDisarmed}, {2, 0, 1, IRQDisarmed}, {2, 0, 1, IRQArmed}, {2, 5, 1, IRQArmed}, {2, 0, 64, IRQDisarmed}}
		if len(f.dev.changes) != len(want) {
			t.Fatalf("%+v", f.dev.changes)
		}
		for i := range want {
			if f.dev.changes[i] != want[i] {
				t.Errorf("change %d: %+v, want %+v", i, f.dev.changes[i], want[i])
			}
		}
	}},
	{"G_rearm_closes_the_old_descriptor", func(t *testing.T) {
		p, c := serve(t).connect()
		x, y := event(t), event(t)
		p.ok(8, setIRQs(arm, 2, 0, 1), mustFD(t, x))
		before := leaktest.Descriptors(t)
		for range 10 {
			p.ok(8, setIRQs(arm, 2, 0, 1), mustFD(t, y))
		}
		if n := leaktest.Descriptors(t); n != before {
			t.Errorf("%d descriptors, %d before", n, before)
		}
		fire(t, c, IRQMSIX, 0, nil)
		wantSignals(t, x, 0)
		wantSignals(t, y, 1)
		p.ok(8, setIRQs(arm, 2, 0, 64)) // de-assign
		if n := leaktest.Descriptors(t); n != before-1 {
			t.Errorf("%d descriptors after de-assigning, want %d", n, before-1)
		}
	}},
	{"G_MSI_in_chunks", func(t *testing.T) {
		for _, chunk := range []int{1, 4, 8, 16} {
			p, c := serve(t).connect()
			evs := make([]*os.File, 32)
			for at := 0; at < 32; at += chunk {
				var fds []int
				for i := at; i < at+chunk; i++ {
					evs[i] = event(t)
					fds = append(fds, mustFD(t, evs[i]))
				}
				p.ok(8, setIRQs(arm, 1, at, chunk), fds...)
			}
			for i, ev := range evs {
				fire(t, c, IRQMSI, uint32(i), nil)
				wantSignals(t, ev, 1)
			}
		}
	}},
	{"G_requests_refused", func(t *testing.T) {
		p, _ := serve(t).connect()
		ev := event(t)
		before := leaktest.Descriptors(t)
		for name, body := range map[string][]byte{
			"index": setIRQs(arm, 5, 0, 1), "vector": setIRQs(arm, 2, 64, 1), "count": setIRQs(arm, 2, 0, 65), "wrap": setIRQs(arm, 2, -1, 2),
			"two descriptors too few": setIRQs(arm, 2, 0, 3), "too many": setIRQs(arm, 2, 0, 0), "two kinds": setIRQs(twoKinds, 2, 0, 1),
			"two actions": setIRQs(twoWays, 2, 0, 1), "no action": setIRQs(noAction, 2, 0, 1), "stray bits": setIRQs(strayBits, 2, 0, 1),
			"booleans missing": setIRQs(boolFire, 2, 0, 3, 1, 1), "unmask event of MSI": setIRQs(unmaskFD, 1, 0, 1), "mask event": setIRQs(0x0c, 0, 0, 1),
		} {
			t.Run(name, func(t *testing.T) { p.wantErr(unix.EINVAL, 8, body, mustFD(t, ev)) })
		}
		p.ok(4, le(16, 0, 0, 0))
		if n := leaktest.Descriptors(t); n != before {
			t.Errorf("%d descriptors, %d before", n, before)
		}
	}},
	{"G_INTx_level", func(t *testing.T) {
		f := serve(t)
		p, c := f.connect()
		ev := event(t)
		if err := c.SetINTx(true); !errors.Is(err, ErrNotArmed) {
			t.Error(err)
		}
		p.ok(8, setIRQs(arm, 0, 0, 1), mustFD(t, ev)) // asserted already: fires now
		wantSignals(t, ev, 1)
		for range 3 { // masked until the end of interrupt
			if err := c.SetINTx(true); err != nil {
				t.Error(err)
			}
			wantSignals(t, ev, 0)
			p.ok(8, setIRQs(unmask, 0, 0, 1))
			wantSignals(t, ev, 1)
		}
		if err := c.SetINTx(false); err != nil {
			t.Error(err)
		}
		p.ok(8, setIRQs(unmask, 0, 0, 1))
		wantSignals(t, ev, 0)
		p.ok(8, setIRQs(mask, 0, 0, 1))
		_ = c.SetINTx(true)
		wantSignals(t, ev, 0)
		p.ok(8, setIRQs(disable, 0, 0, 0))
		p.ok(8, setIRQs(unmask, 0, 0, 1))
		wantSignals(t, ev, 0)
	}},
	{"G_INTx_unmask_event_of_KVM", func(t *testing.T) {
		p, c := serve(t).connect()
		ev, resample := event(t), event(t)
		p.ok(8, setIRQs(arm, 0, 0, 1), mustFD(t, ev))
		p.ok(8, setIRQs(unmaskFD, 0, 0, 1), mustFD(t, resample))
		_ = c.SetINTx(true)
		for range 5 {
			_ = ev.SetReadDeadline(time.Now().Add(patience))
			if n, err := WaitEvent(ev); n != 1 || err != nil {
				t.Fatal(n, err)
			}
			if _, err := resample.Write([]byte{1, 0, 0, 0, 0, 0, 0, 0}); err != nil {
				t.Fatal(err)
			}
		}
		p.ok(8, setIRQs(disable, 0, 0, 0))
	}},
	{"G_masks_booleans_and_loopback", func(t *testing.T) {
		p, c := serve(t).connect()
		x, y := event(t), event(t)
		p.ok(8, setIRQs(arm, 1, 0, 2), mustFD(t, x), mustFD(t, y))
		p.ok(8, setIRQs(boolMask, 1, 0, 2, 1, 0))
		fire(t, c, IRQMSI, 0, nil)
		fire(t, c, IRQMSI, 1, nil)
		wantSignals(t, x, 0)
		wantSignals(t, y, 1)
		p.ok(8, setIRQs(unmask, 1, 0, 32)) // the pending one fires
		wantSignals(t, x, 1)
		p.ok(8, setIRQs(boolFire, 1, 0, 2, 0, 1))
		p.ok(8, setIRQs(disable, 1, 0, 2)) // NONE|TRIGGER with a count: fire them
		wantSignals(t, x, 1)
		wantSignals(t, y, 2)
	}},
	{"G_ERR_and_REQ", func(t *testing.T) {
		p, c := serve(t).connect()
		for _, index := range []uint32{IRQErr, IRQReq} {
			ev := event(t)
			p.ok(8, setIRQs(arm, int(index), 0, 1), mustFD(t, ev))
			fire(t, c, index, 0, nil)
			wantSignals(t, ev, 1)
			p.ok(8, setIRQs(arm, int(index), 0, 1)) // unplug: EVENTFD without descriptor
			fire(t, c, index, 0, ErrNotArmed)
		}
	}},
	{"G_MSI_where_memory_is_mapped", func(t *testing.T) {
		p, c := serve(t).connect()
		mem, b := memfd(t, 4096)
		p.ok(2, dmaMap(3, 0, 0x1000, 4096), mustFD(t, mem))
		done := make(chan error, 1)
		if err := c.SignalMSI(0x1ffc, 0x01020304, into(done)); err != nil || waitErr(t, done) != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(b[4092:], []byte{4, 3, 2, 1}) {
			t.Errorf("% x", b[4092:])
		}
	}},
	{"G_event_at_its_maximum_does_not_block", func(t *testing.T) {
		p, c := serve(t).connect()
		raw, err := unix.Eventfd(0, unix.EFD_CLOEXEC) // blocking
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(raw)
		if _, err := unix.Write(raw, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}); err != nil {
			t.Fatal(err)
		}
		p.ok(8, setIRQs(arm, 2, 0, 1), raw)
		fire(t, c, IRQMSIX, 0, nil)
	}},
}

// short is a deadline that a test can wait for.
const short = 20 * time.Millisecond

var timeTests = []conformance{
	{"H_all_ones_at_the_deadline", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.Deadline = short })
		hold := f.dev.holding(0)
		p, _ := f.connect()
		for range 3 { // silent, back, silent, ...
			r := p.ok(9, access(0, 8, 4))
			if !bytes.Equal(r.body, access(0, 8, 4, 0xff, 0xff, 0xff, 0xff)) {
				t.Errorf("% x", r.body)
			}
			a := <-hold
			copy(a.Data, "late")
			a.Reply()
			p.ok(9, access(2, 0, 4)) // the next message is this answer, not the late one
		}
		if r := p.ok(10, access(0, 0, 1, 1)); len(r.body) != 16 {
			t.Errorf("write at the deadline: % x", r.body)
		}
		(<-hold).Fail(errors.New("late"))
		if st := f.Stats(); st.Expired != 4 || st.Late != 4 {
			t.Errorf("%d expired and %d late, want 4 and 4", st.Expired, st.Late)
		}
	}},
	{"H_error_at_the_deadline_where_wanted", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.Deadline, c.ErrorReplies = short, true })
		f.dev.holding(0)
		p, _ := f.connect()
		p.wantErr(unix.ETIMEDOUT, 9, access(0, 8, 4))
	}},
	{"H_each_access_has_its_own_deadline", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.Deadline = short })
		hold := f.dev.holding(0)
		p, _ := f.connect()
		for i := range 100 {
			p.send(p.message(9, 0, access(0, uint64(i), 4)))
		}
		for range 50 {
			(<-hold).Reply()
		}
		seen := map[uint16]bool{}
		for range 100 {
			r := p.recv()
			if seen[r.id] || len(r.body) != 20 {
				t.Fatalf("%+v", r)
			}
			seen[r.id] = true
		}
		for range 50 {
			(<-hold).Reply()
		}
		p.ok(4, le(16, 0, 0, 0))
	}},
	{"H_queued_messages_go_at_the_deadline", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.Deadline = short })
		hold := f.dev.holding(0)
		p, c := f.connect()
		p.send(p.message(9, 0, access(0, 0, 4)))
		a := <-hold
		if err := c.SignalMSI(0xfee00000, 1, nil); err != nil {
			t.Fatal(err)
		}
		if r := p.recv(); r.cmd != 9 {
			t.Errorf("%+v before the answer", r)
		}
		if r := p.recv(); r.cmd != 12 {
			t.Errorf("%+v", r)
		}
		a.Reply()
	}},
	{"H_silence_for_ever_does_not_stop_the_reader", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.Deadline, c.MaxOpen = short/10, 2 })
		hold := f.dev.holding(0)
		p, _ := f.connect()
		for range 10 {
			p.ok(9, access(0, 0, 4))
		}
		_ = p.Close()
		<-f.dev.disconnected
		for range 10 { // long after
			(<-hold).Reply()
		}
	}},
	{"H_VMM_that_does_not_read", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.Deadline = 5 * short })
		p, _ := f.connect()
		go func() {
			for range 100 { // replies of 100 KiB, which the VMM does not read
				if _, err := p.Write((&rawPeer{}).message(9, 0, access(2, 0, 100<<10))); err != nil {
					return
				}
			}
		}()
		if err := <-f.dev.disconnected; !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
	}},
	{"I_plug_and_unplug_100_times", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.HideMSIXAtRealize = true })
		mem, _ := memfd(t, 1<<20)
		ev := event(t)
		before := leaktest.Descriptors(t)
		for range 100 {
			p, c := f.connect()
			p.ok(2, dmaMap(3, 0, 0, 1<<20), mustFD(t, mem))
			p.ok(9, access(7, 0, 4096))
			p.ok(8, setIRQs(arm, 0, 0, 1), mustFD(t, ev))
			for i := range 100 { // unplug while these are queued
				p.send(p.message(10, 0x10, access(0, uint64(i), 1, 1)))
			}
			p.ok(8, setIRQs(disable, 0, 0, 0))
			p.ok(3, dmaUnmap(0, 1<<20))
			_ = p.Close()
			<-c.Done()
		}
		if n := leaktest.Descriptors(t); n != before {
			t.Errorf("%d descriptors, %d before", n, before)
		}
		if st := f.Stats(); st.Connections != 100 || st.Posted != 10000 {
			t.Errorf("%+v", st)
		}
	}},
	{"I_access_open_when_the_VMM_goes", func(t *testing.T) {
		f := serve(t)
		hold := f.dev.holding(0)
		p, _ := f.connect()
		p.send(p.message(9, 0, access(0, 0, 4)))
		a := <-hold
		_ = p.Close()
		<-f.dev.disconnected
		q, _ := f.connect()
		copy(a.Data, "late")
		a.Reply() // its connection has ended
		q.ok(4, le(16, 0, 0, 0))
	}},
	{"I_server_closed_under_the_VMM", func(t *testing.T) {
		f := serve(t)
		hold := f.dev.holding(0)
		p, c := f.connect()
		p.send(p.message(9, 0, access(0, 0, 4)))
		a := <-hold
		_ = c.Close()
		if _, err := p.tryRecv(); err == nil {
			t.Error("an answer after Close")
		}
		if err := <-f.dev.disconnected; !errors.Is(err, ErrClosed) {
			t.Error(err)
		}
		a.Reply()
	}},
	{"J_reset_reply_is_a_header", func(t *testing.T) {
		f := serve(t)
		p, _ := f.connect()
		if r := p.ok(13, nil); len(r.body) != 0 {
			t.Errorf("% x", r.body)
		}
		f.dev.set(func(d *testDevice) {
			if d.resets != 1 {
				t.Errorf("%d resets", d.resets)
			}
		})
	}},
	{"J_system_reset_sequence", func(t *testing.T) {
		p, _ := serve(t).connect()
		ev := event(t)
		for range 3 {
			p.ok(8, setIRQs(disable, 0, 0, 0))
			p.ok(9, access(7, 4, 2))
			p.ok(10, access(7, 4, 2, 0, 0))
			p.ok(13, nil)
			p.ok(9, access(7, 0x3d, 1))
			p.ok(8, setIRQs(arm, 0, 0, 1), mustFD(t, ev))
			for bar := uint64(0x10); bar < 0x28; bar += 4 {
				p.ok(10, access(7, bar, 4, 0, 0, 0, 0))
			}
		}
	}},
	{"J_reset_later_fails_or_expires", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.Deadline = short })
		dones := make(chan func(error), 1)
		f.dev.set(func(d *testDevice) { d.onReset = func(done func(error)) { dones <- done } })
		p, c := f.connect()
		p.send(p.message(13, 0, nil))
		done := <-dones
		if err := c.SignalMSI(0xfee00000, 1, nil); err != nil { // waits: QEMU waits for the reset
			t.Fatal(err)
		}
		done(unix.EBUSY)
		if r := p.recv(); r.cmd != 13 || r.errno != unix.EBUSY {
			t.Errorf("%+v", r)
		}
		if r := p.recv(); r.cmd != 12 {
			t.Errorf("%+v", r)
		}
		p.wantErr(unix.ETIMEDOUT, 13, nil)
		(<-dones)(nil)
		p.ok(4, le(16, 0, 0, 0))
	}},
	{"J_reset_not_offered", func(t *testing.T) {
		p, _ := serve(t, func(c *Config) { c.Resettable = false }).connect()
		p.wantErr(unix.ENOSYS, 13, nil)
		if r := p.ok(4, le(16, 0, 0, 0)); r.body[4] != 2 {
			t.Errorf("flags %d", r.body[4])
		}
	}},
}

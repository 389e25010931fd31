package driver

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"
)

// SelfTestOptions changes what SelfTest does. The zero value runs everything.
type SelfTestOptions struct {
	// Quick takes smaller sizes and fewer rounds: for slow machines.
	Quick bool
	// Rounds of the ordering check; 0: 2000, or 200 when quick.
	Rounds int
	// Seed of the test data.
	Seed uint64
}

// Report is the outcome of SelfTest.
type Report struct {
	OK         bool          `json:"ok"`
	Device     Info          `json:"device"`
	Duration   time.Duration `json:"duration_ns"`
	Checks     []Check       `json:"checks"`
	Interrupts uint64        `json:"interrupts"`        // that arrived
	Missed     uint64        `json:"missed_interrupts"` // fences found written without one
	Stale      int           `json:"stale"`             // of the ordering check
}

// Check is one item of a Report.
type Check struct {
	Name     string        `json:"name"`
	OK       bool          `json:"ok"`
	Error    string        `json:"error,omitempty"`
	Duration time.Duration `json:"duration_ns"`
	Detail   string        `json:"detail,omitempty"`
	// Value is a measured figure, in Unit, where the check has one.
	Value float64 `json:"value,omitempty"`
	Unit  string  `json:"unit,omitempty"`
}

// String is one line for people.
func (c Check) String() string {
	verdict := "ok  "
	if !c.OK {
		verdict = "FAIL"
	}
	line := fmt.Sprintf("%s  %-28s %8s", verdict, c.Name, c.Duration.Round(time.Microsecond*10))
	if c.Unit != "" {
		line += fmt.Sprintf("  %.4g %s", c.Value, c.Unit)
	}
	if c.Detail != "" {
		line += "  " + c.Detail
	}
	if c.Error != "" {
		line += "  " + c.Error
	}
	return line
}

// tester is one run of SelfTest.
type tester struct {
	dev     *Device
	stream  *Stream
	opts    SelfTestOptions
	rng     *rand.Rand
	scratch Ptr // device memory for the checks
	size    int // bytes of it
	stale   int
}

// SelfTest drives everything that the device can do and checks every result:
// copies of many sizes and alignments, kernels against results computed by the
// CPU, interrupts, ordering, errors; and it measures latency and bandwidth. A
// line for each check goes to w as it ends. The error says that the test could
// not go on, as with ErrDeviceLost; checks that failed are in the report only.
func (d *Device) SelfTest(ctx context.Context, w io.Writer, opts SelfTestOptions) (report *Report, err error) {
	if opts.Rounds == 0 {
		opts.Rounds = 2000
		if opts.Quick {
			opts.Rounds = 200
		}
	}
	began := d.bus.Now()
	report = &Report{Device: d.info}
	t := &tester{dev: d, opts: opts, rng: rand.New(rand.NewPCG(opts.Seed, 1))}
	if err := t.setUp(); err != nil {
		return report, fmt.Errorf("driver: self-test: %w", err)
	}
	defer func() { err = errors.Join(err, t.tearDown()) }()
	report.OK = true
	for _, item := range t.items() {
		c := Check{Name: item.name, OK: true}
		at := d.bus.Now()
		checkErr := item.run(ctx, &c)
		c.Duration = d.bus.Now() - at
		if checkErr != nil {
			c.OK, c.Error = false, checkErr.Error()
			report.OK = false
		}
		report.Checks = append(report.Checks, c)
		if _, err := fmt.Fprintln(w, c); err != nil {
			return report, err
		}
		if checkErr == nil {
			continue
		}
		if err := t.recover(ctx, checkErr); err != nil {
			return report, fmt.Errorf("driver: self-test: %s: %w", item.name, err)
		}
	}
	report.Interrupts, report.Missed = d.Interrupts()
	report.Stale = t.stale
	report.Duration = d.bus.Now() - began
	return report, nil
}

// recover makes the stream usable for the next check, or says that there is no
// use in going on.
func (t *tester) recover(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, ErrDeviceLost), errors.Is(err, ErrClosed):
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return t.stream.Reset()
}

func (t *tester) setUp() error {
	var err error
	if t.stream, err = t.dev.NewStream(); err != nil {
		return err
	}
	t.size = 32 << 20
	if t.opts.Quick {
		t.size = 8 << 20
	}
	t.size = int(min(uint64(t.size), t.dev.info.VRAMSize/2))
	t.scratch, err = t.dev.Malloc(uint64(t.size))
	return err
}

func (t *tester) tearDown() error {
	return errors.Join(t.stream.Close(), t.dev.Free(t.scratch))
}

// item is a check by name.
type item struct {
	name string
	run  func(ctx context.Context, c *Check) error
}

func (t *tester) items() []item {
	items := []item{
		{"registers", t.registers},
		{"copy by DMA", t.copies},
		{"copy through the aperture", t.aperture},
		{"copy inside the device", t.inside},
		{"fill", t.fill},
		{"semaphores", t.semaphores},
		{"streams at one time", t.concurrent},
		{"interrupts", t.interrupts},
		{"DMA before register read", t.ordering},
		{"refused command", t.refusedCommand},
		{"refused DMA", t.refusedDMA},
	}
	items = append(items, t.kernels()...)
	return append(items, t.measurements()...)
}

// data returns n random bytes.
func (t *tester) data(n int) []byte {
	b := make([]byte, 0, n+8)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, t.rng.Uint64())
	}
	return b[:n]
}

// expect compares device memory with want.
func (t *tester) expect(ctx context.Context, what string, at Ptr, want []byte) error {
	got := make([]byte, len(want))
	if err := t.stream.Download(ctx, got, at); err != nil {
		return err
	}
	return differs(what, got, want)
}

// differs returns an error with the first byte in which two slices differ.
func differs(what string, got, want []byte) error {
	if bytes.Equal(got, want) {
		return nil
	}
	for i := range want {
		if got[i] != want[i] {
			return fmt.Errorf("%s: byte %d of %d is %#02x, want %#02x", what, i, len(want), got[i], want[i])
		}
	}
	return nil
}

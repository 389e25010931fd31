// Package vhostuser is a virtio device whose back end is a vhost-user server in another
// process: qemu-storage-daemon, virtiofsd, passt, vhost-device-vsock and others. The package is the front end,
// with virtqueues of its own in shared memory; package virtio is the device that the guest
// sees, and copies the requests between both.
package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/device/virtio"
	"github.com/dxpu-project/dxpu/internal/rawio/rights"
	"github.com/dxpu-project/dxpu/tlp"
)

// Pauses before attempts to connect.
const (
	firstPause   = 50 * time.Millisecond
	longestPause = 2 * time.Second
	// firstAttempt bounds the first attempt to connect, for which the start of the box
	// waits. A slower back end is found by Run.
	firstAttempt = 2 * time.Second
)

// Device is a virtio device with its back end. It lives as long as its slot.
type Device struct {
	spec    settings
	log     *slog.Logger
	first   *backend                // of New; nil: the back end did not answer
	changed chan struct{}           // holds one: the session of the machine has changed
	present atomic.Pointer[backend] // nil: not connected
	trash   rights.Disposer         // of all back ends

	mu      sync.Mutex // guards the fields below
	machine *virtio.Device
	notify  func()
	memory  uint64    // bytes, see device.Info
	lost    time.Time // when the back end was lost; zero: it is there
	why     string    // why there is no back end
	planned bool      // the device has ended the connection
	failure string    // that Check has not reported yet
}

var (
	_ device.Device     = (*Device)(nil)
	_ device.Describer  = (*Device)(nil)
	_ device.Checker    = (*Device)(nil)
	_ device.TagCounter = (*Device)(nil)
	_ device.Notifier   = (*Device)(nil)
	_ device.Runner     = (*Device)(nil)
	_ device.Limited    = (*Device)(nil)
	_ device.Patient    = (*Device)(nil)
	_ device.Scrubber   = (*Device)(nil)
)

// Model makes virtio devices with the parameters of Spec.
func Model(log *slog.Logger) device.Model {
	return device.NewModel("virtio", "virtio device of a vhost-user back end in another process", "socket",
		func(ctx context.Context, at device.Place, spec Spec) (device.Device, error) {
			if spec.Serial == 0 {
				spec.Serial = at.Serial()
			}
			return New(ctx, spec, log.With("slot", at.Slot))
		})
}

// New makes a device and connects once to its back end, for two seconds at most. Run must be
// called: it connects later if that fails, and it ends the connection.
func New(ctx context.Context, spec Spec, log *slog.Logger) (*Device, error) {
	set, err := spec.complete()
	if err != nil {
		return nil, fmt.Errorf("virtio: %w", err)
	}
	m, err := virtio.New(virtio.Spec{Kind: set.kind, Serial: set.Serial, Queues: set.Queues, Pool: set.Pool})
	if err != nil {
		return nil, err
	}
	d := &Device{
		spec: set, log: log.With("socket", set.Socket), machine: m, notify: func() {}, changed: make(chan struct{}, 1),
	}
	first, cancel := context.WithTimeoutCause(ctx, firstAttempt, errSlowStart)
	defer cancel()
	d.first = d.connect(first)
	return d, nil
}

// errSlowStart is why the first attempt has ended.
var errSlowStart = fmt.Errorf("no connection within %v: the box tries again", firstAttempt)

// connect makes a connection and offers the features of its back end. It returns nil and
// notes the reason if it cannot.
func (d *Device) connect(ctx context.Context) *backend {
	b, err := connect(ctx, &d.spec, &d.trash)
	if err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		why := fmt.Sprintf("back end %s: %v", d.spec.Socket, err)
		if why != d.why {
			d.log.Warn("no back end", "err", err)
		}
		d.why = why
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	level := slog.LevelInfo
	if d.planned {
		level = slog.LevelDebug // each reset by the guest ends in one
	}
	d.log.Log(ctx, level, "back end connected", "model", d.spec.Model)
	d.machine.Offer(d.spec.offered(b.features), b.config)
	d.memory = d.spec.memorySize(b.config)
	d.lost, d.why, d.planned = time.Time{}, "", false
	d.present.Store(b)
	return b
}

// Run implements device.Runner: it serves a back end, and connects again, with growing
// pauses, after the connection has ended.
func (d *Device) Run(ctx context.Context) {
	for b := d.first; ; b = nil {
		if b == nil {
			if b = d.reconnect(ctx); b == nil {
				return
			}
		}
		err := d.serve(ctx, b)
		d.lose(err)
		if err := b.close(); err != nil {
			d.log.Warn("close the connection to the back end", "err", err)
		}
	}
}

// reconnect tries until the back end answers. It returns nil when ctx ends.
func (d *Device) reconnect(ctx context.Context) *backend {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = firstPause, longestPause
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause.NextBackOff()):
		}
		if b := d.connect(ctx); b != nil {
			return b
		}
	}
}

// serve starts and stops the virtqueues as the driver of the guest does, until the
// connection has failed or ctx ends.
func (d *Device) serve(ctx context.Context, b *backend) error {
	b.wg.Go(func() { b.watch(d.notifyOwner, d.log) })
	for {
		if err := d.follow(b); err != nil {
			b.client.fail(err)
			return b.client.err // the cause, if the connection has failed before
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-b.client.done:
			return b.client.err
		case <-d.changed:
		}
	}
}

// follow brings the back end to the session of the machine. That of a socket device would
// keep the connections of the driver before, so the next one gets a new back end.
func (d *Device) follow(b *backend) error {
	d.mu.Lock()
	s := d.machine.Session()
	d.mu.Unlock()
	if s.Number == b.applied {
		if !s.Running {
			return nil
		}
		return b.startQueues(s.Queues &^ b.queues) // that the driver has enabled since
	}
	b.applied = s.Number
	if d.spec.kind == virtio.Socket && b.used.Load() {
		return errRestarted
	}
	if err := b.stop(); err != nil || !s.Running {
		return err
	}
	if err := b.start(s, d.spec.kind); err != nil {
		return err
	}
	d.mu.Lock()
	if d.machine.Session().Number == s.Number {
		d.machine.SetBackend(b)
	}
	d.mu.Unlock()
	d.notifyOwner()
	return nil
}

// lose takes the back end from the machine after its connection has ended. A driver whose
// back end had state of it finds a device that needs a reset, or learns that its connections
// have ended.
func (d *Device) lose(err error) {
	planned := errors.Is(err, errScrubbed) || errors.Is(err, errRestarted)
	if planned || errors.Is(err, context.Canceled) {
		d.log.Debug("back end disconnected", "reason", err)
	} else {
		d.log.Warn("back end lost", "err", err)
	}
	d.mu.Lock()
	d.present.Store(nil) // with lost: a Check in between would find a back end that was never there
	d.lost, d.why, d.planned = time.Now(), fmt.Sprintf("back end %s: %v", d.spec.Socket, err), planned
	if d.machine.Session().Running {
		d.machine.SetBackend(nil)
		switch {
		case planned: // the next driver has not reached this back end
		case d.spec.kind.Repeatable:
			d.machine.ResetTransport()
		default:
			d.failure = d.why
			d.machine.Break(d.why)
		}
	}
	d.mu.Unlock()
	d.notifyOwner()
}

// notifyOwner asks the owner to call Transmit.
func (d *Device) notifyOwner() {
	d.mu.Lock()
	notify := d.notify
	d.mu.Unlock()
	notify()
}

// SetNotify implements device.Notifier.
func (d *Device) SetNotify(notify func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notify = notify
}

// Why the device ends a connection.
var (
	errScrubbed  = errors.New("disconnected after the last lease, and not back yet")
	errRestarted = errors.New("disconnected after a reset of the device, and not back yet")
)

// Scrub implements device.Scrubber. It ends the connection of a back end that has state of
// the last driver: the next one starts with a new connection. The memory of the requests is
// erased in any case.
func (d *Device) Scrub() {
	if b := d.present.Load(); b != nil && d.spec.kind.Stateful && b.used.Load() {
		b.client.fail(errScrubbed)
	}
}

// Check implements device.Checker: the back end is connected, or has been gone for less than
// the grace of a device whose requests can wait for it.
func (d *Device) Check() (ok bool, detail string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.failure != "" {
		detail = d.failure
		if d.present.Load() != nil {
			d.failure = ""
		}
		return false, detail
	}
	if d.present.Load() != nil {
		return true, ""
	}
	waits := d.planned || d.spec.kind.Repeatable && d.machine.Session().Running
	if waits && !d.lost.IsZero() && time.Since(d.lost) < d.spec.Grace {
		return true, ""
	}
	return false, d.why
}

// Info implements device.Describer.
func (d *Device) Info() device.Info {
	d.mu.Lock()
	defer d.mu.Unlock()
	i := d.machine.Info()
	i.Model, i.Serial, i.Memory = d.spec.Model, fmt.Sprintf("%016x", d.spec.Serial), d.memory
	return i
}

// TagsInUse implements device.TagCounter.
func (d *Device) TagsInUse() (n, limit int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.machine.TagsInUse()
}

// SetLimits implements device.Limited.
func (d *Device) SetLimits(l device.Limits) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.machine.SetLimits(l)
}

// SetSlack implements device.Patient.
func (d *Device) SetSlack(slack func(deadline, timeout time.Duration) time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.machine.SetSlack(slack)
}

// do calls f with the machine and tells serve when the session has changed.
func (d *Device) do(f func(m *virtio.Device)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	before := d.machine.Session()
	f(d.machine)
	if d.machine.Session() != before {
		select {
		case d.changed <- struct{}{}:
		default:
		}
	}
}

// Receive implements device.Device.
func (d *Device) Receive(now time.Duration, p *tlp.Packet) (taken bool) {
	d.do(func(m *virtio.Device) { taken = m.Receive(now, p) })
	return taken
}

// Transmit implements device.Device.
func (d *Device) Transmit(now time.Duration, emit func(p *tlp.Packet) bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.machine.Transmit(now, emit)
}

// Wake implements device.Device.
func (d *Device) Wake() time.Duration {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.machine.Wake()
}

// NextJob implements device.Device: the back end does the work.
func (d *Device) NextJob() (device.Job, bool) { return nil, false }

// FinishJob implements device.Device.
func (d *Device) FinishJob(time.Duration, device.Job) {}

// Reset implements device.Device. It does not wait: the back end stops its virtqueues
// before it gets the requests of the next session.
func (d *Device) Reset(now time.Duration, kind device.ResetKind) {
	d.do(func(m *virtio.Device) { m.Reset(now, kind) })
}

// Package vfioserver is the device that a vfio-user server in another process
// serves: one of libvfio-user, of rust-vmm, or of package vfiouser. The package
// is the client of that server; it has another name than vfiouser, which is the
// protocol, because programs import both.
//
// The server must reach memory by messages, because the memory is on another
// machine. A server that refuses a mapping without a file descriptor is refused,
// and so is QEMU's x-vfio-user-server (7.2 to 11), which accepts one and ignores
// it. The expansion ROM and I/O BARs are not served. Between tenants, memory
// inside the device is erased only as far as its reset does.
package vfioserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/dxpu-project/dxpu/device"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/machine"
	"github.com/dxpu-project/dxpu/tlp"
	"github.com/dxpu-project/dxpu/vfiouser"
)

// Spec names a device server.
type Spec struct {
	Socket string `yaml:"socket"` // path of the server's UNIX socket
	// MessageDMA says that the server is known to do its DMA by messages, and
	// skips the test for QEMU's server, which answers accesses to BARs only while
	// memory decode is on.
	MessageDMA bool `yaml:"message_dma,omitempty"`
}

// Pauses before attempts to connect: a server that restarts is back within
// seconds, and a missing one costs next to nothing.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
	// firstAttempt bounds the first attempt to connect, for which the start of the
	// box waits. A slower server is found by Run.
	firstAttempt = 2 * time.Second
)

// Device is the device of a server. It lives as long as its slot: when the
// server goes away the device is unhealthy, and Run connects again.
type Device struct {
	spec  Spec
	log   *slog.Logger
	first *connection // of New; nil: the server did not answer
	trash vfiouser.Disposer

	next    atomic.Pointer[connection] // made by Run, for Check to take
	refusal atomic.Pointer[string]     // why the latest attempt to connect failed

	polled atomic.Pointer[connection] // conn, for Poll

	mu     sync.Mutex // guards notify
	notify func()

	// Owned by the caller of the methods of device.Device.
	conn  *connection // nil: the server has never answered
	told  bool        // Check has reported that conn does not work
	slack func(transaction.Overdue) time.Duration
}

var (
	_ device.Device     = (*Device)(nil)
	_ device.Describer  = (*Device)(nil)
	_ device.Checker    = (*Device)(nil)
	_ device.TagCounter = (*Device)(nil)
	_ device.Notifier   = (*Device)(nil)
	_ device.Runner     = (*Device)(nil)
	_ device.Patient    = (*Device)(nil)
)

// Model makes devices of vfio-user servers with the parameters of Spec.
func Model(log *slog.Logger) device.Model {
	return device.NewModel("vfio_user", "device of a vfio-user server in another process", "socket",
		func(ctx context.Context, at device.Place, spec Spec) (device.Device, error) {
			if spec.Socket == "" {
				return nil, errors.New("vfio_user: the socket of the server is missing")
			}
			return New(ctx, spec, log.With("slot", at.Slot)), nil
		})
}

// New makes the device of a server and connects once, for two seconds at most. A
// server that does not answer, or that is refused, leaves the device unhealthy until Run finds it.
// Run must be called: it also ends the connection.
func New(ctx context.Context, spec Spec, log *slog.Logger) *Device {
	d := &Device{spec: spec, log: log.With("socket", spec.Socket), notify: func() {}}
	first, cancel := context.WithTimeoutCause(ctx, firstAttempt, errSlowStart)
	defer cancel()
	if c, err := d.connect(first); err == nil {
		d.first = c
		d.use(c)
	}
	return d
}

// errSlowStart is why the first attempt has ended.
var errSlowStart = fmt.Errorf("no connection within %v: the box tries again", firstAttempt)

// connect connects to the server and notes why that failed.
func (d *Device) connect(ctx context.Context) (*connection, error) {
	c, err := connect(ctx, d.spec, &d.trash, d.notifyOwner, d.log)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		why := fmt.Sprintf("device server %s: %v", d.spec.Socket, err)
		if old := d.refusal.Swap(&why); old == nil || *old != why {
			d.log.Warn("device server refused", "err", err)
		}
		return nil, err
	}
	d.refusal.Store(nil)
	d.log.Info("device server connected", "model", c.about.info.Model)
	return c, nil
}

// Run implements device.Runner: it notifies the owner of the server's messages
// and connects again, with growing pauses, after the connection has ended.
func (d *Device) Run(ctx context.Context) {
	for c := d.first; ; c = nil {
		if c == nil {
			if c = d.reconnect(ctx); c == nil {
				return
			}
			d.next.Store(c)
		}
		d.watch(ctx, c)
		if err := c.close(); err != nil {
			d.log.Warn("close the connection to the device server", "err", err)
		}
	}
}

// reconnect tries until the server answers. It returns nil when ctx ends.
func (d *Device) reconnect(ctx context.Context) *connection {
	pause := backoff.NewExponentialBackOff()
	pause.InitialInterval, pause.MaxInterval = firstPause, longestPause
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pause.NextBackOff()):
		}
		if c, err := d.connect(ctx); err == nil {
			return c
		}
	}
}

// watch notifies the owner of the messages in the inbox, outside the goroutines
// that read the server's sockets, until the connection has failed or ctx ends.
func (d *Device) watch(ctx context.Context, c *connection) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.failed:
			d.log.Warn("device server lost", "err", *c.failure.Load())
			return
		case <-c.client.Done():
			c.fail(fmt.Sprintf("the device server is gone: %v", c.client.Err()))
		case <-c.signal:
		}
		d.notifyOwner()
	}
}

// notifyOwner asks the owner to call Transmit.
func (d *Device) notifyOwner() {
	d.mu.Lock()
	notify := d.notify
	d.mu.Unlock()
	notify()
}

// use makes a connection that of the device.
func (d *Device) use(c *connection) {
	d.conn = c
	d.polled.Store(c)
}

// SetNotify implements device.Notifier.
func (d *Device) SetNotify(notify func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.notify = notify
}

// Check implements device.Checker. The state of the device is lost with its
// connection, so a new connection counts only after a Check has reported the
// failure of the old one.
func (d *Device) Check() (ok bool, detail string) {
	if d.told {
		if c := d.next.Swap(nil); c != nil {
			d.told = false
			d.use(c)
		}
	}
	var why []string
	if d.conn != nil {
		failure := d.conn.failure.Load()
		if failure == nil {
			return true, ""
		}
		why = append(why, *failure)
	}
	d.told = true
	if refusal := d.refusal.Load(); refusal != nil {
		why = append(why, *refusal)
	}
	return false, strings.Join(why, "; ")
}

// Info implements device.Describer.
func (d *Device) Info() device.Info {
	if d.conn == nil {
		return device.Info{Model: "vfio-user device"}
	}
	return d.conn.about.info
}

// TagsInUse implements device.TagCounter.
func (d *Device) TagsInUse() (n, limit int) {
	if d.conn == nil {
		return 0, 0
	}
	return d.conn.dma.tagsInUse()
}

// Receive implements device.Device. It refuses requests while too many wait for
// the server. Without a server it takes all and answers none.
func (d *Device) Receive(now time.Duration, p *tlp.Packet) bool {
	if d.conn == nil {
		return true
	}
	if !p.Type.Completion() && d.conn.full(now) {
		return false
	}
	d.conn.receive(now, p)
	return true
}

// Transmit implements device.Device.
func (d *Device) Transmit(now time.Duration, emit func(p *tlp.Packet) bool) {
	if d.conn != nil {
		d.conn.transmit(now, d.slack, emit)
	}
}

// SetSlack implements device.Patient.
func (d *Device) SetSlack(slack func(deadline, timeout time.Duration) time.Duration) {
	d.slack = transaction.SlackOf(slack)
}

// Wake implements device.Device.
func (d *Device) Wake() time.Duration {
	if d.conn == nil {
		return machine.Never
	}
	return min(d.conn.dma.requester.Wake(), d.conn.stall.wake())
}

// NextJob implements device.Device: the server does the work.
func (d *Device) NextJob() (device.Job, bool) { return nil, false }

// FinishJob implements device.Device.
func (d *Device) FinishJob(time.Duration, device.Job) {}

// Reset implements device.Device. It does not wait: the server gets later
// requests behind the reset.
func (d *Device) Reset(now time.Duration, kind device.ResetKind) {
	if d.conn != nil {
		d.conn.reset(now, kind)
	}
}

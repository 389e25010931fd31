package boxproxy

import (
	"slices"
	"time"

	"github.com/dxpu-project/dxpu/device"
)

// abilities are the optional abilities of a slot's device. A field is nil where
// the device lacks the ability.
type abilities struct {
	describer device.Describer
	checker   device.Checker
	errors    device.ErrorCounter
	scrubber  device.Scrubber
	tags      device.TagCounter
	runner    device.Runner

	migratable device.Migratable
}

// newAbilities finds the abilities of a device, gives it the limits of the network
// for its TLPs and the slack of its requests, and asks it to call notify.
func newAbilities(d device.Device, notify func(), slack func(deadline, timeout time.Duration) time.Duration) (a abilities) {
	a.describer, _ = d.(device.Describer)
	a.checker, _ = d.(device.Checker)
	a.errors, _ = d.(device.ErrorCounter)
	a.scrubber, _ = d.(device.Scrubber)
	a.tags, _ = d.(device.TagCounter)
	a.runner, _ = d.(device.Runner)
	a.migratable, _ = d.(device.Migratable)
	if l, ok := d.(device.Limited); ok {
		l.SetLimits(device.NetworkLimits())
	}
	if p, ok := d.(device.Patient); ok {
		p.SetSlack(slack)
	}
	if n, ok := d.(device.Notifier); ok {
		n.SetNotify(notify)
	}
	return a
}

// condition is the state of a device when the box last asked.
type condition struct {
	ok     bool
	detail string // why it is not ok
	info   device.Info
	errors []device.ErrorCount
	stuck  string // why the state of the device cannot move; empty: it can
}

func (c *condition) equal(o *condition) bool {
	return c.ok == o.ok && c.detail == o.detail && c.info == o.info && c.stuck == o.stuck && slices.Equal(c.errors, o.errors)
}

// condition asks the device for its state. A device that cannot tell is ok.
func (a *abilities) condition() *condition {
	c := &condition{ok: true}
	if a.checker != nil {
		c.ok, c.detail = a.checker.Check()
	}
	if a.describer != nil {
		c.info = a.describer.Info()
	}
	if a.errors != nil {
		c.errors = a.errors.Errors()
	}
	if a.migratable != nil {
		if err := a.migratable.Movable(); err != nil {
			c.stuck = err.Error()
		}
	}
	return c
}

// scrub erases the memory of the device.
func (a *abilities) scrub() {
	if a.scrubber != nil {
		a.scrubber.Scrub()
	}
}

package hostproxy_test

import (
	"testing"
)

// A proxy is killed at each step of an attach and a detach. The manager then makes
// another binding of the same slots, which must show exactly one working device.
func TestCrashAtEachStep(t *testing.T) {
	steps := []struct {
		name string
		to   func(*cluster, *fakeQEMU) *binding // brings a binding to the step
	}{
		{"waits for the link", func(r *cluster, _ *fakeQEMU) *binding {
			b := r.plan(0, 0, 0, 0)
			b.boxGone = true
			r.apply()
			r.until("the host is at it", func() bool { return r.atHost(b) != nil })
			return b
		}},
		{"the box is ready", func(r *cluster, _ *fakeQEMU) *binding {
			b := r.plan(0, 0, 0, 0)
			b.hostGone = true
			r.apply()
			r.until("the box is at it", func() bool { return r.atBox(b) != nil })
			return b
		}},
		{"plugs in", func(r *cluster, q *fakeQEMU) *binding {
			q.set(func() { q.stall = make(chan struct{}) })
			b := r.bind(0, 0, 0, 0)
			r.until("QEMU has been asked", func() bool {
				q.mu.Lock()
				defer q.mu.Unlock()
				return q.adds[firstDevice] == 1
			})
			return b
		}},
		{"attached", func(r *cluster, _ *fakeQEMU) *binding { return r.attach(0, 0, 0, 0) }},
		{"unplugs", func(r *cluster, q *fakeQEMU) *binding {
			b := r.attach(0, 0, 0, 0)
			q.answers(holdOn)
			b.hostGone = true
			r.apply()
			r.until("the guest is asked", func() bool { return r.atHost(b).GetState() == detaching })
			return b
		}},
	}
	crashes := []struct {
		who  string
		kill func(*cluster, *fakeQEMU)
	}{
		{"host", func(r *cluster, q *fakeQEMU) {
			old := r.hosts[0]
			q.without(func() {
				q.release()
				old.kill()
			})
			r.hosts[0] = r.newHost(0, old.addrs)
		}},
		{"box", func(r *cluster, q *fakeQEMU) {
			old := r.boxes[0]
			old.kill()
			q.release()
			r.boxes[0] = r.newBox(0, old.addrs)
		}},
	}
	for _, s := range steps {
		for _, c := range crashes {
			t.Run(s.name+", and the "+c.who+" dies", func(t *testing.T) {
				q := newFakeQEMU(t)
				r := newCluster(t, options{qmp: q.path})
				b := s.to(r, q)
				c.kill(r, q)
				q.answers(letGo)
				if there, alive := q.has(firstDevice); there && !alive {
					r.until("the device without a proxy is gone", func() bool { there, _ := q.has(firstDevice); return !there })
				}
				q.eject(firstDevice) // the guest releases the device in the end
				r.drop(b)
				next := r.attach(0, 0, 0, 0)
				if _, alive := q.has(firstDevice); !alive {
					t.Error("the guest has no device that answers")
				}
				if o := r.atBox(next); o.GetState() != attached {
					t.Errorf("the box says %v: %s", o.GetState(), o.GetDetail())
				}
				r.detach(next)
			})
		}
	}
}

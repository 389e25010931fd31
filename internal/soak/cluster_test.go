package soak

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/fault"
)

// A restart on an address in use is an error of the run. Later faults of that proxy
// have no effect.
func TestRestartWithoutAnAddress(t *testing.T) {
	for _, side := range []int{hostSide, nearBox, farBox} {
		c, err := newCluster(MinBindings, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		c.addrs[side][0] = c.addrs[(side+1)%sides][0]
		if err := c.restart(side); err == nil {
			t.Errorf("side %d was started on an address in use", side)
		}
		c.setFault(side, 0, fault.Plan{}, 1)
		c.jump(side, time.Second)
		c.observed(0, c.bind(0))
		c.unbind(0)
		c.close()
	}
}

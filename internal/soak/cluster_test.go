package soak

import (
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/fault"
)

// A proxy whose address somebody else has taken is an error of the run; what
// befalls it meanwhile befalls nobody.
func TestRestartWithoutAnAddress(t *testing.T) {
	for _, side := range []int{hostSide, boxSide} {
		r, err := newCluster(2, t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		r.addrs[side][0] = r.addrs[1-side][0]
		if err := r.restart(side); err == nil {
			t.Errorf("side %d was started on an address in use", side)
		}
		r.setFault(side, 0, fault.Plan{}, 1)
		r.jump(side, time.Second)
		r.observed(0, r.bind(0))
		r.unbind(0)
		r.close()
	}
}

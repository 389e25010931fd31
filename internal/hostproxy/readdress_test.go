package hostproxy_test

import (
	"testing"

	"github.com/dxpu-project/dxpu/internal/agent"
)

// A proxy that was restarted may listen at another address while its peer already sends
// to the old one. The peer follows the address that the manager tells it next.
func TestPeerMovesBeforeTheLinkIsUp(t *testing.T) {
	t.Run("host", func(t *testing.T) {
		r := newCluster(t, options{})
		r.hosts[0].kill()
		b := r.bind(0, 0, 0, 0)
		r.until("the box is ready", func() bool { return r.atBox(b).GetState() == ready })
		r.hosts[0] = r.newHost(0, nil)
		b.hostAddrs = agent.Addresses(r.hosts[0].fab)
		r.apply()
		r.await(b, attached)
		r.detach(b)
	})
	t.Run("box", func(t *testing.T) {
		r := newCluster(t, options{})
		r.boxes[0].kill()
		b := r.bind(0, 0, 0, 0)
		r.until("the host connects", func() bool { return r.atHost(b) != nil })
		r.boxes[0] = r.newBox(0, nil)
		b.boxAddrs = agent.Addresses(r.boxes[0].fab)
		r.apply()
		r.await(b, attached)
		r.detach(b)
	})
}

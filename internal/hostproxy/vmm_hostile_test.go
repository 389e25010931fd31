package hostproxy_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/dxpu-project/dxpu/vfiouser"
)

// A VMM that makes its event descriptors blocking and fills their counters keeps
// neither its slot nor the proxy: the slot is taken away, and the others go on.
func TestVMMCannotKeepItsSlot(t *testing.T) {
	r := newCluster(t, options{gpus: 2})
	b, other := r.attach(0, 0, 0, 0), r.attach(0, 1, 0, 1)
	c, err := vfiouser.Dial(t.Context(), r.hosts[0].vm.Socket(0), vfiouser.ClientConfig{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	check(t, c.SetIRQs(t.Context(), vfiouser.IRQSet{Flags: vfiouser.IRQDataEventFD | vfiouser.IRQActionTrigger, Index: vfiouser.IRQReq, Count: 1}, fd))
	check(t, unix.SetNonblock(fd, false))
	if _, err := unix.Write(fd, []byte{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}); err != nil { // the counter is full
		t.Fatal(err)
	}
	r.drop(b)
	r.detach(other)
	r.until("the revision is applied", func() bool { return r.hosts[0].Observe().AppliedRevision == r.revision })
	r.detach(r.attach(0, 0, 0, 0))
}

package hostproxy_test

import (
	"encoding/binary"
	"strings"
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

// A VMM that refuses a device and stays connected to its socket does not reach the
// device that the next attempt plugs in.
func TestVMMKeepsARefusedDevice(t *testing.T) {
	q := newFakeQEMU(t)
	r := newCluster(t, options{qmp: q.path})
	q.set(func() { q.refuse, q.stall = "the root port is busy", make(chan struct{}) })
	b := r.bind(0, 0, 0, 0)
	var c *vfiouser.Client
	r.until("the device has a socket", func() (there bool) {
		var err error
		c, err = vfiouser.Dial(t.Context(), r.hosts[0].vm.Socket(0), vfiouser.ClientConfig{})
		return err == nil
	})
	defer c.Close()
	q.release()
	r.until("the attempt has failed", func() bool { return strings.Contains(r.atHost(b).GetDetail(), "tried again") })
	q.set(func() { q.refuse = "" })
	r.await(b, attached)
	q.mu.Lock()
	bus := q.devices[firstDevice]
	q.mu.Unlock()
	const command, enabled = 4, 6 // memory decoding and bus master
	check(t, c.RegionWrite(t.Context(), vfiouser.RegionConfig, command, []byte{0, 0}))
	if v := bus.ConfigRead32(command); v&enabled != enabled {
		t.Errorf("the other connection's command register reads %#x", v)
	}
	var got [2]byte
	check(t, c.RegionRead(t.Context(), vfiouser.RegionConfig, command, got[:]))
	if v := binary.LittleEndian.Uint16(got[:]); v&enabled != 0 {
		t.Errorf("the command register of the refused device reads %#x, want its value after a reset", v)
	}
	r.detach(b)
}

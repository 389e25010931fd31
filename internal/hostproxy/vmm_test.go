package hostproxy_test

import (
	"os"
	"os/exec"
	"testing"
)

// TestForeignVMM gives a GPU to a foreign vfio-user client: name a command, to
// which the test appends the socket. It succeeds if the command does and the device
// works afterwards.
func TestForeignVMM(t *testing.T) {
	command := os.Getenv("DXPU_VFIOUSER_CLIENT")
	if command == "" {
		t.Skip("set DXPU_VFIOUSER_CLIENT to a command that takes a vfio-user socket as its last argument to test with it")
	}
	r := newCluster(t, options{})
	b := r.attach(0, 0, 0, 0)
	out, err := exec.CommandContext(t.Context(), "sh", "-c", command+` "$0"`, r.hosts[0].vm.Socket(0)).CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	if s := r.atHost(b); s.GetState() != attached {
		t.Errorf("the binding is %v: %s", s.GetState(), s.GetDetail())
	}
	bus, dev := r.open1(0, 0)
	copyBothWays(t, dev, 100<<10)
	closeBoth(t, bus, dev)
}

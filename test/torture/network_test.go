package torture

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// network is a bridge in the test's own namespace, with a namespace on it for
// each manager. Nodes and clients have addresses of their own on the bridge.
type network struct {
	prefix string // of every name of ours
	subnet string // "10.213.7"
}

func ip(args ...string) error {
	out, err := exec.Command("ip", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("ip %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

// newNetwork makes the bridge and so many namespaces; the test is skipped where
// that is not allowed.
func newNetwork(t *testing.T, index, managers, others int) *network {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("network namespaces need root")
	}
	if _, err := exec.LookPath("ip"); errors.Is(err, exec.ErrNotFound) {
		t.Skipf("needs ip of iproute2: %v", err)
	}
	id := os.Getpid()
	n := &network{prefix: fmt.Sprintf("dx%d%c", id%100000, 'a'+index), subnet: fmt.Sprintf("10.%d.%d", 200+index, id%250)}
	err := ip("link", "add", n.prefix, "type", "bridge")
	if text := fmt.Sprint(err); strings.Contains(text, "Operation not permitted") || strings.Contains(text, "Unknown device type") {
		t.Skipf("no bridges here: %v", err) // a container's root, a kernel without them
	}
	must(t, err)
	t.Cleanup(func() { _ = ip("link", "del", n.prefix) })
	must(t, ip("link", "set", n.prefix, "up"))
	for i := range others + 1 { // the first is the one for everything else
		must(t, ip("addr", "add", n.other(i)+"/24", "dev", n.prefix))
	}
	for i := range managers {
		ns, veth := n.namespace(i), fmt.Sprintf("%sv%d", n.prefix, i)
		must(t, ip("netns", "add", ns))
		t.Cleanup(func() { _ = ip("netns", "del", ns) })
		must(t, ip("link", "add", veth, "type", "veth", "peer", "name", "eth0", "netns", ns))
		must(t, ip("link", "set", veth, "master", n.prefix, "up"))
		must(t, ip("-n", ns, "addr", "add", n.manager(i)+"/24", "dev", "eth0"))
		must(t, ip("-n", ns, "link", "set", "eth0", "up"))
		must(t, ip("-n", ns, "link", "set", "lo", "up"))
	}
	return n
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (n *network) namespace(i int) string { return fmt.Sprintf("%sm%d", n.prefix, i) }

func (n *network) manager(i int) string { return fmt.Sprintf("%s.%d", n.subnet, i+1) }

func (n *network) other(i int) string { return fmt.Sprintf("%s.%d", n.subnet, 100+i) }

// cut makes a manager's packets to an address vanish, and with them every
// answer; mend undoes it.
func (n *network) cut(manager int, to string) error {
	return ip("-n", n.namespace(manager), "route", "replace", "blackhole", to+"/32")
}

func (n *network) mend(manager int, to string) error {
	return ip("-n", n.namespace(manager), "route", "del", "blackhole", to+"/32")
}

// client makes HTTP calls from one of the addresses on the bridge.
func (n *network) client(i int) *http.Client {
	d := &net.Dialer{Timeout: time.Second, LocalAddr: &net.TCPAddr{IP: net.ParseIP(n.other(i))}}
	return &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			return d.DialContext(ctx, network, addr)
		},
		MaxIdleConnsPerHost: 4, IdleConnTimeout: 5 * time.Second,
	}}
}

package netio

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/link"
)

func TestWindowFitsTheSocket(t *testing.T) {
	for _, c := range []struct{ window, room, want int }{
		{0, fullRoom, link.DefaultWindow},
		{0, fullRoom - 1, link.DefaultWindow},
		{1 << 20, fullRoom, 1 << 20},
		{0, 425984, 212992}, // the kernel's default
		{1 << 20, 425984, 212992},
		{100 << 10, 425984, 100 << 10},
		{0, 4608, leastWindow},
	} {
		if got := boundWindow(c.window, c.room); got != c.want {
			t.Errorf("window %d in %d bytes: %d, want %d", c.window, c.room, got, c.want)
		}
	}
	var out bytes.Buffer
	log := slog.New(slog.NewTextHandler(&out, nil))
	if warnOfRoom(log, 0, fullRoom); out.Len() > 0 {
		t.Errorf("a full buffer: %s", &out)
	}
	if warnOfRoom(log, 1, 425984); !strings.Contains(out.String(), "net.core.rmem_max") || !strings.Contains(out.String(), "bytes=212992") {
		t.Errorf("a small buffer: %s", &out)
	}
}

// The packages raise the limits of the kernel to what sockets ask for, on which the
// windows count.
func TestPackagesRaiseTheSocketBuffers(t *testing.T) {
	raw, err := os.ReadFile("../../../deploy/sysctl.d/60-dxpu.conf")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"rmem", "wmem"} {
		if want := fmt.Sprintf("\nnet.core.%s_max = %d\n", name, udp.SocketBuffer); !strings.Contains(string(raw), want) {
			t.Errorf("60-dxpu.conf has no line %q", want)
		}
	}
	script, err := os.ReadFile("../../../scripts/package.sh")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(script), "deploy/sysctl.d/60-dxpu.conf") {
		t.Error("package.sh does not install 60-dxpu.conf")
	}
}

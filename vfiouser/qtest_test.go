package vfiouser

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"
)

// qtest is a connection of QEMU's test protocol: it does what a CPU would, in a
// QEMU that runs none. So nothing depends on how fast a firmware gets on.
type qtest struct {
	t    *testing.T
	conn net.Conn
	r    *bufio.Reader
}

func dialQtest(t *testing.T, path string) *qtest {
	t.Helper()
	conn, err := net.Dial("unix", path)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close() })
	return &qtest{t, conn, bufio.NewReader(conn)}
}

// do sends a command and returns what comes after "OK".
func (q *qtest) do(format string, args ...any) string {
	q.t.Helper()
	_ = q.conn.SetDeadline(time.Now().Add(patience))
	_, err := fmt.Fprintf(q.conn, format+"\n", args...)
	must(q.t, err)
	for {
		line, err := q.r.ReadString('\n')
		must(q.t, err)
		rest, ok := strings.CutPrefix(line, "OK")
		switch {
		case ok:
			return strings.TrimSpace(rest)
		case !strings.HasPrefix(line, "IRQ "): // interrupts are told in between
			q.t.Fatalf(format+": %q", append(args, line)...)
		}
	}
}

// config writes a configuration register through the legacy ports (PCI Local
// Bus 3.0, 3.2.2.3.2).
func (q *qtest) config(bus, device, register, value uint32) {
	q.t.Helper()
	q.do("outl 0xcf8 %#x", 1<<31|bus<<16|device<<11|register)
	q.do("outl 0xcfc %#x", value)
}

const (
	rootPort      = 3 // device number on bus 0
	windowBase    = 0xc000_0000
	memoryEnable  = 1 << 1
	busMaster     = 1 << 2
	commandOffset = 4
)

// enable does what a firmware does for the device behind the root port: bus
// numbers, a window, BAR 0, memory decode. It returns where BAR 0 is.
func (q *qtest) enable() uint64 {
	q.t.Helper()
	q.config(0, rootPort, 0x18, 1<<16|1<<8)                          // buses: secondary and subordinate are 1
	q.config(0, rootPort, 0x20, windowBase>>16|(windowBase>>16)<<16) // memory base and limit: 1 MiB
	q.config(0, rootPort, commandOffset, memoryEnable|busMaster)     // of the port, so that what is behind it can
	q.config(1, 0, 0x10, windowBase)
	q.config(1, 0, commandOffset, memoryEnable)
	return windowBase
}

// master lets the device write to memory, as a driver does.
func (q *qtest) master() { q.config(1, 0, commandOffset, memoryEnable|busMaster) }

// eject takes the device behind the root port away, as the firmware's _EJ0 does for a guest
// that agrees to its removal (docs/specs/acpi_pci_hotplug of QEMU). A reset of the machine ejects it, too,
// but QEMU 11.1 then sometimes removes it from the very list of devices that it resets, and aborts.
func (q *qtest) eject() {
	q.t.Helper()
	const ports, ejected, bus = 0xcc0, 0x8, 0x10
	q.do("outl %#x 0", ports+bus)     // the first bus with hot-plug
	q.do("outl %#x 1", ports+ejected) // its slot 0
}

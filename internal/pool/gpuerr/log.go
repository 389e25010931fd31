package gpuerr

import (
	"regexp"
	"strconv"
	"strings"
)

// Message is an XID message of the kernel log.
type Message struct {
	Address  string // PCI address without the function: "0000:3b:00"
	Instance int    // GPU instance of MIG; -1: the whole GPU, or unknown
	Code     uint32
	PID      int // process, 0: none or unknown
}

// maxLine bounds a line of the kernel log: one record of /dev/kmsg is at most 8 KiB.
const maxLine = 8 << 10

// xidLine is an XID message, as NVIDIA's "Xid Errors" shows it:
//
//	NVRM: Xid (PCI:0000:3b:00): 31, pid=4559, name=python3, Ch 00000008, ...
//
// Older drivers leave out "PCI:". In MIG mode the address has the GPU instance:
// "(PCI:0000:3b:00 GPU-I:05)".
var (
	xidLine = regexp.MustCompile(`NVRM: Xid \((?:PCI:)?([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?: GPU-I:([0-9]{1,3}))?\): ([0-9]{1,9})\b(.*)`)
	xidPID  = regexp.MustCompile(`\bpid='?([0-9]{1,10})\b`)
)

// ParseLog reads a line of the kernel log, and reports whether it is an XID message. A
// program on the machine may write lines that look like one, if it may write to
// /dev/kmsg; it is root then.
func ParseLog(line string) (Message, bool) {
	if len(line) > maxLine {
		line = line[:maxLine]
	}
	m := xidLine.FindStringSubmatch(line)
	if m == nil {
		return Message{}, false
	}
	code, err := strconv.ParseUint(m[3], 10, 32)
	if err != nil || code == DeviceFailed {
		return Message{}, false
	}
	out := Message{Address: strings.ToLower(m[1]), Instance: -1, Code: uint32(code)}
	if domain, rest, _ := strings.Cut(out.Address, ":"); len(domain) > 4 { // eight digits, as nvidia-smi writes them
		out.Address = strings.TrimLeft(domain[:len(domain)-4], "0") + domain[len(domain)-4:] + ":" + rest
	}
	if m[2] != "" {
		out.Instance, _ = strconv.Atoi(m[2]) // at most three digits
	}
	if pid := xidPID.FindStringSubmatch(m[4]); pid != nil {
		if n, err := strconv.ParseInt(pid[1], 10, 32); err == nil {
			out.PID = int(n)
		}
	}
	return out, true
}

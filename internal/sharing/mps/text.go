package mps

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/dxpu-project/dxpu/share"
)

// maxPIDs bounds a list that the control program prints.
const maxPIDs = 4096

// device is the GPU in commands: its daemon sees no other one.
const device = 0

// ListServers is the command for the process IDs of the servers.
const ListServers = "get_server_list"

// AskStatus is the command for the status of a server.
func AskStatus(server int) string { return fmt.Sprintf("get_server_status %d", server) }

// AskClients is the command for the clients of a server.
func AskClients(server int) string { return fmt.Sprintf("get_client_list %d", server) }

// Command returns the line for the control program, or "" for actions that need no
// control program.
func (a Action) Command() string {
	switch a.Verb {
	case SetDefaultShare:
		return "set_default_active_thread_percentage " + percent(a.Limits.Share)
	case SetDefaultMemory:
		return fmt.Sprintf("set_default_device_pinned_mem_limit %d %dM", device, a.Limits.Memory>>20)
	case StartServer:
		return fmt.Sprintf("start_server -uid %d", a.UID)
	case SetShare:
		return fmt.Sprintf("set_active_thread_percentage %d %s", a.Server, percent(a.Limits.Share))
	case SetMemory:
		return fmt.Sprintf("set_device_pinned_mem_limit %d %d %dM", a.Server, device, a.Limits.Memory>>20)
	case ShutdownServer:
		return fmt.Sprintf("shutdown_server %d -f", a.Server)
	case TerminateClient:
		return fmt.Sprintf("terminate_client %d %d", a.Server, a.Client)
	case Quit:
		if a.Busy {
			return "quit -t 10" // seconds until the servers are killed
		}
		return "quit"
	case StartDaemon, KillDaemon:
	}
	return ""
}

// String describes the action.
func (a Action) String() string {
	switch a.Verb {
	case StartDaemon:
		return "start the control daemon"
	case KillDaemon:
		return "kill the control daemon"
	default:
		return a.Command()
	}
}

// percent writes a share in percent, with the digits that it needs.
func percent(s share.PPM) string {
	return strconv.FormatFloat(float64(s)/(float64(share.Whole)/100), 'f', -1, 64)
}

// Check says whether the control program's answer to an action means success. The
// program ends with status 0 after errors too.
func (a Action) Check(answer string) error {
	answer = strings.TrimSpace(answer)
	if a.Verb == SetShare || a.Verb == SetDefaultShare { // it repeats the value
		if got, err := strconv.ParseFloat(answer, 64); err == nil {
			if want := float64(a.Limits.Share) / (float64(share.Whole) / 100); math.Abs(got-want) > 0.1 {
				return fmt.Errorf("%s: the control daemon set %v", a, got)
			}
			return nil
		}
	}
	low := strings.ToLower(answer)
	for _, word := range []string{"error", "fail", "invalid", "cannot", "unable", "not found", "unknown", "does not", "not support", "unrecognized"} {
		if strings.Contains(low, word) {
			return fmt.Errorf("%s: the control daemon answered %q", a, clip(answer))
		}
	}
	return nil
}

// NoDaemon reports whether the control program said that there is no daemon.
func NoDaemon(output string) bool {
	return strings.Contains(output, "Cannot find MPS control daemon process")
}

// ParsePIDs reads a list of process IDs, separated by spaces or lines.
func ParsePIDs(text string) ([]int, error) {
	var out []int
	for f := range strings.FieldsSeq(text) {
		n, err := strconv.ParseUint(f, 10, 31)
		if err != nil || n == 0 {
			return nil, fmt.Errorf("%q: want process IDs", clip(text))
		}
		if len(out) == maxPIDs {
			return nil, fmt.Errorf("more than %d process IDs", maxPIDs)
		}
		out = append(out, int(n))
	}
	slices.Sort(out)
	return slices.Compact(out), nil
}

// ParseStatus reads the status of a server.
func ParseStatus(text string) (Status, error) {
	switch strings.TrimSpace(text) {
	case "INITIALIZING":
		return StatusInitializing, nil
	case "ACTIVE":
		return StatusActive, nil
	case "FAULT":
		return StatusFault, nil
	}
	return StatusUnknown, fmt.Errorf("%q: want INITIALIZING, ACTIVE or FAULT", clip(text))
}

// clip bounds what an error repeats.
func clip(text string) string {
	const most = 120
	text = strings.TrimSpace(text)
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "?")
}

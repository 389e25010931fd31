package mig

import (
	"encoding/xml"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Bounds of what is read. A GPU has at most seven instances and some tens of profiles.
const (
	maxRows   = 4096    // of a table
	maxSlices = 32      // of the memory
	maxGiB    = 1 << 20 // of an instance
)

// Nothing reports whether nvidia-smi said that there are none of what was to be listed.
// It ends with status 6 then. It also finds none for a user who may not see them.
func Nothing(output string) bool {
	return !Denied(output) && (strings.Contains(output, "No GPU instances found") || strings.Contains(output, "No compute instances found") ||
		strings.Contains(output, "No MIG-enabled devices found"))
}

// Denied reports whether nvidia-smi said that the user may not see or change something.
func Denied(output string) bool { return strings.Contains(output, "Insufficient Permissions") }

// InUse reports whether nvidia-smi said that something is in use.
func InUse(output string) bool { return strings.Contains(output, "In use by another client") }

// rows returns the fields of the rows of a table of nvidia-smi that begin with a number.
func rows(table string) ([][]string, error) {
	var out [][]string
	for line := range strings.Lines(table) {
		line = strings.TrimSpace(line)
		inner, opened := strings.CutPrefix(line, "|")
		inner, closed := strings.CutSuffix(inner, "|")
		if !opened || !closed {
			continue
		}
		f := strings.Fields(inner)
		if len(f) < 5 {
			continue
		}
		if _, err := strconv.Atoi(f[0]); err != nil {
			continue
		}
		if len(out) == maxRows {
			return nil, fmt.Errorf("more than %d rows", maxRows)
		}
		out = append(out, f)
	}
	return out, nil
}

// ParseProfiles reads nvidia-smi mig -lgip and -lgipp of one GPU.
func ParseProfiles(lgip, lgipp string) ([]Profile, error) {
	table, err := rows(lgip)
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi mig -lgip: %w", err)
	}
	var out []Profile
	for _, f := range table {
		// GPU MIG name ID free/total GiB P2P SMs DEC ENC; the row below has five numbers.
		if len(f) < 8 || f[1] != "MIG" {
			continue
		}
		id, err1 := number(f[3])
		_, total, _ := strings.Cut(f[4], "/")
		most, err2 := number(total)
		gib, err3 := strconv.ParseFloat(f[5], 64)
		sms, err4 := number(f[7])
		if err3 == nil && !(gib >= 0 && gib <= maxGiB) { // "NaN" is a number too
			err3 = fmt.Errorf("%q: want GiB", f[5])
		}
		if err := first(err1, err2, err3, err4); err != nil {
			return nil, fmt.Errorf("nvidia-smi mig -lgip: row %q: %w", strings.Join(f, " "), err)
		}
		out = append(out, Profile{ID: id, Name: f[2], Most: most, GiB: gib, SMs: sms})
	}
	if err := parsePlacements(lgipp, out); err != nil {
		return nil, fmt.Errorf("nvidia-smi mig -lgipp: %w", err)
	}
	return out, nil
}

// placementLine is a line of nvidia-smi mig -lgipp, such as
//
//	GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1
var placementLine = regexp.MustCompile(`^GPU +\d+ +Profile ID +(\d+) +Placements? *: *\{([0-9, ]+)\}:(\d+)$`)

func parsePlacements(text string, profiles []Profile) error {
	for line := range strings.Lines(text) {
		m := placementLine.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil {
			continue
		}
		id, err := number(m[1])
		if err != nil {
			return err
		}
		n := slices.IndexFunc(profiles, func(p Profile) bool { return p.ID == id })
		if n < 0 {
			continue
		}
		size, err := number(m[3])
		if err != nil {
			return err
		}
		var starts []int
		for s := range strings.SplitSeq(m[2], ",") {
			v, err := number(strings.TrimSpace(s))
			if err != nil {
				return err
			}
			if v+size > maxSlices || size == 0 || slices.Contains(starts, v) {
				return fmt.Errorf("%.100q: want different places in at most %d memory slices", strings.TrimSpace(line), maxSlices)
			}
			starts = append(starts, v)
		}
		profiles[n].Size, profiles[n].Starts = size, starts
	}
	return nil
}

// ParseInstances reads nvidia-smi mig -lgi of one GPU.
func ParseInstances(text string) ([]Instance, error) {
	table, err := rows(text)
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi mig -lgi: %w", err)
	}
	var out []Instance
	for _, f := range table { // GPU MIG name profile-ID instance-ID start:size
		if len(f) != 6 || f[1] != "MIG" {
			return nil, fmt.Errorf("nvidia-smi mig -lgi: unknown row %q", strings.Join(f, " "))
		}
		id, err1 := number(f[4])
		start, size, _ := strings.Cut(f[5], ":")
		at, err2 := number(start)
		n, err3 := number(size)
		if err := first(err1, err2, err3); err != nil {
			return nil, fmt.Errorf("nvidia-smi mig -lgi: row %q: %w", strings.Join(f, " "), err)
		}
		if at+n > maxSlices {
			return nil, fmt.Errorf("nvidia-smi mig -lgi: row %q: want at most %d memory slices", strings.Join(f, " "), maxSlices)
		}
		out = append(out, Instance{ID: id, Profile: f[2], Start: at, Size: n, Compute: []Compute{}})
	}
	return out, nil
}

// ParseCompute reads nvidia-smi mig -lci of one GPU into its instances.
func ParseCompute(text string, instances []Instance) error {
	table, err := rows(text)
	if err != nil {
		return fmt.Errorf("nvidia-smi mig -lci: %w", err)
	}
	for _, f := range table { // GPU instance-ID MIG name profile-ID compute-ID start:size
		if len(f) != 7 || f[2] != "MIG" {
			return fmt.Errorf("nvidia-smi mig -lci: unknown row %q", strings.Join(f, " "))
		}
		gi, err1 := number(f[1])
		ci, err2 := number(f[5])
		profile, err3 := number(f[4])
		start, _, _ := strings.Cut(f[6], ":")
		at, err4 := number(start)
		if err := first(err1, err2, err3, err4); err != nil {
			return fmt.Errorf("nvidia-smi mig -lci: row %q: %w", strings.Join(f, " "), err)
		}
		for n := range instances {
			if instances[n].ID == gi {
				instances[n].Compute = append(instances[n].Compute, Compute{ID: ci, Profile: profile, Name: f[3], Start: at})
			}
		}
	}
	return nil
}

// smiLog is what is read of nvidia-smi -q -x.
type smiLog struct {
	GPUs []struct {
		PCI     string `xml:"id,attr"`
		Name    string `xml:"product_name"`
		UUID    string `xml:"uuid"`
		Current string `xml:"mig_mode>current_mig"`
		Pending string `xml:"mig_mode>pending_mig"`
		Devices []struct {
			Index int `xml:"index"`
			GI    int `xml:"gpu_instance_id"`
			CI    int `xml:"compute_instance_id"`
		} `xml:"mig_devices>mig_device"`
		Processes *struct {
			Text string `xml:",chardata"`
			List []struct {
				GI   string `xml:"gpu_instance_id"`
				PID  int    `xml:"pid"`
				Type string `xml:"type"`
			} `xml:"process_info"`
		} `xml:"processes"`
	} `xml:"gpu"`
}

// Device is a MIG device of a GPU, as nvidia-smi counts them.
type Device struct{ Index, GI, CI int }

// Process is a process that uses a GPU. GI is -1 if nvidia-smi names no instance.
type Process struct{ PID, GI int }

// ParseQuery reads nvidia-smi -q -x of one GPU.
func ParseQuery(text string) (GPU, []Device, []Process, error) {
	var log smiLog
	if err := xml.Unmarshal([]byte(text), &log); err != nil {
		return GPU{}, nil, nil, fmt.Errorf("nvidia-smi -q -x: %w", err)
	}
	if len(log.GPUs) != 1 {
		return GPU{}, nil, nil, fmt.Errorf("nvidia-smi -q -x: %d GPUs, want one", len(log.GPUs))
	}
	in := log.GPUs[0]
	g := GPU{UUID: in.UUID, Name: in.Name, PCI: in.PCI, Enabled: in.Current == "Enabled", Pending: in.Pending == "Enabled"}
	g.Supported = g.Enabled || in.Current == "Disabled"
	var devices []Device
	for _, d := range in.Devices {
		devices = append(devices, Device(d))
	}
	var processes []Process
	if p := in.Processes; p == nil || strings.TrimSpace(p.Text) != "" { // such as N/A
		g.Untold = true
	}
	if in.Processes != nil {
		for _, p := range in.Processes.List {
			gi, err := number(strings.TrimSpace(p.GI))
			if err != nil {
				gi = -1
			}
			processes = append(processes, Process{p.PID, gi}) // one without an ID holds its instance too
		}
	}
	if len(devices)+len(processes) > maxRows {
		return GPU{}, nil, nil, fmt.Errorf("nvidia-smi -q -x: more than %d devices and processes", maxRows)
	}
	return g, devices, processes, nil
}

// Assign gives the instances of a GPU their processes and the UUIDs of their devices. It fails
// if nvidia-smi listed another instance before, or not all of them.
func (g *GPU) Assign(devices []Device, processes []Process, uuids map[int]string) error {
	for _, d := range devices {
		c := g.compute(d.GI, d.CI)
		if c == nil {
			return fmt.Errorf("%s: nvidia-smi lists a device of instance %d and compute instance %d, but not these: the partitions change, try again", g.UUID, d.GI, d.CI)
		}
		c.UUID = uuids[d.Index]
	}
	for _, p := range processes {
		n := slices.IndexFunc(g.Instances, func(i Instance) bool { return i.ID == p.GI })
		if n < 0 {
			g.Busy = append(g.Busy, p.PID)
			continue
		}
		g.Instances[n].Busy = append(g.Instances[n].Busy, p.PID)
	}
	return nil
}

func (g *GPU) compute(gi, ci int) *Compute {
	for n := range g.Instances {
		for c := range g.Instances[n].Compute {
			if g.Instances[n].ID == gi && g.Instances[n].Compute[c].ID == ci {
				return &g.Instances[n].Compute[c]
			}
		}
	}
	return nil
}

var (
	gpuLine    = regexp.MustCompile(`^GPU \d+: .*\(UUID: (GPU-[0-9a-zA-Z-]+)\)$`)
	deviceLine = regexp.MustCompile(`^MIG \S+ +Device +(\d+): \(UUID: (MIG-[0-9a-zA-Z/-]+)\)$`)
)

// ParseUUIDs reads nvidia-smi -L: the UUIDs of a GPU's MIG devices, by their index.
func ParseUUIDs(text, gpu string) map[int]string {
	out := make(map[int]string)
	inside := false
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if m := gpuLine.FindStringSubmatch(line); m != nil {
			inside = m[1] == gpu
			continue
		}
		if m := deviceLine.FindStringSubmatch(line); m != nil && inside && len(out) < maxRows {
			if n, err := number(m[1]); err == nil {
				out[n] = m[2]
			}
		}
	}
	return out
}

// created is nvidia-smi's message after mig -cgi.
var created = regexp.MustCompile(`Successfully created GPU instance ID +(\d+)`)

// ParseCreated returns the ID of the instance that nvidia-smi mig -cgi made.
func ParseCreated(text string) (int, error) {
	m := created.FindStringSubmatch(text)
	if m == nil {
		return 0, fmt.Errorf("nvidia-smi mig -cgi: no created instance in its answer")
	}
	return number(m[1])
}

// number reads a number of a table: none is large.
func number(s string) (int, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("%q: want a number", s)
	}
	return int(n), nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

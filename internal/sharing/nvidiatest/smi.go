package nvidiatest

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// SMI is the state of the fake nvidia-smi, in a file beside the program.
type SMI struct {
	GPUs []SMIGPU
	// Faults are texts by the beginning of a command, as "mig -cgi", and the number of
	// its runs that answer so. The text "hang" makes the program hang.
	Faults []SMIFault
	Log    []string // commands that change something
}

// SMIFault makes runs of a command fail.
type SMIFault struct {
	Command string // words that the command contains, in order, without -i and its value
	Skip    int    // runs that work before
	Count   int
	Text    string
	Code    int
}

// SMIGPU is a fake A100 with 40 GB.
type SMIGPU struct {
	UUID      string
	NoMIG     bool
	NeedReset bool // the mode changes with a reset only
	NoPlaces  bool // -cci takes profiles only, as before placements of compute instances
	Untold    bool // the processes are not listed
	Enabled   bool
	Pending   bool
	Instances []SMIInstance
	Processes []SMIProcess
	Next      int
}

// SMIInstance is a GPU instance with the IDs of its compute instances. Parts: each of them has a
// part of it, one slice each if Places does not say which.
type SMIInstance struct {
	ID, Profile, Start int
	Compute            []int
	Parts              bool
	Places             []SMIPlace // of the compute instances
}

// SMIPlace is the place of a compute instance in its GPU instance: profile 0 has one slice, 1 has two.
type SMIPlace struct{ Profile, Start int }

func (p SMIPlace) size() int { return p.Profile + 1 }

// place returns the place of the compute instance with an index.
func (x *SMIInstance) place(n int) SMIPlace {
	if n < len(x.Places) {
		return x.Places[n]
	}
	return SMIPlace{0, n}
}

// SMIProcess is a process; Instance is -1 where nvidia-smi would name none.
type SMIProcess struct{ PID, Instance int }

// smiProfile is a row of the published table of the A100 with 40 GB.
type smiProfile struct {
	id, slices, size, most, sms int
	name                        string
	gib                         string
	starts                      []int
}

var smiProfiles = []smiProfile{
	{19, 1, 1, 7, 14, "1g.5gb", "4.75", []int{0, 1, 2, 3, 4, 5, 6}},
	{20, 1, 1, 1, 14, "1g.5gb+me", "4.75", []int{0, 1, 2, 3, 4, 5, 6}},
	{15, 1, 2, 4, 14, "1g.10gb", "9.75", []int{0, 2, 4, 6}},
	{14, 2, 2, 3, 28, "2g.10gb", "9.75", []int{0, 2, 4}},
	{9, 3, 4, 2, 42, "3g.20gb", "19.62", []int{0, 4}},
	{5, 4, 4, 1, 56, "4g.20gb", "19.62", []int{0}},
	{0, 7, 8, 1, 98, "7g.40gb", "39.50", []int{0}},
}

func profileByID(id int) *smiProfile {
	if i := slices.IndexFunc(smiProfiles, func(p smiProfile) bool { return p.id == id }); i >= 0 {
		return &smiProfiles[i]
	}
	return nil
}

// EditSMI changes the state of the fake in a folder of Install, and returns the new one.
func EditSMI(t testing.TB, dir string, edit func(*SMI)) SMI {
	t.Helper()
	var out SMI
	if err := withSMI(dir, func(s *SMI) {
		edit(s)
		out = *s
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// withSMI reads the state, changes and writes it, under a lock.
func withSMI(dir string, edit func(*SMI)) error {
	lock, err := os.OpenFile(filepath.Join(dir, "smi.lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	var s SMI
	name := filepath.Join(dir, "smi.json")
	if raw, err := os.ReadFile(name); err == nil {
		if err := json.Unmarshal(raw, &s); err != nil {
			return err
		}
	}
	edit(&s)
	raw, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return os.WriteFile(name, raw, 0o600)
}

// smi is nvidia-smi.
func smi() int {
	text, code := "", 255
	if err := withSMI(filepath.Dir(os.Args[0]), func(s *SMI) { text, code = s.command(os.Args[1:]) }); err != nil {
		fmt.Println(err)
		return 255
	}
	if text == "hang" {
		time.Sleep(time.Hour)
	}
	fmt.Print(text)
	return code
}

// Run is one run of the program, in this process.
func (s *SMI) Run(args []string) (text string, code int) { return s.command(args) }

func (s *SMI) command(args []string) (string, int) {
	which, rest := "", make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		if args[i] == "-i" && i+1 < len(args) {
			i++
			which = args[i]
			continue
		}
		rest = append(rest, args[i])
	}
	line := strings.Join(rest, " ")
	for n := range s.Faults {
		f := &s.Faults[n]
		if !strings.Contains(line, f.Command) || f.Count == 0 {
			continue
		}
		if f.Skip > 0 {
			f.Skip--
			continue
		}
		f.Count--
		return f.Text, f.Code
	}
	if line == "-L" {
		return s.list(), 0
	}
	if strings.HasPrefix(line, "--query-gpu=uuid,pci.bus_id,name,memory.total ") {
		var b strings.Builder
		for n, g := range s.GPUs {
			fmt.Fprintf(&b, "%s, 00000000:%02X:00.0, NVIDIA A100-SXM4-40GB, 40960\n", g.UUID, n+1)
		}
		return b.String(), 0
	}
	n := slices.IndexFunc(s.GPUs, func(g SMIGPU) bool { return g.UUID == which })
	if n < 0 {
		return "No devices were found\n", 6
	}
	g := &s.GPUs[n]
	if !strings.Contains(line, " -l") && line != "-q -x" {
		s.Log = append(s.Log, line)
	}
	switch {
	case line == "-q -x":
		return g.query(n), 0
	case line == "-mig 1" || line == "-mig 0":
		return g.mode(n, line == "-mig 1")
	case line == "--gpu-reset":
		return g.reset(n)
	case rest[0] == "mig":
		if !g.Enabled {
			return "No MIG-enabled devices found.\n", 6
		}
		return g.mig(n, rest[1:])
	}
	return "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", 2
}

func (s *SMI) list() string {
	var b strings.Builder
	for n, g := range s.GPUs {
		fmt.Fprintf(&b, "GPU %d: NVIDIA A100-SXM4-40GB (UUID: %s)\n", n, g.UUID)
		for d, x := range g.devices() {
			fmt.Fprintf(&b, "  MIG %-11s Device  %d: (UUID: MIG-%s-%d-%d)\n", x.name(0), d, strings.TrimPrefix(g.UUID, "GPU-"), x.ID, x.Compute[0])
		}
	}
	return b.String()
}

// devices are the compute instances, each with its GPU instance.
func (g *SMIGPU) devices() (out []SMIInstance) {
	for _, x := range g.Instances {
		for k, c := range x.Compute {
			d := x
			d.Compute, d.Places = []int{c}, []SMIPlace{x.place(k)}
			out = append(out, d)
		}
	}
	return out
}

// name is that of the compute instance with an index.
func (x *SMIInstance) name(n int) string {
	if x.Parts {
		return fmt.Sprintf("%dc.", x.place(n).size()) + profileByID(x.Profile).name
	}
	return profileByID(x.Profile).name
}

func (g *SMIGPU) query(n int) string {
	word := func(on bool) string {
		switch {
		case g.NoMIG:
			return "N/A"
		case on:
			return "Enabled"
		}
		return "Disabled"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "<?xml version=\"1.0\" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM \"nvsmi_device_v12.dtd\">\n<nvidia_smi_log>\n\t<attached_gpus>1</attached_gpus>\n"+
		"\t<gpu id=\"00000000:%02X:00.0\">\n\t\t<product_name>NVIDIA A100-SXM4-40GB</product_name>\n\t\t<mig_mode>\n\t\t\t<current_mig>%s</current_mig>\n"+
		"\t\t\t<pending_mig>%s</pending_mig>\n\t\t</mig_mode>\n\t\t<mig_devices>\n", n+1, word(g.Enabled), word(g.Pending))
	for d, x := range g.devices() {
		fmt.Fprintf(&b, "\t\t\t<mig_device>\n\t\t\t\t<index>%d</index>\n\t\t\t\t<gpu_instance_id>%d</gpu_instance_id>\n"+
			"\t\t\t\t<compute_instance_id>%d</compute_instance_id>\n\t\t\t</mig_device>\n", d, x.ID, x.Compute[0])
	}
	fmt.Fprintf(&b, "\t\t</mig_devices>\n\t\t<uuid>%s</uuid>\n", g.UUID)
	if g.Untold {
		return b.String() + "\t</gpu>\n</nvidia_smi_log>\n"
	}
	b.WriteString("\t\t<processes>\n")
	for _, p := range g.Processes {
		gi := "N/A"
		if p.Instance >= 0 {
			gi = strconv.Itoa(p.Instance)
		}
		fmt.Fprintf(&b, "\t\t\t<process_info>\n\t\t\t\t<gpu_instance_id>%s</gpu_instance_id>\n\t\t\t\t<pid>%d</pid>\n\t\t\t\t<type>C</type>\n\t\t\t</process_info>\n", gi, p.PID)
	}
	b.WriteString("\t\t</processes>\n\t</gpu>\n</nvidia_smi_log>\n")
	return b.String()
}

func (g *SMIGPU) reset(n int) (string, int) {
	if len(g.Processes) > 0 {
		return fmt.Sprintf("GPU 00000000:%02X:00.0 is currently being used by one or more other processes (e.g., Fabric Manager, CUDA application, "+
			"graphics application such as an X server, or a monitoring application such as another instance of nvidia-smi). "+
			"Please first kill all processes using this GPU and all compute applications running in the system.\n", n+1), 3
	}
	g.Enabled, g.Instances = g.Pending, nil
	return fmt.Sprintf("GPU 00000000:%02X:00.0 was successfully reset.\nAll done.\n", n+1), 0
}

func (g *SMIGPU) mode(n int, on bool) (string, int) {
	if g.NoMIG {
		return fmt.Sprintf("Unable to enable MIG Mode for GPU 00000000:%02X:00.0: Not Supported\n", n+1), 3
	}
	g.Pending = on
	if g.NeedReset || len(g.Processes) > 0 {
		return fmt.Sprintf("Warning: MIG mode is in pending enable state for GPU 00000000:%02X:00.0:In use by another client\n"+
			"00000000:%02X:00.0 is currently being used by one or more other processes (e.g. CUDA application or a monitoring application such as another instance of nvidia-smi). "+
			"Please first kill all processes using the device and retry the command or reboot the system to make MIG mode effective.\nAll done.\n", n+1, n+1), 0
	}
	g.Enabled, g.Instances = on, nil
	verb := map[bool]string{true: "Enabled", false: "Disabled"}[on]
	return fmt.Sprintf("%s MIG Mode for GPU 00000000:%02X:00.0\nAll done.\n", verb, n+1), 0
}

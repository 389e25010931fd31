package nvidiatest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// mig is nvidia-smi mig.
func (g *SMIGPU) mig(n int, args []string) (string, int) {
	switch line := strings.Join(args, " "); {
	case line == "-lgip":
		return g.listProfiles(n), 0
	case line == "-lgipp":
		var b strings.Builder
		for _, p := range smiProfiles {
			word := "Placements"
			if len(p.starts) == 1 {
				word = "Placement "
			}
			fmt.Fprintf(&b, "GPU %2d Profile ID %2d %s: {%s}:%d\n", n, p.id, word, strings.Join(strings.Fields(strings.Trim(fmt.Sprint(p.starts), "[]")), ","), p.size)
		}
		return b.String(), 0
	case line == "-lgi":
		return g.listInstances(n)
	case line == "-lci":
		return g.listCompute(n)
	case len(args) == 3 && args[0] == "-cgi" && args[2] == "-C":
		return g.create(n, args[1], true)
	case len(args) == 2 && args[0] == "-cgi":
		return g.create(n, args[1], false)
	case len(args) == 4 && args[0] == "-cci" && args[2] == "-gi":
		return g.createCompute(n, atoi(args[3]), strings.Split(args[1], ","))
	case len(args) == 5 && args[0] == "-dci" && args[1] == "-gi" && args[3] == "-ci":
		return g.destroyCompute(n, atoi(args[2]), atoi(args[4]))
	case len(args) == 3 && args[0] == "-dgi" && args[1] == "-gi":
		return g.destroy(n, atoi(args[2]))
	}
	return "Option is not recognized. Please run 'nvidia-smi mig -h'.\n", 2
}

func atoi(s string) int {
	n, err := strconv.Atoi(s)
	if err != nil {
		return -1
	}
	return n
}

func (g *SMIGPU) free(p *smiProfile, start int) bool {
	compute, same := p.slices, 1
	for _, x := range g.Instances {
		q := profileByID(x.Profile)
		compute += q.slices
		if q.id == p.id {
			same++
		}
		if start < x.Start+q.size && x.Start < start+p.size {
			return false
		}
	}
	return compute <= 7 && same <= p.most && slices.Contains(p.starts, start)
}

func (g *SMIGPU) listProfiles(n int) string {
	rule := "+" + strings.Repeat("-", 77) + "+\n"
	var b strings.Builder
	b.WriteString(rule + "| GPU instance profiles:                                                       |\n" +
		"| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |\n" +
		"|                              Free/Total   GiB              CE    JPEG  OFA  |\n|" + strings.Repeat("=", 77) + "|\n")
	for _, p := range smiProfiles {
		room := 0
		for _, s := range p.starts {
			if g.free(&p, s) {
				room++
			}
		}
		fmt.Fprintf(&b, "| %3d  MIG %-13s %2d   %3d/%-3d     %6s      No    %3d     0     0   |\n|%60d     0     0   |\n%s",
			n, p.name, p.id, min(room, p.most), p.most, p.gib, p.sms, p.slices, rule)
	}
	return b.String()
}

func (g *SMIGPU) listInstances(n int) (string, int) {
	if len(g.Instances) == 0 {
		return "No GPU instances found.\n", 6
	}
	rule := "+" + strings.Repeat("-", 55) + "+\n"
	var b strings.Builder
	b.WriteString(rule + "| GPU instances:                                        |\n| GPU   Name             Profile  Instance   Placement  |\n" +
		"|                          ID       ID       Start:Size |\n|" + strings.Repeat("=", 55) + "|\n")
	for _, x := range g.Instances {
		p := profileByID(x.Profile)
		fmt.Fprintf(&b, "| %3d  MIG %-14s %4d    %5d          %d:%d     |\n%s", n, p.name, p.id, x.ID, x.Start, p.size, rule)
	}
	return b.String(), 0
}

func (g *SMIGPU) listCompute(n int) (string, int) {
	rule := "+" + strings.Repeat("-", 68) + "+\n"
	var b strings.Builder
	rows := 0
	b.WriteString(rule + "| Compute instances:                                                 |\n| GPU     GPU       Name             Profile   Instance   Placement  |\n" +
		"|       Instance                       ID        ID       Start:Size |\n|         ID                                                         |\n|" + strings.Repeat("=", 68) + "|\n")
	for _, x := range g.Instances {
		for k, c := range x.Compute {
			profile, start, size := 2, 0, profileByID(x.Profile).slices // made up, as the documented IDs are: one per size
			if x.Parts {
				p := x.place(k)
				profile, start, size = p.Profile, p.Start, p.size()
			}
			rows++
			fmt.Fprintf(&b, "| %3d    %3d       MIG %-14s %4d     %5d          %d:%d     |\n%s", n, x.ID, x.name(k), profile, c, start, size, rule)
		}
	}
	if rows == 0 {
		return "No compute instances found: Not Found\n", 6
	}
	return b.String(), 0
}

// createCompute makes compute instances of one or two slices, in the places that the command names,
// or in the first ones.
func (g *SMIGPU) createCompute(n, gi int, profiles []string) (string, int) {
	x := g.find(gi)
	if x == nil {
		return "No GPU instances found.\n", 6
	}
	var b strings.Builder
	for _, text := range profiles {
		id, start, placed := strings.Cut(text, ":")
		if placed && g.NoPlaces {
			return "Unable to parse the profile.\n", badArgument
		}
		p := SMIPlace{Profile: atoi(id)}
		if placed {
			p.Start = atoi(start)
		} else {
			for !x.room(p) && p.Start < profileByID(x.Profile).slices {
				p.Start++
			}
		}
		if !x.room(p) {
			return b.String() + "Failed to create compute instances: Insufficient Resources\n", 23
		}
		for k := range x.Compute {
			x.Places = append(x.Places[:k], x.place(k))
		}
		x.Parts, x.Places, x.Compute = true, append(x.Places, p), append(x.Compute, len(x.Compute))
		fmt.Fprintf(&b, "Successfully created compute instance ID %2d on GPU %2d GPU instance ID %2d using profile MIG %s (ID %2d)\n",
			len(x.Compute)-1, n, gi, x.name(len(x.Compute)-1), p.Profile)
	}
	return b.String(), 0
}

const badArgument = 2

// room reports whether a compute instance fits in a place.
func (x *SMIInstance) room(p SMIPlace) bool {
	if p.Profile < 0 || p.Profile > 1 || p.Start < 0 || p.Start+p.size() > profileByID(x.Profile).slices || len(x.Compute) > 0 && !x.Parts {
		return false
	}
	for k := range x.Compute {
		if o := x.place(k); p.Start < o.Start+o.size() && o.Start < p.Start+p.size() {
			return false
		}
	}
	return true
}

// create makes an instance for a profile and a placement, as 9:4, perhaps with its compute instance.
func (g *SMIGPU) create(n int, spec string, whole bool) (string, int) {
	id, start, placed := strings.Cut(spec, ":")
	p := profileByID(atoi(id))
	if p == nil || !placed {
		return "Unable to parse the profile.\n", 2
	}
	if !g.free(p, atoi(start)) {
		return fmt.Sprintf("Unable to create a GPU instance on GPU %2d using profile %d: Insufficient Resources\nFailed to create GPU instances: Insufficient Resources\n", n, p.id), 23
	}
	g.Next++
	made := SMIInstance{ID: g.Next, Profile: p.id, Start: atoi(start)}
	text := fmt.Sprintf("Successfully created GPU instance ID %2d on GPU %2d using profile MIG %s (ID %2d)\n", g.Next, n, p.name, p.id)
	if whole {
		made.Compute = []int{0}
		text += fmt.Sprintf("Successfully created compute instance ID  0 on GPU %2d GPU instance ID %2d using profile MIG %s (ID  2)\n", n, g.Next, p.name)
	}
	g.Instances = append(g.Instances, made)
	return text, 0
}

func (g *SMIGPU) find(id int) *SMIInstance {
	if i := slices.IndexFunc(g.Instances, func(x SMIInstance) bool { return x.ID == id }); i >= 0 {
		return &g.Instances[i]
	}
	return nil
}

func (g *SMIGPU) destroyCompute(n, gi, ci int) (string, int) {
	x := g.find(gi)
	if x == nil || !slices.Contains(x.Compute, ci) {
		return "No compute instances found: Not Found\n", 6
	}
	if slices.ContainsFunc(g.Processes, func(p SMIProcess) bool { return p.Instance == gi || p.Instance < 0 }) {
		return fmt.Sprintf("Unable to destroy compute instance ID %2d from GPU %2d GPU instance ID %2d: In use by another client\n"+
			"Failed to destroy compute instances: In use by another client\n", ci, n, gi), 19
	}
	k := slices.Index(x.Compute, ci)
	for i := range x.Compute {
		x.Places = append(x.Places[:i], x.place(i))
	}
	x.Compute, x.Places = slices.Delete(x.Compute, k, k+1), slices.Delete(x.Places, k, k+1)
	return fmt.Sprintf("Successfully destroyed compute instance ID %2d from GPU %2d GPU instance ID %2d\n", ci, n, gi), 0
}

func (g *SMIGPU) destroy(n, gi int) (string, int) {
	x := g.find(gi)
	if x == nil {
		return "No GPU instances found.\n", 6
	}
	if len(x.Compute) > 0 {
		return fmt.Sprintf("Unable to destroy GPU instance ID %2d from GPU %2d: In use by another client\nFailed to destroy GPU instances: In use by another client\n", gi, n), 19
	}
	g.Instances = slices.DeleteFunc(g.Instances, func(x SMIInstance) bool { return x.ID == gi })
	return fmt.Sprintf("Successfully destroyed GPU instance ID %2d from GPU %2d\n", gi, n), 0
}

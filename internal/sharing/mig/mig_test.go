package mig

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// Tables as in NVIDIA's MIG user guide and as printed by drivers 470 to 580.
const (
	lgip = `
+-----------------------------------------------------------------------------+
| GPU instance profiles:                                                      |
| GPU   Name             ID    Instances   Memory     P2P    SM    DEC   ENC  |
|                              Free/Total   GiB              CE    JPEG  OFA  |
|=============================================================================|
|   0  MIG 1g.5gb        19     7/7        4.75       No     14     0     0   |
|                                                             1     0     0   |
+-----------------------------------------------------------------------------+
|   0  MIG 1g.5gb+me     20     1/1        4.75       No     14     1     0   |
|                                                             1     1     1   |
+-----------------------------------------------------------------------------+
|   0  MIG 2g.10gb       14     3/3        9.75       No     28     1     0   |
|                                                             2     0     0   |
+-----------------------------------------------------------------------------+
|   0  MIG 3g.20gb        9     2/2        19.62      No     42     2     0   |
|                                                             3     0     0   |
+-----------------------------------------------------------------------------+
|   0  MIG 4g.20gb        5     1/1        19.62      No     56     2     0   |
|                                                             4     0     0   |
+-----------------------------------------------------------------------------+
|   0  MIG 7g.40gb        0     1/1        39.50      No     98     5     0   |
|                                                             7     1     1   |
+-----------------------------------------------------------------------------+
`
	lgipp = `GPU  0 Profile ID 19 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID 20 Placements: {0,1,2,3,4,5,6}:1
GPU  0 Profile ID 14 Placements: {0,2,4}:2
GPU  0 Profile ID  9 Placements: {0,4}:4
GPU  0 Profile ID  5 Placement : {0}:4
GPU  0 Profile ID  0 Placement : {0}:8
`
	lgi = `
+----------------------------------------------------+
| GPU instances:                                     |
| GPU   Name          Profile  Instance   Placement  |
|                       ID       ID       Start:Size |
|====================================================|
|   0  MIG 3g.20gb       9        1          4:4     |
+----------------------------------------------------+
|   0  MIG 1g.5gb       19        9          0:1     |
+----------------------------------------------------+
`
	lci = `
+--------------------------------------------------------------------+
| Compute instances:                                                 |
| GPU     GPU       Name             Profile   Instance   Placement  |
|       Instance                       ID        ID       Start:Size |
|         ID                                                         |
|====================================================================|
|   0      1       MIG 3g.20gb          2         0          0:3     |
+--------------------------------------------------------------------+
|   0      9       MIG 1g.5gb           0         0          0:1     |
+--------------------------------------------------------------------+
`
	list = `GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-other)
  MIG 7g.40gb     Device  0: (UUID: MIG-other)
GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)
  MIG 3g.20gb     Device  0: (UUID: MIG-c7384736-a75d-5afc-978f-d2f1294409fd)
  MIG 1g.5gb      Device  1: (UUID: MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d)
`
	query = `<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log><attached_gpus>1</attached_gpus>
<gpu id="00000000:36:00.0"><product_name>NVIDIA A100-SXM4-40GB</product_name>
<mig_mode><current_mig>Enabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode>
<mig_devices>
<mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id><compute_instance_id>0</compute_instance_id></mig_device>
<mig_device><index>1</index><gpu_instance_id>9</gpu_instance_id><compute_instance_id>0</compute_instance_id></mig_device>
</mig_devices>
<uuid>GPU-5d5ba0d6</uuid>
<processes><process_info><gpu_instance_id>1</gpu_instance_id><compute_instance_id>0</compute_instance_id><pid>4559</pid><type>C</type></process_info>
<process_info><gpu_instance_id>N/A</gpu_instance_id><pid>77</pid><type>C</type></process_info></processes>
</gpu></nvidia_smi_log>`
)

// parse reads a GPU from the outputs of the commands.
func parse(lgip, lgipp, lgi, lci, list, query string) (*GPU, error) {
	g, devices, processes, err := ParseQuery(query)
	if err != nil {
		return nil, err
	}
	if g.Profiles, err = ParseProfiles(lgip, lgipp); err != nil {
		return nil, err
	}
	if g.Instances, err = ParseInstances(lgi); err != nil {
		return nil, err
	}
	if err := ParseCompute(lci, g.Instances); err != nil {
		return nil, err
	}
	return &g, g.Assign(devices, processes, ParseUUIDs(list, g.UUID))
}

func TestParse(t *testing.T) {
	g, err := parse(lgip, lgipp, lgi, lci, list, query)
	if err != nil {
		t.Fatal(err)
	}
	if p := g.Profiles[2]; len(g.Profiles) != 6 || p.Name != "2g.10gb" || p.ID != 14 || p.Most != 3 || p.GiB != 9.75 || p.SMs != 28 || p.Size != 2 || !slices.Equal(p.Starts, []int{0, 2, 4}) {
		t.Errorf("profiles %+v", g.Profiles)
	}
	want := []Instance{
		{1, "3g.20gb", 4, 4, []Compute{{0, 2, "3g.20gb", 0, "MIG-c7384736-a75d-5afc-978f-d2f1294409fd"}}, []int{4559}},
		{9, "1g.5gb", 0, 1, []Compute{{0, 0, "1g.5gb", 0, "MIG-a28ad590-3fda-56dd-84fc-0a0b96edc58d"}}, nil},
	}
	if fmt.Sprint(g.Instances) != fmt.Sprint(want) {
		t.Errorf("instances %+v\nwant %+v", g.Instances, want)
	}
	if !g.Supported || !g.Enabled || !slices.Equal(g.Busy, []int{77}) || g.PCI != "00000000:36:00.0" {
		t.Errorf("%+v", g)
	}
	if id, err := ParseCreated("Successfully created GPU instance ID 13 on GPU  0 using profile MIG 1g.5gb (ID 19)\n"); id != 13 || err != nil {
		t.Errorf("created %d, %v", id, err)
	}
}

func TestParseWrong(t *testing.T) {
	for _, tt := range []struct{ name, old, new string }{
		{"profile", "|   0  MIG 2g.10gb       14     3/3 ", "|   0  MIG 2g.10gb       14     3-3 "},
		{"memory that is no number", "9.75 ", "NaN  "},
		{"memory below nothing", "9.75 ", "-9.7 "},
		{"memory without end", "9.75 ", "1e99 "},
		{"a placement twice", "{0,2,4}:2", "{0,2,2}:2"},
		{"placement beyond the memory", "{0}:8", "{0,31}:8"},
		{"placement of no size", "{0}:8", "{0}:0"},
		{"instance", "9        1          4:4 ", "9        x          4:4 "},
		{"instance beyond the memory", "4:4 ", "40:4"},
		{"compute instance", "   0      9       MIG", "   0      9       XXX"},
		{"no XML", "<nvidia_smi_log>", ""},
		{"two GPUs", "</gpu>", `</gpu><gpu id="2"></gpu>`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := strings.NewReplacer(tt.old, tt.new)
			if _, err := parse(r.Replace(lgip), r.Replace(lgipp), r.Replace(lgi), r.Replace(lci), list, r.Replace(query)); err == nil {
				t.Error("parsed")
			}
		})
	}
}

// A process whose ID nvidia-smi does not know keeps its instance.
func TestProcessWithoutID(t *testing.T) {
	g, err := parse(lgip, lgipp, lgi, lci, list, strings.Replace(query, "<pid>4559</pid>", "<pid>0</pid>", 1))
	if err != nil {
		t.Fatal(err)
	}
	if len(g.Instances[0].Busy) != 1 {
		t.Errorf("instance %+v is unused", g.Instances[0])
	}
}

// A driver's list of profiles may make no sense: an error says which.
func TestNamesOfProfiles(t *testing.T) {
	for _, name := range []string{"1000000g.5gb", "17g.5gb", "-1g.5gb", "0g.5gb", "g.5gb", "1x.5gb", "+1g.5gb"} {
		g := a100(t)
		g.Profiles[0].Name = name
		if _, err := Make(g, []string{"2g.10gb"}); err == nil || !strings.Contains(err.Error(), "such as 3g.20gb") {
			t.Errorf("profile %q: %v", name, err)
		}
	}
}

// FuzzParse reads any output of nvidia-smi, and plans on what it says.
func FuzzParse(f *testing.F) {
	f.Add(lgip, lgipp, lgi, lci, list, query)
	f.Add("", "", "", "", "", query)
	f.Fuzz(func(t *testing.T, lgip, lgipp, lgi, lci, list, query string) {
		g, err := parse(lgip, lgipp, lgi, lci, list, query)
		if err != nil || len(g.Profiles) > 16 || len(g.Instances) > 7 {
			return
		}
		if _, err := json.Marshal(g); err != nil {
			t.Error(err)
		}
		for _, p := range g.Profiles {
			_, _ = Make(g, []string{p.Name})
		}
		_, _ = Off(g)
		_ = Restore(g, g)
	})
}

// a100 returns a GPU with instances, given as "3g.20gb@4", with a star if in use.
func a100(t testing.TB, instances ...string) *GPU {
	t.Helper()
	profiles, err := ParseProfiles(lgip, lgipp)
	if err != nil {
		t.Fatal(err)
	}
	g := &GPU{UUID: "GPU-1", Supported: true, Enabled: true, Pending: true, Profiles: profiles}
	for n, s := range instances {
		s, busy := strings.CutSuffix(s, "*")
		i := Instance{ID: n + 1, Compute: []Compute{{ID: 0}}}
		if _, err := fmt.Sscanf(strings.Replace(s, "@", " ", 1), "%s %d", &i.Profile, &i.Start); err != nil {
			t.Fatal(err)
		}
		i.Size = profiles[g.profile(i.Profile)].Size
		if busy {
			i.Busy = []int{100 + n}
		}
		g.Instances = append(g.Instances, i)
	}
	return g
}

func TestMake(t *testing.T) {
	for _, tt := range []struct {
		name  string
		have  []string
		want  []string
		steps string // or the error
	}{
		{"empty", nil, []string{"3g.20gb", "1g.5gb"}, "create 3g.20gb at slice 0; create 1g.5gb at slice 4"},
		{"as wanted", []string{"3g.20gb@4*", "1g.5gb@0"}, []string{"1g.5gb", "3g.20gb"}, ""},
		{"one more", []string{"3g.20gb@4*"}, []string{"3g.20gb", "2g.10gb"}, "create 2g.10gb at slice 0"},
		{"one less", []string{"3g.20gb@4*", "3g.20gb@0"}, []string{"3g.20gb"}, "destroy instance 2 (3g.20gb at slice 0)"},
		{"a move", []string{"1g.5gb@0*", "1g.5gb@4"}, []string{"1g.5gb", "1g.5gb", "3g.20gb"}, "destroy instance 2 (1g.5gb at slice 4); create 1g.5gb at slice 1; create 3g.20gb at slice 4"},
		{"in the way and in use", []string{"1g.5gb@0*", "1g.5gb@4*"}, []string{"1g.5gb", "1g.5gb", "3g.20gb"}, "GPU-1 is in use: instance 1 (1g.5gb) by processes 100, instance 2 (1g.5gb) by processes 101"},
		{"unwanted and in use", []string{"3g.20gb@4*"}, nil, "GPU-1 is in use: instance 1 (3g.20gb) by processes 100"},
		{"none", []string{"3g.20gb@4", "1g.5gb@0"}, nil, "destroy instance 1 (3g.20gb at slice 4); destroy instance 2 (1g.5gb at slice 0)"},
		{"too much", nil, []string{"4g.20gb", "4g.20gb"}, "no room for 4g.20gb, 4g.20gb together"},
		{"one of a kind", nil, []string{"1g.5gb+me", "1g.5gb+me"}, "no room"},
		{"unknown", nil, []string{"9g"}, "has no profile \"9g\": it has 1g.5gb, 1g.5gb+me"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := Make(a100(t, tt.have...), tt.want)
			if err != nil {
				if tt.steps == "" || !strings.Contains(err.Error(), tt.steps) {
					t.Errorf("%v, want %q", err, tt.steps)
				}
				return
			}
			if got := text(p); got != tt.steps {
				t.Errorf("%q, want %q", got, tt.steps)
			}
		})
	}
}

func text(p Plan) string {
	var out []string
	for _, s := range p.Steps {
		out = append(out, s.String())
	}
	return strings.Join(out, "; ")
}

func TestMode(t *testing.T) {
	off := &GPU{UUID: "GPU-1", Supported: true}
	if p, err := Make(off, []string{"1g.5gb"}); text(p) != "enable MIG mode" || !p.Again || err != nil {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := Off(off); len(p.Steps) > 0 || err != nil {
		t.Errorf("off already: %+v, %v", p, err)
	}
	off.Busy = []int{5}
	if _, err := Make(off, nil); !errors.As(err, new(*BusyError)) {
		t.Errorf("in use: %v", err)
	}
	if _, err := Make(&GPU{UUID: "GPU-1", Supported: true, Pending: true}, nil); !errors.As(err, new(ResetError)) {
		t.Errorf("pending: %v", err)
	}
	if _, err := Make(&GPU{UUID: "GPU-1"}, nil); err == nil {
		t.Error("a GPU without MIG was divided")
	}
	if p, err := Off(a100(t, "1g.5gb@0")); text(p) != "destroy instance 1 (1g.5gb at slice 0); disable MIG mode" || err != nil {
		t.Errorf("%+v, %v", p, err)
	}
	if _, err := Off(a100(t, "1g.5gb@0*")); !errors.As(err, new(*BusyError)) {
		t.Errorf("in use: %v", err)
	}
}

// TestPlanProperty carries out plans of random states, and stops some half-way. No
// plan touches an instance in use or lets two overlap; the way back restores
// everything.
func TestPlanProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		base := a100(&testing.T{})
		g := *base
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, len(g.Profiles)-1), 0, 5).Draw(t, "have") {
			if p, err := Make(&g, append(have(&g), g.Profiles[n].Name)); err == nil {
				carry(t, &g, p.Steps)
			}
		}
		for n := range g.Instances {
			if rapid.Bool().Draw(t, "busy") {
				g.Instances[n].Busy = []int{1}
			}
		}
		var want []string
		for _, n := range rapid.SliceOfN(rapid.IntRange(0, len(g.Profiles)-1), 0, 7).Draw(t, "want") {
			want = append(want, g.Profiles[n].Name)
		}
		p, err := Make(&g, want)
		if err != nil {
			return
		}
		before := g
		before.Instances = slices.Clone(g.Instances)
		stop := rapid.IntRange(0, len(p.Steps)).Draw(t, "stop")
		carry(t, &g, p.Steps[:stop])
		if stop == len(p.Steps) {
			slices.Sort(want)
			if got := have(&g); !slices.Equal(got, want) {
				t.Fatalf("%q, want %q", got, want)
			}
		}
		carry(t, &g, Restore(&g, &before).Steps)
		if left := Restore(&g, &before); len(left.Steps) > 0 || len(g.Instances) != len(before.Instances) {
			t.Fatalf("not restored: %+v", left)
		}
	})
}

func have(g *GPU) []string {
	var out []string
	for _, i := range g.Instances {
		out = append(out, i.Profile)
	}
	slices.Sort(out)
	return out
}

func carry(t *rapid.T, g *GPU, steps []Step) {
	g.Instances = slices.Clone(g.Instances)
	for _, s := range steps {
		switch s.Verb {
		case Destroy:
			n := slices.IndexFunc(g.Instances, func(i Instance) bool { return i.ID == s.Instance })
			if n < 0 || len(g.Instances[n].Busy) > 0 {
				t.Fatalf("%v of %+v", s, g.Instances)
			}
			g.Instances = slices.Delete(g.Instances, n, n+1)
		case Create:
			size := g.Profiles[g.profile(s.Profile)].Size
			id := 1
			for _, i := range g.Instances {
				id = max(id, i.ID+1)
				if s.Start < i.Start+i.Size && i.Start < s.Start+size {
					t.Fatalf("%v overlaps %+v", s, i)
				}
			}
			g.Instances = append(g.Instances, Instance{ID: id, Profile: s.Profile, Start: s.Start, Size: size, Compute: []Compute{{}}})
		default:
			t.Fatalf("%v", s)
		}
	}
}

package claims

import (
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

const header = `"apiVersion":"gpu.dxpu.dev/v1","kind":"LeaseParameters"`

// TestParameters: those of the claim take the place of those of the class, and none of a
// claim raises its priority.
func TestParameters(t *testing.T) {
	var p Parameters
	if err := p.Add([]byte(`{`+header+`,"priority":50,"class":"online","affinity":"a","preemptible":false}`), true); err != nil {
		t.Fatal(err)
	}
	for _, refused := range []string{`{` + header + `,"priority":51}`, `{` + header + `,"priority":50}`} {
		if err := p.Add([]byte(refused), false); err == nil || !strings.Contains(err.Error(), "only a device class") {
			t.Errorf("%s of a claim: error %v", refused, err)
		}
	}
	if err := p.Add([]byte(`{`+header+`,"class":"offline","sharing":"time","preemptible":true,"workload":"bert"}`), false); err != nil {
		t.Fatal(err)
	}
	part := &dxpuv1.LeaseSpec{Part: &dxpuv1.Part{MemoryBytes: 1, Compute: 2}}
	p.apply(part)
	want := &dxpuv1.LeaseSpec{
		Priority: 50, Preemptible: true,
		Part: &dxpuv1.Part{
			MemoryBytes: 1, Compute: 2, Class: dxpuv1.PartClass_PART_CLASS_OFFLINE, Share: dxpuv1.ShareMode_SHARE_MODE_TIME,
		},
		PartRules: &dxpuv1.PartRules{Affinity: "a", Workload: "bert"},
	}
	if !proto.Equal(part, want) {
		t.Errorf("the lease is\n%v, want\n%v", part, want)
	}
	whole := &dxpuv1.LeaseSpec{}
	p.apply(whole)
	if want := (&dxpuv1.LeaseSpec{Priority: 50, Preemptible: true}); !proto.Equal(whole, want) {
		t.Errorf("the lease of a whole GPU is\n%v, want\n%v", whole, want)
	}
}

// TestClaimBelowItsClass: a class of low priority, whose leases others may end, is cheap for its
// users; a claim does not leave it by parameters of its own.
func TestClaimBelowItsClass(t *testing.T) {
	for fields, want := range map[string]string{
		`"priority":0`:                       "may only lower",
		`"priority":-49`:                     "may only lower",
		`"preemptible":false`:                "choose another class",
		`"priority":-50,"preemptible":true`:  "",
		`"priority":-100,"class":"offline"`:  "",
		`"preemptible":false,"priority":-50`: "choose another class",
	} {
		var p Parameters
		if err := p.Add([]byte(`{`+header+`,"priority":-50,"preemptible":true}`), true); err != nil {
			t.Fatal(err)
		}
		if err := p.Add([]byte(`{`+header+`,`+fields+`}`), false); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", fields, err, want)
		}
		if *p.Priority > -50 || !*p.Preemptible {
			t.Errorf("%s: priority %d, preemptible %v", fields, *p.Priority, *p.Preemptible)
		}
	}
}

// TestParametersRefused: a claim is written by any user of the cluster.
func TestParametersRefused(t *testing.T) {
	for in, want := range map[string]string{
		``:                                          "EOF",
		`[]`:                                        "parameters",
		`{}`:                                        "want a LeaseParameters",
		`{` + header + `,"clas":"x"}`:               `no field "clas", but apiVersion, kind, class, sharing, affinity`,
		`{` + header + `,"class":7}`:                "class: got number; want a text",
		`{` + header + `,"priority":0.5}`:           "priority: got number 0.5; want a whole number",
		`{` + header + `,"preemptible":1}`:          "preemptible: got number; want true or false",
		`{` + header + `,"class":"x"}`:              "online or offline",
		`{` + header + `,"sharing":""x`:             "invalid character",
		`{` + header + `,"sharing":"mig"}`:          "space, time or partition",
		`{` + header + `,"priority":1}`:             "only a device class",
		`{` + header + `,"gangSize":2}`:             "1 to 253 bytes",
		`{` + header + `,"gang":"g"}`:               "gangSize 0 is not 2 to 64",
		`{` + header + `,"gang":"g","gangSize":65}`: "gangSize 65 is not 2 to 64",
		`{` + header + `,"gang":"g","gangSize":-2}`: "gangSize: got number -2; want a whole number of 0 or more",
		strings.Repeat(" ", maxParameters) + `{}`:   "at most",
	} {
		var p Parameters
		if err := p.Add([]byte(in), false); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40s: error %v, want %q", in, err, want)
		}
		if p != (Parameters{}) {
			t.Errorf("%.40s: %v is left", in, p)
		}
	}
}

// TestGangOfAClass: a class would join the jobs of all its users.
func TestGangOfAClass(t *testing.T) {
	var p Parameters
	raw := []byte(`{` + header + `,"gang":"train","gangSize":4}`)
	if err := p.Add(raw, true); err == nil || !strings.Contains(err.Error(), "not a device class") {
		t.Errorf("error %v", err)
	}
	if err := p.Add(raw, false); err != nil || p.Gang != "train" || p.GangSize != 4 {
		t.Errorf("%+v, %v", p, err)
	}
}

// TestGangName: tenants have one space of names, which namespaces and clusters share. The
// manager takes 1 to 63 of a-z, 0-9, '-', '_' and '.'.
func TestGangName(t *testing.T) {
	seen := map[string]bool{}
	for _, g := range [][3]string{
		{"k", "lab", "train"},
		{"k2", "lab", "train"},
		{"k", "lab2", "train"},
		{"k", "lab", "Train"},
		{"k", "la", "btrain"},
		{"k", "lab", "größe/1"},
		{"k", "lab", strings.Repeat("x", maxGangName)},
	} {
		name := GangName(g[0], g[1], g[2])
		if seen[name] || !regexp.MustCompile(`^[a-z0-9._-]{1,63}$`).MatchString(name) {
			t.Errorf("%q: name %q", g, name)
		}
		seen[name] = true
	}
}

package claims

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"strings"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The identity of the parameters in the opaque configuration of a claim or a device class.
const (
	ParametersVersion = "gpu.dxpu.dev/v1"
	ParametersKind    = "LeaseParameters"
)

// maxParameters is the API server's bound for opaque parameters, in bytes.
const maxParameters = 10 << 10

// Parameters are what a device class or a claim says about the leases of a request. A
// field that is empty says nothing.
type Parameters struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	// Class is "online" or "offline", Sharing "space", "time" or "partition": those of a part.
	Class   string `json:"class"`
	Sharing string `json:"sharing"`
	// Affinity, AntiAffinity, Exclusion and Workload are the rules of a part.
	Affinity     string `json:"affinity"`
	AntiAffinity string `json:"antiAffinity"`
	Exclusion    string `json:"exclusion"`
	Workload     string `json:"workload"`
	// Priority is that in the queue of the pool, -100 to 100. Only a device class, which an
	// administrator writes, may have one above 0, and a claim may only lower that of its class.
	Priority *int32 `json:"priority"`
	// Gang names the job of the claim's pod: GangSize is the number of GPUs of all its pods,
	// which are attached when all of them can be. Only a claim, not a device class, has it.
	Gang     string `json:"gang"`
	GangSize uint32 `json:"gangSize"`
	// Preemptible is whether the lease may be ended for one of higher priority. A claim cannot
	// take that back from its class.
	Preemptible *bool `json:"preemptible"`
}

var partClasses = map[string]dxpuv1.PartClass{
	"": 0, "online": dxpuv1.PartClass_PART_CLASS_ONLINE, "offline": dxpuv1.PartClass_PART_CLASS_OFFLINE,
}

var shareModes = map[string]dxpuv1.ShareMode{
	"": 0, "space": dxpuv1.ShareMode_SHARE_MODE_SPACE, "time": dxpuv1.ShareMode_SHARE_MODE_TIME, "partition": dxpuv1.ShareMode_SHARE_MODE_PARTITION,
}

// maxWords bounds in bytes what an error says of parameters: it comes into the status of each device
// and into the events of each pod of a claim.
const maxWords = 300

// Add reads parameters, which take the place of earlier ones, field by field. class is
// whether they are those of a device class.
func (p *Parameters) Add(raw []byte, class bool) error {
	err := p.add(raw, class)
	if err == nil || len(err.Error()) <= maxWords {
		return err
	}
	return errors.New(strings.ToValidUTF8(err.Error()[:maxWords], "") + " ...")
}

func (p *Parameters) add(raw []byte, class bool) error {
	if len(raw) > maxParameters {
		return fmt.Errorf("the parameters have %d bytes, at most %d", len(raw), maxParameters)
	}
	var next Parameters
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(&next); err != nil {
		return inWords(err)
	}
	if next.APIVersion != ParametersVersion || next.Kind != ParametersKind {
		return fmt.Errorf("the parameters are a %q of %q; want a %s of %s", next.Kind, next.APIVersion, ParametersKind, ParametersVersion)
	}
	if _, ok := partClasses[next.Class]; !ok {
		return fmt.Errorf("class %q is not online or offline", next.Class)
	}
	if _, ok := shareModes[next.Sharing]; !ok {
		return fmt.Errorf("sharing %q is not space, time or partition", next.Sharing)
	}
	if err := next.checkGang(class); err != nil {
		return err
	}
	if !class {
		if err := p.allows(next); err != nil {
			return err
		}
	}
	*p = Parameters{
		Class: cmp.Or(next.Class, p.Class), Sharing: cmp.Or(next.Sharing, p.Sharing),
		Affinity: cmp.Or(next.Affinity, p.Affinity), AntiAffinity: cmp.Or(next.AntiAffinity, p.AntiAffinity),
		Exclusion: cmp.Or(next.Exclusion, p.Exclusion), Workload: cmp.Or(next.Workload, p.Workload),
		Gang: cmp.Or(next.Gang, p.Gang), GangSize: cmp.Or(next.GangSize, p.GangSize),
		Priority: cmp.Or(next.Priority, p.Priority), Preemptible: cmp.Or(next.Preemptible, p.Preemptible),
	}
	return nil
}

// inWords says what is wrong with parameters in the words of those who write them.
func inWords(err error) error {
	if name, unknown := strings.CutPrefix(err.Error(), "json: unknown field "); unknown {
		return fmt.Errorf("the parameters have no field %s, but %s", name, strings.Join(fields(), ", "))
	}
	var wrong *json.UnmarshalTypeError
	if errors.As(err, &wrong) && wrong.Field != "" {
		want := map[reflect.Kind]string{reflect.String: "a text", reflect.Bool: "true or false", reflect.Uint32: "a whole number of 0 or more"}[wrong.Type.Kind()]
		return fmt.Errorf("the parameters: %s: got %s; want %s", wrong.Field, wrong.Value, cmp.Or(want, "a whole number"))
	}
	return fmt.Errorf("the parameters: %w", err)
}

// fields returns the names of the fields of parameters.
func fields() (out []string) {
	for _, f := range reflect.VisibleFields(reflect.TypeFor[Parameters]()) {
		out = append(out, f.Tag.Get("json"))
	}
	return out
}

// maxGang bounds a gang, as the manager does, and maxGangName its name.
const (
	maxGang     = 64
	maxGangName = 253
)

// checkGang reports what is wrong with the gang of parameters. A class would join the jobs of
// all its users.
func (p *Parameters) checkGang(class bool) error {
	switch {
	case p.Gang == "" && p.GangSize == 0:
		return nil
	case class:
		return fmt.Errorf("gang: only a claim may have one, not a device class")
	case p.Gang == "" || len(p.Gang) > maxGangName:
		return fmt.Errorf("gang %q is not a name of 1 to %d bytes", p.Gang, maxGangName)
	case p.GangSize < 2 || p.GangSize > maxGang:
		return fmt.Errorf("gangSize %d is not 2 to %d: it is the number of GPUs of all pods", p.GangSize, maxGang)
	}
	return nil
}

// GangName returns the name of a gang in the pool, whose tenant may have several namespaces and
// clusters: the name that its user gave, as far as the manager allows, and a hash.
func GangName(cluster, namespace, gang string) string {
	h := fnv.New64a()
	for _, part := range []string{cluster, namespace, gang} {
		fmt.Fprintf(h, "%d %s", len(part), part)
	}
	plain := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' || r == '.' || r == '_' {
			return r
		}
		return '-'
	}, gang)
	return fmt.Sprintf("k8s-%s-%016x", plain[:min(len(plain), 40)], h.Sum64())
}

// allows reports what a claim may not say after its class.
func (p *Parameters) allows(claim Parameters) error {
	switch {
	case claim.Priority != nil && *claim.Priority > 0:
		return fmt.Errorf("priority %d: only a device class may have one above 0", *claim.Priority)
	case claim.Priority != nil && p.Priority != nil && *claim.Priority > *p.Priority:
		return fmt.Errorf("priority %d: the device class has %d, which a claim may only lower", *claim.Priority, *p.Priority)
	case claim.Preemptible != nil && !*claim.Preemptible && p.Preemptible != nil && *p.Preemptible:
		return fmt.Errorf("preemptible is false, but the device class makes the lease preemptible: choose another class")
	}
	return nil
}

// apply writes the parameters into the spec of a lease. Those of parts hold for parts only.
func (p *Parameters) apply(s *dxpuv1.LeaseSpec) {
	if p.Priority != nil {
		s.Priority = *p.Priority
	}
	if p.Preemptible != nil {
		s.Preemptible = *p.Preemptible
	}
	if s.Part == nil {
		return
	}
	s.Part.Class, s.Part.Share = partClasses[p.Class], shareModes[p.Sharing]
	if p.Affinity != "" || p.AntiAffinity != "" || p.Exclusion != "" || p.Workload != "" {
		s.PartRules = &dxpuv1.PartRules{Affinity: p.Affinity, AntiAffinity: p.AntiAffinity, Exclusion: p.Exclusion, Workload: p.Workload}
	}
}

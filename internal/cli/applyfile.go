package cli

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"go.yaml.in/yaml/v4"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// maxSpecs bounds the file of "dxpu apply", in bytes: some thousand leases.
const maxSpecs = 1 << 20

// specs is the file of "dxpu apply".
type specs struct {
	Tenants []tenantSpec `yaml:"tenants"`
	Leases  []leaseSpec  `yaml:"leases"`
}

// tenantSpec is a tenant of the file. The keys are the flags of "dxpu tenant set".
type tenantSpec struct {
	Name        string            `yaml:"name"`
	Description string            `yaml:"description"`
	MaxGPUs     uint32            `yaml:"max-gpus"`
	MaxLeases   uint32            `yaml:"max-leases"`
	MaxGPUsOf   map[string]uint32 `yaml:"max-gpus-of"`
	MaxPriority *int32            `yaml:"max-priority"`
	Guaranteed  *uint32           `yaml:"guaranteed-gpus"`
	Weight      *uint32           `yaml:"weight"`
}

// leaseSpec is a lease of the file. The keys are the flags of "dxpu lease create".
type leaseSpec struct {
	Name         string            `yaml:"name"`
	Tenant       string            `yaml:"tenant"`
	Count        *uint32           `yaml:"count"`
	Model        string            `yaml:"model"`
	Memory       string            `yaml:"memory"`
	Kind         string            `yaml:"kind"`
	NVLink       string            `yaml:"nvlink"`
	SameBox      string            `yaml:"same-box"`
	Host         string            `yaml:"host"`
	HostLabel    map[string]string `yaml:"host-label"`
	BoxLabel     map[string]string `yaml:"box-label"`
	Toleration   []string          `yaml:"toleration"`
	GPU          []string          `yaml:"gpu"`
	GPUMemory    string            `yaml:"gpu-memory"`
	Compute      string            `yaml:"compute"`
	Class        string            `yaml:"class"`
	Share        string            `yaml:"share"`
	Affinity     string            `yaml:"affinity"`
	AntiAffinity string            `yaml:"anti-affinity"`
	Exclusion    string            `yaml:"exclusion"`
	Workload     string            `yaml:"workload"`
	HostDomain   string            `yaml:"host-domain"`
	Priority     int32             `yaml:"priority"`
	Preemptible  bool              `yaml:"preemptible"`
	Gang         string            `yaml:"gang"`
	GangSize     uint32            `yaml:"gang-size"`
	Expires      string            `yaml:"expires"`
	Start        string            `yaml:"start"`
	Duration     string            `yaml:"duration"`
	TTL          string            `yaml:"ttl"`
	Queue        bool              `yaml:"queue"`
	QueueTimeout string            `yaml:"queue-timeout"`
	Label        map[string]string `yaml:"label"`

	spec *dxpuv1.LeaseSpec
}

// specName is the form of the names of leases: that of a tenant.
var specName = regexp.MustCompile(`^[a-z0-9._-]{1,63}$`)

// parseSpecs reads and checks a file of "dxpu apply".
func parseSpecs(raw []byte) (s specs, err error) {
	if len(raw) > maxSpecs {
		return s, fmt.Errorf("the file is longer than %s", size(maxSpecs))
	}
	if err := yaml.Load(raw, &s, yaml.WithKnownFields(true)); err != nil {
		err = yamlError(err)
		return specs{}, withHint(err, `%s"dxpu apply --help" shows a file`, keyHint(err.Error()))
	}
	if err := emptyValue(raw); err != nil {
		return specs{}, err
	}
	if len(s.Tenants)+len(s.Leases) == 0 {
		return specs{}, withHint(fmt.Errorf("neither tenants nor leases"), `"dxpu apply --help" shows a file`)
	}
	seen := map[string]bool{}
	for i := range s.Tenants {
		if err := oneName(seen, "tenant", s.Tenants[i].Name); err != nil {
			return specs{}, err
		}
		if w := s.Tenants[i].Weight; w != nil && *w == 0 { // 0 would be the default
			return specs{}, fmt.Errorf("tenant %s: weight 0: want 1 to 1000", s.Tenants[i].Name)
		}
	}
	for i := range s.Leases {
		l := &s.Leases[i]
		if l.Tenant == "" {
			l.Tenant = "default"
		}
		if err := oneName(seen, "lease", l.Name); err != nil {
			return specs{}, err
		}
		if l.spec, err = l.message(); err != nil {
			return specs{}, fmt.Errorf("lease %s: %w", l.Name, err)
		}
	}
	return s, nil
}

// emptyValue returns an error if a key of a tenant or a lease has no value, as where the
// variable of a template is not set: a lease would go to any host, or to the tenant default.
func emptyValue(raw []byte) error {
	var doc map[string][]map[string]yaml.Node
	if yaml.Load(raw, &doc) != nil {
		return nil // it has anchors and aliases of a form that only the kinds allow
	}
	for _, kind := range []string{"tenants", "leases"} {
		for _, object := range doc[kind] {
			for _, key := range slices.Sorted(maps.Keys(object)) {
				v := object[key]
				if v.Kind == yaml.ScalarNode && (v.Value == "" || v.Tag == "!!null") && key != "description" {
					return fmt.Errorf("line %d: %s has no value; leave the key out, or give one", v.Line, key)
				}
			}
		}
	}
	return nil
}

var (
	unknownKey = regexp.MustCompile(`unknown key "([^"]+)"`)
	upperCase  = regexp.MustCompile(`([a-z])([A-Z])`)
)

// keyHint returns the key that an unknown one of a file probably means, also in the
// writing of the API: maxGpus and max_gpus are max-gpus.
func keyHint(text string) string {
	m := unknownKey.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	var keys []string
	for _, t := range []reflect.Type{reflect.TypeFor[specs](), reflect.TypeFor[tenantSpec](), reflect.TypeFor[leaseSpec]()} {
		for i := range t.NumField() {
			if key := t.Field(i).Tag.Get("yaml"); key != "" {
				keys = append(keys, key)
			}
		}
	}
	word := strings.ReplaceAll(strings.ToLower(upperCase.ReplaceAllString(m[1], "$1-$2")), "_", "-")
	if near := nearest(word, keys); near != "" && near != m[1] { // else it is at the wrong place
		return fmt.Sprintf("did you mean %q? ", near)
	}
	return ""
}

// oneName checks a name, and that it is the only one of its kind.
func oneName(seen map[string]bool, kind, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a %s has no name", kind)
	case !specName.MatchString(name):
		return fmt.Errorf("%s %.70q: a name is 1 to 63 of a-z, 0-9, '.', '_' and '-'", kind, name)
	case seen[kind+"/"+name]:
		return fmt.Errorf("%s %s is twice in the file", kind, name)
	}
	seen[kind+"/"+name] = true
	return nil
}

func (t *tenantSpec) message() *dxpuv1.Tenant {
	weight := uint32(1)
	if t.Weight != nil {
		weight = *t.Weight
	}
	return &dxpuv1.Tenant{Id: t.Name, Description: t.Description, Quota: &dxpuv1.Quota{
		MaxGpus: t.MaxGPUs, MaxLeases: t.MaxLeases, MaxGpusByModel: t.MaxGPUsOf, MaxPriority: t.MaxPriority, Weight: weight,
		GuaranteedGpus: t.Guaranteed,
	}}
}

func (l *leaseSpec) message() (*dxpuv1.LeaseSpec, error) {
	labels := map[string]string{nameLabel: l.Name}
	for k, v := range l.Label {
		if k == nameLabel {
			return nil, fmt.Errorf("the label %q is the name of the lease: write it as name", nameLabel)
		}
		labels[k] = v
	}
	// The values have the syntax of flags.
	o := &leaseFlags{}
	flags := pflag.NewFlagSet("", pflag.ContinueOnError)
	o.register(flags, "count")
	positiveDurationVar(flags, &o.queueFor, "queue-timeout", 0, "")
	values := []struct{ flag, text string }{
		{"memory", l.Memory},
		{"kind", l.Kind},
		{"nvlink", l.NVLink},
		{"same-box", l.SameBox},
		{"expires", l.Expires},
		{"start", l.Start},
		{"duration", l.Duration},
		{"ttl", l.TTL},
		{"queue-timeout", l.QueueTimeout},
		{"gpu-memory", l.GPUMemory},
		{"compute", l.Compute},
		{"class", l.Class},
		{"share", l.Share},
	}
	for _, t := range l.Toleration {
		values = append(values, struct{ flag, text string }{"toleration", t})
	}
	for _, v := range values {
		if v.text == "" {
			continue
		}
		if err := flags.Set(v.flag, v.text); err != nil {
			return nil, valueError(err)
		}
	}
	s := &o.spec
	count := max(1, uint32(len(l.GPU)))
	if l.Count != nil {
		count = *l.Count
	}
	s.Count, s.Model, s.HostId, s.HostLabels, s.BoxLabels, s.HostDomain = count, l.Model, l.Host, l.HostLabel, l.BoxLabel, l.HostDomain
	s.Tenant, s.Priority, s.Preemptible, s.Wait, s.Labels, s.GpuIds = l.Tenant, l.Priority, l.Preemptible, l.Queue, labels, l.GPU
	o.gang.Name, o.gang.Size = l.Gang, l.GangSize
	r := &o.part.rules
	r.Affinity, r.AntiAffinity, r.Exclusion, r.Workload = l.Affinity, l.AntiAffinity, l.Exclusion, l.Workload
	return o.message(), nil
}

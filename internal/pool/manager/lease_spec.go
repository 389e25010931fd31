package manager

import (
	"regexp"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// maxGPUs is the largest count of a lease: no server has more slots.
const maxGPUs = 64

var tenantPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,62}$`)

// checkSpec sets defaults and checks the spec. The error names the field.
func checkSpec(s *dxpuv1.LeaseSpec) error {
	switch {
	case s == nil:
		return invalid("spec: must be set")
	case s.Count < 1 || s.Count > maxGPUs:
		return invalid("spec.count: %d is not 1 to %d", s.Count, maxGPUs)
	case s.Priority < -100 || s.Priority > 100:
		return invalid("spec.priority: %d is not -100 to 100", s.Priority)
	case s.BoxKind < 0 || s.BoxKind > dxpuv1.BoxKind_BOX_KIND_NVLINK:
		return invalid("spec.box_kind: %d is unknown", s.BoxKind)
	case unknownPreference(s.Nvlink):
		return invalid("spec.nvlink: %d is unknown", s.Nvlink)
	case unknownPreference(s.SameBox):
		return invalid("spec.same_box: %d is unknown", s.SameBox)
	case s.SameBox == dxpuv1.Preference_PREFERENCE_AVOID && s.Nvlink == dxpuv1.Preference_PREFERENCE_REQUIRED:
		return invalid("spec.same_box: GPUs joined by NVLink are in one box; they cannot be spread")
	case s.BoxKind == dxpuv1.BoxKind_BOX_KIND_PCIE_SWITCH && s.Nvlink == dxpuv1.Preference_PREFERENCE_REQUIRED:
		return invalid("spec.box_kind: PCIe-switch boxes have no NVLink")
	}
	if s.Tenant == "" {
		s.Tenant = "default"
	}
	if !tenantPattern.MatchString(s.Tenant) {
		return invalid("spec.tenant: %q is not 1 to 63 of a-z, 0-9, '.', '_' and '-'", s.Tenant)
	}
	if err := checkDuration("spec.expires_after", s.ExpiresAfter); err != nil {
		return err
	}
	return checkDuration("spec.wait_timeout", s.WaitTimeout)
}

func unknownPreference(p dxpuv1.Preference) bool {
	return p < 0 || p > dxpuv1.Preference_PREFERENCE_AVOID
}

func checkDuration(field string, d *durationpb.Duration) error {
	if d == nil {
		return nil
	}
	if err := d.CheckValid(); err != nil || d.AsDuration() <= 0 || d.AsDuration() > 10*365*24*time.Hour {
		return invalid("%s: must be positive and at most ten years", field)
	}
	return nil
}

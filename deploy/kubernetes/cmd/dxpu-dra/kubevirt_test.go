package main

import (
	"bytes"
	"strings"
	"testing"
)

// TestKubeVirtHook runs the program as KubeVirt's sidecar-shim does.
func TestKubeVirtHook(t *testing.T) {
	const domain = `<domain type="kvm"><os><type machine="q35">hvm</type></os></domain>`
	vmi := func(resources string) string { return `{"spec":{"domain":{"resources":` + resources + `}}}` }
	for name, tc := range map[string]struct {
		vmi, domain string
		devices     int
		err         string
	}{
		"two GPUs":        {vmi: vmi(`{"limits":{"dxpu.dev/gpu":"2","memory":"4Gi"}}`), domain: domain, devices: 2},
		"by its requests": {vmi: vmi(`{"requests":{"dxpu.dev/gpu":1}}`), domain: domain, devices: 1},
		"none":            {vmi: vmi(`{}`), domain: domain},
		"too many":        {vmi: vmi(`{"limits":{"dxpu.dev/gpu":"9"}}`), domain: domain, err: "asks for 9 of dxpu.dev/gpu: want 0 to 8"},
		"a part":          {vmi: vmi(`{"limits":{"dxpu.dev/gpu":"500m"}}`), domain: domain, err: "asks for 500m"},
		"below zero":      {vmi: vmi(`{"limits":{"dxpu.dev/gpu":"-1"}}`), domain: domain, err: "asks for -1"},
		"no VM":           {vmi: `[]`, domain: domain, err: "--vmi"},
		"no domain":       {vmi: vmi(`{}`), err: "--domain is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			code := run(t.Context(), arguments([]string{"/usr/bin/onDefineDomain", "--vmi", tc.vmi, "--domain", tc.domain}), &out, &errs)
			if (code == 0) != (tc.err == "") || !strings.Contains(errs.String(), tc.err) {
				t.Fatalf("exit code %d: %s", code, &errs)
			}
			if n := strings.Count(out.String(), "vfio-user-pci"); n != tc.devices || tc.err == "" && !strings.HasPrefix(out.String(), "<domain") || tc.err != "" && out.Len() > 0 {
				t.Errorf("%d devices:\n%s", n, &out)
			}
		})
	}
}

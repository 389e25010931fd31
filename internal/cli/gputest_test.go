package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/dxpu-project/dxpu/device/gpu/driver"
)

func runGPU(t *testing.T, args ...string) (string, error) {
	t.Helper()
	cmd := newGPUGroup(&connection{})
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(t.Context())
	return out.String(), err
}

func TestGPUTestEmbedded(t *testing.T) {
	out, err := runGPU(t, "test", "--embedded", "--quick")
	if err != nil || !strings.Contains(out, "checks passed") || strings.Contains(out, "FAIL") {
		t.Errorf("%v\n%s", err, out)
	}
	out, err = runGPU(t, "test", "--embedded", "--quick", "--polling", "--json")
	var r driver.Report
	if err != nil || json.Unmarshal([]byte(out), &r) != nil || !r.OK || len(r.Checks) == 0 {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestGPUTestRefuses(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
	}{
		{"address that is not there", []string{"test", "--pci", "fe:1f.7"}},
		{"bad address", []string{"test", "--pci", "../.."}},
		{"argument", []string{"test", "now"}},
		{"two devices", []string{"test", "--pci", "01:00.0", "--embedded"}},
	} {
		if out, err := runGPU(t, c.args...); err == nil {
			t.Errorf("%s: no error\n%s", c.name, out)
		}
	}
}

package gpu_test

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/pcie"
)

func TestSpecYAML(t *testing.T) {
	text := `
model: Big
serial: 0x1122334455667788
vram: 17179869184
tags: 256
max_read_request: 4096
generation: 4
copy_engines: 4
intx: true
completion_timeout: 500ms
fp32: 19.5e12
`
	want := gpu.Spec{
		Model: "Big", Serial: 0x1122334455667788, VRAM: 16 << 30, Tags: 256, MaxReadRequest: 4096, Generation: pcie.Gen4,
		CopyEngines: 4, INTx: true, CompletionTimeout: 500 * time.Millisecond, FP32: 19.5e12,
	}
	var got gpu.Spec
	if err := yaml.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	b, err := yaml.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	got = gpu.Spec{}
	if err := yaml.Unmarshal(b, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

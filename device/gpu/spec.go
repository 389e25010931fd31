package gpu

import (
	"cmp"
	"fmt"
	"math/bits"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu/reg"
	"github.com/dxpu-project/dxpu/pcie"
)

// Spec describes a software GPU. The zero value of a field means its default, so
// the zero Spec is a GPU.
type Spec struct {
	Model  string `yaml:"model,omitempty"`  // up to 63 bytes of ASCII; "DxPU software GPU"
	Serial uint64 `yaml:"serial,omitempty"` // Device Serial Number

	VRAM     int64 `yaml:"vram,omitempty"`     // bytes, a multiple of 64 KiB up to 1 TiB; 256 MiB. Writes allocate it
	Aperture int64 `yaml:"aperture,omitempty"` // bytes of BAR 2, a power of two from 64 KiB; 64 MiB, or less when VRAM is less

	// Tags is the number of DMA reads that may be outstanding, 1 to 1024; 140,
	// as the paper found in a physical GPU (section 3.4.1). Without limits of the
	// owner (SetLimits), Device Control limits it further: more than 256 take effect
	// only once software enables 10-bit tags.
	Tags int `yaml:"tags,omitempty"`
	// MaxReadRequest bounds a DMA read, together with Device Control or the limits
	// of the owner; 4096. The physical GPU of the paper uses 128.
	MaxReadRequest pcie.PayloadSize `yaml:"max_read_request,omitempty"`
	// MaxPayload is Max_Payload_Size Supported; 4096.
	MaxPayload pcie.PayloadSize `yaml:"max_payload,omitempty"`

	Generation  pcie.Generation `yaml:"generation,omitempty"`   // 3
	Width       int             `yaml:"width,omitempty"`        // lanes: 16
	CopyEngines int             `yaml:"copy_engines,omitempty"` // queues that move data at one time, 1 to 8; 2
	Queues      int             `yaml:"queues,omitempty"`       // 1 to 8; 8
	Vectors     int             `yaml:"vectors,omitempty"`      // MSI-X vectors, 1 to 64; 16
	INTx        bool            `yaml:"intx,omitempty"`         // wire interrupt pin A, for UIO

	// CompletionTimeout holds while Device Control 2 has the reset value; 10 s, which is
	// longer than the link to a host bears silence. So an answer that busy processors
	// delay is not missed, and the end of the link resets the GPU before.
	CompletionTimeout time.Duration `yaml:"completion_timeout,omitempty"`

	// Multiprocessors is their number, for the shares of slices, 1 to 4096; 80, as in
	// the V100 of the rates below.
	Multiprocessors int `yaml:"multiprocessors,omitempty"`
	// Rates that determine the run time of a kernel in virtual time.
	// The defaults are those of the paper's NVIDIA V100: 900 GB/s, 15.7, 7.8 and 125 TFLOPS.
	MemoryBandwidth float64 `yaml:"memory_bandwidth,omitempty"` // bytes per second
	FP16            float64 `yaml:"fp16,omitempty"`             // floating-point operations per second
	FP32            float64 `yaml:"fp32,omitempty"`
	FP64            float64 `yaml:"fp64,omitempty"`
}

const (
	maxVRAM            = 1 << 40
	maxMultiprocessors = 4096
)

// withDefaults fills in the defaults.
func (s Spec) withDefaults() Spec {
	s.Model = cmp.Or(s.Model, "DxPU software GPU")
	s.VRAM = cmp.Or(s.VRAM, 256<<20)
	if s.Aperture == 0 && s.VRAM > 0 {
		s.Aperture = min(64<<20, int64(1)<<bits.Len64(uint64(s.VRAM-1)))
	}
	s.Tags = cmp.Or(s.Tags, 140)
	s.MaxReadRequest = cmp.Or(s.MaxReadRequest, pcie.MaxPayload)
	s.MaxPayload = cmp.Or(s.MaxPayload, pcie.MaxPayload)
	s.Generation = cmp.Or(s.Generation, pcie.Gen3)
	s.Width = cmp.Or(s.Width, 16)
	s.CopyEngines = cmp.Or(s.CopyEngines, 2)
	s.Queues = cmp.Or(s.Queues, reg.DefaultQueues)
	s.Vectors = cmp.Or(s.Vectors, 16)
	s.CompletionTimeout = cmp.Or(s.CompletionTimeout, 10*time.Second)
	s.Multiprocessors = cmp.Or(s.Multiprocessors, 80)
	s.MemoryBandwidth = cmp.Or(s.MemoryBandwidth, 900e9)
	s.FP16 = cmp.Or(s.FP16, 125e12)
	s.FP32 = cmp.Or(s.FP32, 15.7e12)
	s.FP64 = cmp.Or(s.FP64, 7.8e12)
	return s
}

// check reports the first field out of bounds. Generation and width are
// checked where the configuration space is built.
func (s Spec) check() error {
	bad := func(field string, v any, want string) error {
		return fmt.Errorf("gpu: %s %v: want %s", field, v, want)
	}
	for _, c := range s.Model {
		if c < ' ' || c > '~' {
			return bad("model", fmt.Sprintf("%q", s.Model), "ASCII")
		}
	}
	switch {
	case len(s.Model) >= reg.ModelSize:
		return bad("model", s.Model, "up to 63 bytes")
	case s.VRAM < chunkSize || s.VRAM > maxVRAM || s.VRAM%chunkSize != 0:
		return bad("vram", s.VRAM, "a multiple of 64 KiB up to 1 TiB")
	case s.Aperture < reg.ApertureAlign || s.Aperture > maxVRAM || s.Aperture&(s.Aperture-1) != 0:
		return bad("aperture", s.Aperture, "a power of two from 64 KiB to 1 TiB")
	case s.Tags < 1 || s.Tags > pcie.MaxTags:
		return bad("tags", s.Tags, "1 to 1024")
	case !s.MaxReadRequest.Valid():
		return bad("max_read_request", s.MaxReadRequest, "a power of two from 128 to 4096")
	case !s.MaxPayload.Valid():
		return bad("max_payload", s.MaxPayload, "a power of two from 128 to 4096")
	case s.CopyEngines < 1 || s.CopyEngines > reg.DefaultQueues:
		return bad("copy_engines", s.CopyEngines, "1 to 8")
	case s.Queues < 1 || s.Queues > reg.DefaultQueues:
		return bad("queues", s.Queues, "1 to 8")
	case s.Vectors < 1 || s.Vectors > reg.MaxVectors:
		return bad("vectors", s.Vectors, "1 to 64")
	case s.Multiprocessors < 1 || s.Multiprocessors > maxMultiprocessors:
		return bad("multiprocessors", s.Multiprocessors, "1 to 4096")
	case s.CompletionTimeout < 0:
		return bad("completion_timeout", s.CompletionTimeout, "a positive duration")
	case !(s.MemoryBandwidth > 0) || !(s.FP16 > 0) || !(s.FP32 > 0) || !(s.FP64 > 0):
		return bad("rates", []float64{s.MemoryBandwidth, s.FP16, s.FP32, s.FP64}, "positive numbers")
	}
	return nil
}

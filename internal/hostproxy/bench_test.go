package hostproxy_test

import (
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/device/gpu/driver/vfiouserbus"
)

// BenchmarkProxies measures a driver's accesses and copies from end to end: both
// proxies, two sockets on loopback, one process. Sizes are those of a platform
// that allows 4 KiB payloads and read requests.
func BenchmarkProxies(b *testing.B) {
	const size = 4096
	for _, c := range []struct {
		name   string
		inside bool
		cipher dxpuv1.Cipher
	}{
		{"vfio-user", false, dxpuv1.Cipher_CIPHER_AES_256_GCM},
		{"vfio-user-clear", false, dxpuv1.Cipher_CIPHER_NONE},
		{"embedded", true, dxpuv1.Cipher_CIPHER_AES_256_GCM},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newCluster(b, options{
				inside: c.inside, cipher: c.cipher,
				spec: gpu.Spec{MaxPayload: size, MaxReadRequest: size},
			})
			r.attach(0, 0, 0, 0)
			bus, dev := r.openWith(0, 0, vfiouserbus.Options{MaxPayload: size, MaxReadRequest: size})
			defer closeBoth(b, bus, dev)
			b.Run("read", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					dev.Registers().Read32(scratch)
				}
			})
			b.Run("write", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					dev.Registers().Write32(scratch, 1)
				}
				check(b, dev.Flush())
			})
			s, err := dev.NewStream()
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			const n = 4 << 20
			m, err := dev.AllocDMA(n)
			if err != nil {
				b.Fatal(err)
			}
			for name, start := range map[string]func() error{
				"to-device": func() error { return s.CopyToDevice(b.Context(), 0, m, 0, n) },
				"to-host":   func() error { return s.CopyToHost(b.Context(), m, 0, 0, n) },
			} {
				b.Run(name, func(b *testing.B) {
					b.SetBytes(n)
					b.ReportAllocs()
					for b.Loop() {
						check(b, start())
						check(b, s.Sync(b.Context()))
					}
					b.ReportMetric(metric(b, r.hosts[0], "link_retransmissions_total"), "host-retransmissions")
					b.ReportMetric(metric(b, r.boxes[0], "link_retransmissions_total"), "box-retransmissions")
				})
			}
		})
	}
}

package bench

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/dxpu-project/dxpu/device/gpu"
	"github.com/dxpu-project/dxpu/internal/dataplane/udp"
	"github.com/dxpu-project/dxpu/internal/rawio/reader"
	"github.com/dxpu-project/dxpu/link"
)

// childFlag names the environment variable that makes a process of the test binary a
// child of a benchmark.
const childFlag = "DXPU_BENCH_CHILD"

func TestMain(m *testing.M) {
	reader.ReserveProcessors() // as the programs do whose figures the benchmarks explain
	if os.Getenv(childFlag) != "" {
		if err := Serve(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// options returns the options of the benchmarks below: each proxy runs in its own
// process, so that profiles and traces show one side at a time.
func options(b *testing.B, c link.Cipher) Options {
	b.Helper()
	b.Setenv(childFlag, "1") // inherited by the other processes
	return Options{Cipher: c, Polling: reader.Polling{Window: reader.DefaultWindow}, Child: []string{os.Args[0]}, Profile: os.Getenv("DXPU_BENCH_PROFILE")}.withDefaults()
}

func eachPair(b *testing.B, spec pairSpec, f func(b *testing.B, dev *opened)) {
	for _, c := range []link.Cipher{link.CipherAES256GCM, link.CipherNone} {
		for _, vm := range []bool{false, true} {
			spec.vm = vm
			b.Run(fmt.Sprintf("%s/%v", map[bool]string{false: "embedded", true: "vfio-user"}[vm], c), func(b *testing.B) {
				o := options(b, c)
				p, dev, err := o.ready(b.Context(), spec)
				if err != nil {
					b.Fatal(err)
				}
				f(b, dev)
				b.StopTimer()
				if err := dev.close(); err != nil {
					b.Error(err)
				}
				if err := p.close(); err != nil {
					b.Error(err)
				}
			})
		}
	}
}

// A register read allocates no memory, from the driver to the GPU and back.
func TestRegisterReadAllocatesNothing(t *testing.T) {
	_, dev, err := newNative(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	read := readRegister(dev.Device)
	if n := testing.AllocsPerRun(500, func() { // fewer than change the register
		if err := read(); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if err := dev.close(); err != nil {
		t.Error(err)
	}
}

func BenchmarkRegisterRead(b *testing.B) {
	eachPair(b, pairSpec{slots: 1}, func(b *testing.B, dev *opened) {
		read := readRegister(dev.Device)
		b.ReportAllocs()
		for b.Loop() {
			if err := read(); err != nil {
				b.Fatal(err)
			}
		}
	})
}

func BenchmarkPostedWrite(b *testing.B) {
	eachPair(b, pairSpec{slots: 1}, func(b *testing.B, dev *opened) {
		regs := dev.Registers()
		b.ReportAllocs()
		for n := uint32(1); b.Loop(); n++ {
			if regs.Write32(scratch(n), n); n%writeBurst == 0 {
				if err := dev.Flush(); err != nil {
					b.Fatal(err)
				}
			}
		}
		if err := dev.Flush(); err != nil {
			b.Fatal(err)
		}
	})
}

func BenchmarkCopy(b *testing.B) {
	for name, w := range map[string]way{"to device": hostToDevice, "to host": deviceToHost, "CPU writes": cpuWrites} {
		b.Run(name, func(b *testing.B) {
			eachPair(b, pairSpec{slots: 1, gpu: gpu.Spec{Tags: dmaTags}}, func(b *testing.B, dev *opened) {
				c, err := newCopier(b.Context(), dev.Device, defaultSize)
				if err == nil {
					err = w.prepare(c)
				}
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(defaultSize)
				b.ReportAllocs()
				for b.Loop() {
					if err := w.once(c); err != nil {
						b.Fatal(err)
					}
				}
				if err := w.check(c); err != nil {
					b.Error(err)
				}
			})
		})
	}
}

// The bare limits of copies: a run of a second each.
func BenchmarkBareUDP(b *testing.B) {
	for _, memory := range []bool{false, true} {
		for _, c := range []link.Cipher{link.CipherAES256GCM, link.CipherNone} {
			b.Run(fmt.Sprintf("%v/%v", map[bool]string{false: "socket", true: "memory"}[memory], c), func(b *testing.B) {
				source := make([]byte, defaultSize)
				pattern(source, 1)
				u, err := newBulkUDP(c, udp.MaxDatagram, source, memory)
				if err != nil {
					b.Fatal(err)
				}
				defer u.close()
				for b.Loop() {
					rate, err := u.run(time.Second)
					if err != nil {
						b.Fatal(err)
					}
					b.ReportMetric(rate, "GB/s")
				}
			})
		}
	}
}

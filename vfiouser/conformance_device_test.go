package vfiouser

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"
)

var infoTests = []conformance{
	{"C_device_info", func(t *testing.T) {
		p, _ := serve(t).connect()
		want := le(16, 3, 9, 5)
		if r := p.ok(4, le(16, 0, 0, 0)); !bytes.Equal(r.body, want) {
			t.Errorf("% x, want % x", r.body, want)
		}
		if r := p.ok(4, le(32, 0, 0, 0)); !bytes.Equal(r.body, want) {
			t.Errorf("argsz 32: % x, want % x", r.body, want)
		}
		// rust-vmm's newer client reads the size that it sent, with cap_offset.
		if r := p.ok(4, le(36, 0, 0, 0, 0)); !bytes.Equal(r.body, append(want, 0, 0, 0, 0)) {
			t.Errorf("20 bytes: % x", r.body)
		}
		p.wantErr(unix.EINVAL, 4, le(8, 0, 0, 0))
	}},
	{"C_regions", func(t *testing.T) {
		p, _ := serve(t).connect()
		sizes := map[int]uint64{0: testBAR0, 2: testBAR2, 6: 2048, 7: testCfg}
		for i := range 9 {
			flags := 0
			if sizes[i] > 0 {
				flags = 3
			}
			if i == 6 {
				flags = 1
			}
			want := le(32, flags, i, 0, sizes[i], uint64(0))
			if r := p.ok(5, le(32, 0, i, 0, uint64(0), uint64(0))); !bytes.Equal(r.body, want) {
				t.Errorf("region %d: % x, want % x", i, r.body, want)
			}
		}
		p.wantErr(unix.EINVAL, 5, le(32, 0, 9, 0, uint64(0), uint64(0)))
		p.wantErr(unix.EINVAL, 5, le(31, 0, 0, 0, uint64(0), uint64(0)))
		if r := p.ok(6, le(16, 0, 0, 0)); !bytes.Equal(r.body, le(16, 0, 0, 0)) {
			t.Errorf("region io fds: % x", r.body)
		}
	}},
	{"C_irqs", func(t *testing.T) {
		p, _ := serve(t).connect()
		for i, want := range [][2]int{{7, 1}, {9, 32}, {1, 64}, {1, 1}, {1, 1}} {
			if r := p.ok(7, le(16, 0, i, 0)); !bytes.Equal(r.body, le(16, want[0], i, want[1])) {
				t.Errorf("index %d: % x", i, r.body)
			}
		}
		p.wantErr(unix.EINVAL, 7, le(16, 0, 5, 0))
	}},
	{"C_configuration_space_of_256_bytes", func(t *testing.T) {
		p, _ := serve(t, func(c *Config) { c.Regions[RegionConfig].Size = 256 }).connect()
		if r := p.ok(5, le(32, 0, 7, 0, uint64(0), uint64(0))); !bytes.Equal(r.body, le(32, 3, 7, 0, uint64(256), uint64(0))) {
			t.Errorf("% x", r.body)
		}
		if r := p.ok(9, access(7, 0, 256)); len(r.body) != 16+256 {
			t.Errorf("%d bytes", len(r.body))
		}
		p.wantErr(unix.EINVAL, 9, access(7, 256, 4))
	}},
	{"C_sparse_mmap_in_two_steps", func(t *testing.T) {
		mem, _ := memfd(t, testBAR0)
		p, _ := serve(t, func(c *Config) {
			c.Regions[0].File = mem
			c.Regions[0].FileOffset = 0
			c.Regions[0].Sparse = []SparseArea{{0x1000, 0x2000}, {0x8000, 0x1000}}
		}).connect()
		r := p.ok(5, le(32, 0, 0, 0, uint64(0), uint64(0)))
		if !bytes.Equal(r.body, le(80, 7, 0, 0, uint64(testBAR0), uint64(0))) || len(r.fds) != 0 {
			t.Errorf("first: % x with %d descriptors", r.body, len(r.fds))
		}
		r = p.ok(5, le(80, 0, 0, 0, uint64(0), uint64(0)))
		want := le(80, 15, 0, 32, uint64(testBAR0), uint64(0), 1<<16|1, 0, 2, 0,
			uint64(0x1000), uint64(0x2000), uint64(0x8000), uint64(0x1000))
		if !bytes.Equal(r.body, want) || len(r.fds) != 1 {
			t.Errorf("second: % x with %d descriptors, want % x", r.body, len(r.fds), want)
		}
		new(Disposer).Close(r.fds)
	}},
	{"C_whole_region_mmap", func(t *testing.T) {
		mem, _ := memfd(t, testBAR0)
		p, _ := serve(t, func(c *Config) { c.Regions[0].File = mem }).connect()
		r := p.ok(5, le(32, 0, 0, 0, uint64(0), uint64(0)))
		if !bytes.Equal(r.body, le(32, 7, 0, 0, uint64(testBAR0), uint64(0))) || len(r.fds) != 1 {
			t.Errorf("% x with %d descriptors", r.body, len(r.fds))
		}
		new(Disposer).Close(r.fds)
	}},
	{"C_configurations_that_kill_VMMs", func(t *testing.T) {
		for name, change := range map[string]func(*Config){
			"BAR not a power of two":    func(c *Config) { c.Regions[0].Size = 3 << 12 },
			"config size":               func(c *Config) { c.Regions[RegionConfig].Size = 512 },
			"no config":                 func(c *Config) { c.Regions[RegionConfig].Size = 0 },
			"data below config":         func(c *Config) { c.MaxData = 2048 },
			"data above QEMU's":         func(c *Config) { c.MaxData = 2 << 20 },
			"vectors":                   func(c *Config) { c.IRQs[IRQMSIX] = 2049 },
			"no handler":                func(c *Config) { c.Handler = nil },
			"unknown region flag":       func(c *Config) { c.Regions[0].Flags = 4 },
			"negative bound":            func(c *Config) { c.MaxOpen = -1 },
			"more areas than we accept": func(c *Config) { c.Regions[0].Sparse = make([]SparseArea, 65) },
		} {
			cfg, _ := testConfig()
			change(&cfg)
			if _, err := NewServer(cfg); err == nil {
				t.Errorf("%s: accepted", name)
			}
		}
	}},
}

var configTests = []conformance{
	{"D_every_offset_and_width", func(t *testing.T) {
		f := serve(t)
		p, _ := f.connect()
		for off := range 256 {
			for _, n := range []int{1, 2, 4} {
				if off+n > testCfg {
					continue
				}
				r := p.ok(9, access(7, uint64(off), n))
				if !bytes.Equal(r.body[:16], access(7, uint64(off), n)) || !bytes.Equal(r.body[16:], f.dev.peek(7, off, n)) {
					t.Fatalf("read of %d at %#x: % x", n, off, r.body)
				}
			}
		}
		if r := p.ok(9, access(7, 0, 4096)); !bytes.Equal(r.body[16:], f.dev.peek(7, 0, testCfg)) {
			t.Error("read of all")
		}
	}},
	{"D_sizing_writes_reach_the_device", func(t *testing.T) {
		f := serve(t)
		p, _ := f.connect()
		if r := p.ok(10, access(7, 0x10, 4, 0xff, 0xff, 0xff, 0xff)); !bytes.Equal(r.body, access(7, 0x10, 4)) {
			t.Errorf("write reply % x", r.body)
		}
		if !bytes.Equal(f.dev.peek(7, 0x10, 4), []byte{0xff, 0xff, 0xff, 0xff}) {
			t.Error("the write has not arrived")
		}
	}},
	{"D_MSIX_hidden_at_realize_only", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.HideMSIXAtRealize = true })
		for range 2 { // each connection realizes again
			p, _ := f.connect()
			if r := p.ok(9, access(7, 0x50, 1)); r.body[16] != 0x11 {
				t.Error("a small read is not the one")
			}
			r := p.ok(9, access(7, 0, 4096))
			want := f.dev.peek(7, 0, testCfg)
			want[0x50] = 0x09
			if !bytes.Equal(r.body[16:], want) {
				t.Error("the first read shows MSI-X, or changes more than its ID")
			}
			if r := p.ok(9, access(7, 0, 4096)); !bytes.Equal(r.body[16:], f.dev.peek(7, 0, testCfg)) {
				t.Error("the second read is not truthful")
			}
			_ = p.Close()
			<-f.dev.disconnected
		}
	}},
	{"D_MSIX_shown_by_default", func(t *testing.T) {
		p, _ := serve(t).connect()
		if r := p.ok(9, access(7, 0, 256)); r.body[16+0x50] != 0x11 {
			t.Error("hidden without being asked")
		}
	}},
}

var mmioTests = []conformance{
	{"E_sizes", func(t *testing.T) {
		p, _ := serve(t).connect()
		for _, n := range []int{1, 2, 4, 8} {
			data := []byte{1, 2, 3, 4, 5, 6, 7, 8}[:n]
			p.ok(10, access(0, 0x100, n, data...))
			if r := p.ok(9, access(0, 0x100, n)); !bytes.Equal(r.body[16:], data) {
				t.Errorf("%d bytes: % x", n, r.body[16:])
			}
		}
	}},
	{"E_bounds", func(t *testing.T) {
		f := serve(t)
		p, _ := f.connect()
		for name, a := range map[string]struct {
			region int
			off    uint64
		}{"end": {0, testBAR0 - 3}, "wrap": {0, 1<<64 - 2}, "no region": {1, 0}, "no index": {9, 0}, "negative index": {-1, 0}} {
			t.Run(name, func(t *testing.T) {
				p.wantErr(unix.EINVAL, 9, access(a.region, a.off, 4))
				p.wantErr(unix.EINVAL, 10, access(a.region, a.off, 4, 1, 2, 3, 4))
				p.wantErr(unix.EINVAL, 15, le(uint64(2), access(0, 0, 4, make([]byte, 8)...), access(a.region, a.off, 4, make([]byte, 8)...)))
			})
		}
		p.wantErr(unix.EINVAL, 10, access(6, 0, 4, 1, 2, 3, 4)) // ROM
		if f.dev.peek(6, 0, 1)[0] != 0 {
			t.Error("ROM written")
		}
		p.ok(9, access(0, testBAR0-4, 4))
		p.wantErr(unix.EINVAL, 9, access(2, 0, DefaultMaxData+1))
		p.wantErr(unix.EINVAL, 10, access(0, 0, 5, 1, 2, 3, 4))
		p.wantErr(unix.EINVAL, 10, access(0, 0, 3, 1, 2, 3, 4))
		if n := f.Stats().Failed; n != 16 {
			t.Errorf("%d failed accesses counted, want 16", n)
		}
	}},
	{"E_error_is_all_ones", func(t *testing.T) {
		f := serve(t)
		f.dev.set(func(d *testDevice) { d.failing[0] = true })
		p, _ := f.connect()
		if r := p.ok(9, access(0, 0, 8)); !bytes.Equal(r.body[16:], bytes.Repeat([]byte{0xff}, 8)) {
			t.Errorf("% x", r.body)
		}
		if r := p.ok(10, access(0, 0, 1, 1)); len(r.body) != 16 {
			t.Errorf("write reply of %d bytes", len(r.body))
		}
	}},
	{"E_error_replies_where_wanted", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.ErrorReplies = true })
		f.dev.set(func(d *testDevice) { d.failing[0] = true })
		p, _ := f.connect()
		p.wantErr(unix.EIO, 9, access(0, 0, 8))
		p.wantErr(unix.EIO, 10, access(0, 0, 1, 1))
		p.wantErr(unix.EINVAL, 9, access(0, testBAR0, 1))
	}},
	{"E_posted_write_then_read", func(t *testing.T) {
		p, _ := serve(t).connect()
		for i := range 500 {
			p.send(p.message(10, 0x10, access(0, 0, 4, byte(i), byte(i>>8), 0, 0)))
			if r := p.ok(9, access(0, 0, 2)); r.body[16] != byte(i) || r.body[17] != byte(i>>8) {
				t.Fatalf("read %d: % x", i, r.body[16:])
			}
		}
	}},
	{"E_write_flood_then_read", func(t *testing.T) {
		f := serve(t)
		p, _ := f.connect()
		var all []byte
		for i := range 1 << 15 { // 8 bytes each: 256 KiB of data in 1.3 MiB of messages
			all = append(all, p.message(10, 0x10, access(2, uint64(i*8), 8, byte(i), 1, 2, 3, 4, 5, 6, 7))...)
		}
		p.send(all)
		if r := p.ok(9, access(2, 8*(1<<15-1), 1)); r.body[16] != 0xff {
			t.Errorf("last write: % x", r.body[16:])
		}
		if n := f.Stats().Posted; n != 1<<15 {
			t.Errorf("%d posted writes counted", n)
		}
	}},
	{"E_write_multi", func(t *testing.T) {
		f := serve(t)
		p, _ := f.connect()
		for _, n := range []int{0, 1, 200} {
			b := le(uint64(n))
			for i := range n {
				b = append(b, access(0, uint64(i*4), 4, byte(i), byte(n), 7, 7, 0xee, 0xee, 0xee, 0xee)...)
			}
			p.send(p.message(15, 0x10, b))
			r := p.ok(9, access(0, 0, 804))
			for i := range n {
				if r.body[16+4*i] != byte(i) || r.body[17+4*i] != byte(n) {
					t.Fatalf("%d writes: at %d % x", n, i, r.body[16+4*i:][:4])
				}
			}
			if r := p.ok(15, b); !bytes.Equal(r.body, le(uint64(n))) {
				t.Errorf("reply % x", r.body)
			}
		}
		p.wantErr(unix.EINVAL, 15, le(uint64(2), access(0, 0, 4, make([]byte, 8)...)))
		p.wantErr(unix.EINVAL, 15, le(uint64(1), access(0, 0, 9, make([]byte, 8)...)))
		p.wantErr(unix.EINVAL, 15, append(le(uint64(201)), make([]byte, 201*24)...))
		p.wantErr(unix.EINVAL, 15, le(uint64(1<<63)))
	}},
	{"E_write_multi_not_offered", func(t *testing.T) {
		p, _ := serve(t, func(c *Config) { c.WriteMultiple = false }).connect()
		p.wantErr(unix.ENOSYS, 15, le(uint64(0)))
	}},
	{"E_handler_that_blocks_holds_up_writes", func(t *testing.T) {
		f := serve(t, func(c *Config) { c.MaxOpen = 4 })
		hold := f.dev.holding(0)
		p, _ := f.connect()
		for i := range 8 {
			p.send(p.message(10, 0x10, access(0, 0, 1, byte(i))))
		}
		p.send(p.message(9, 0, access(2, 0, 1)))
		for i := range 8 { // at most four are out, and they come in order
			a := <-hold
			if a.Data[0] != byte(i) {
				t.Errorf("write %d has %d", i, a.Data[0])
			}
			if len(hold) > 3 {
				t.Errorf("%d more held", len(hold))
			}
			a.Reply()
		}
		p.recv()
	}},
}

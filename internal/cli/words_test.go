package cli

import (
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestNearest(t *testing.T) {
	words := []string{"gpus", "hosts", "leases", "boxes", "box"}
	for word, want := range map[string]string{
		"gpu": "gpus", "gpsu": "gpus", "hots": "hosts", "laeses": "leases", "le": "leases", "boxs": "boxes", "bx": "box",
		"frobs": "", "x": "", "": "", strings.Repeat("x", 1000): "",
	} {
		if got := nearest(word, words); got != want {
			t.Errorf("nearest(%q) = %q, want %q", word, got, want)
		}
	}
}

func TestDurations(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"30d": 30 * day, "1w": 7 * day, "1w2d12h": 9*day + 12*time.Hour, "1.5d": 36 * time.Hour, "500ms": 500 * time.Millisecond,
		"2h": 2 * time.Hour, "0": 0, "-1s": -time.Second,
	} {
		if got, err := parseDuration(text); err != nil || got != want {
			t.Errorf("%q is %v, %v; want %v", text, got, err, want)
		}
		if again, err := parseDuration(durationText(want)); err != nil || again != want {
			t.Errorf("%v prints as %q, which is %v, %v", want, durationText(want), again, err)
		}
	}
	for _, bad := range []string{"", "30", "d", "1d-1h", "1h1d", "tomorrow", "1e9d", "999999999w", "NaNd"} {
		if d, err := parseDuration(bad); err == nil {
			t.Errorf("%q is accepted as %v", bad, d)
		}
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"30d", "1w2d12h30m", "-5s", "1.5d", "99999999999d", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, err := parseDuration(s)
		if err != nil {
			return
		}
		if d == math.MinInt64 {
			return // has no positive counterpart to print
		}
		if again, err := parseDuration(durationText(d)); err != nil || again != d {
			t.Errorf("%q is %v, which prints as %q and is then %v, %v", s, d, durationText(d), again, err)
		}
	})
}

func FuzzParseSpecs(f *testing.F) {
	f.Add([]byte("tenants: [{name: a, max-gpus: 1, max-gpus-of: {X: 1}}]\nleases: [{name: b, memory: 1GiB, expires: 1d, queue: true}]"))
	f.Add([]byte("leases: [{name: b, kind: nvlink, nvlink: required, same-box: avoid, queue-timeout: 5m, label: {a: b}}]"))
	f.Add([]byte("leases:\n- &a {name: x}\n- *a\n"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		s, err := parseSpecs(raw)
		if (err == nil) != (len(s.Tenants)+len(s.Leases) > 0) {
			t.Errorf("%d tenants and %d leases with error %v", len(s.Tenants), len(s.Leases), err)
		}
		for _, l := range s.Leases {
			if l.spec == nil || l.spec.Count == 0 || l.spec.Tenant == "" || l.spec.Labels[nameLabel] != l.Name {
				t.Errorf("lease %+v", l)
			}
		}
	})
}

// Every command has a man page that groff formats without a warning.
func TestManPages(t *testing.T) {
	dir := t.TempDir()
	root := newRootCommand(&connection{})
	if err := writeManPages(root, dir); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(pages) < 60 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "dxpu-lease-create.1"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{".TH DXPU-LEASE-CREATE 1", `dxpu\-lease\-create \- allocate GPUs`, `\fB\-\-queue\-timeout\fR \fIduration\fR`, ".BR dxpu\\-lease (1)"} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("the page of lease create does not contain %q", want)
		}
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Skip("groff is not installed")
	}
	out, err := exec.Command(groff, append([]string{"-man", "-Kutf8", "-Tutf8", "-ww", "-z"}, pages...)...).CombinedOutput()
	if err != nil || len(out) > 0 {
		t.Errorf("groff: %v\n%.2000s", err, out)
	}
}

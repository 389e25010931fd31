package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"testing"
	"time"
)

var epoch = time.Unix(1_700_000_000, 0).UTC()

func testImage(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	if err := writeImage(&out, "dxpu", "1.2.3", []binary{{"amd64", []byte("program one")}, {"arm64", []byte("program two")}}, epoch); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func untar(t *testing.T, r io.Reader) map[string][]byte {
	t.Helper()
	files := map[string][]byte{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(epoch) {
			t.Errorf("%s has the time %v", h.Name, h.ModTime)
		}
		if files[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
}

// Every digest and size of an image is right, and each platform has its program.
func TestImage(t *testing.T) {
	raw := testImage(t)
	files := untar(t, bytes.NewReader(raw))
	load := func(d descriptor, v any) []byte {
		t.Helper()
		content, ok := files["blobs/"+strings.ReplaceAll(d.Digest, ":", "/")]
		if !ok || len(content) != d.Size || digest(content) != d.Digest {
			t.Fatalf("%+v: %d bytes, %s", d, len(content), digest(content))
		}
		if v != nil {
			if err := json.Unmarshal(content, v); err != nil {
				t.Fatal(err)
			}
		}
		return content
	}
	var top, all index
	if err := json.Unmarshal(files["index.json"], &top); err != nil || len(top.Manifests) != 1 {
		t.Fatalf("index: %v, %+v", err, top)
	}
	load(top.Manifests[0], &all)
	for i, want := range []struct{ arch, program string }{{"amd64", "program one"}, {"arm64", "program two"}} {
		d := all.Manifests[i]
		if d.Platform == nil || d.Platform.Architecture != want.arch {
			t.Errorf("manifest %d: %+v", i, d)
		}
		var m manifest
		var c imageConfig
		load(d, &m)
		load(m.Config, &c)
		z, err := gzip.NewReader(bytes.NewReader(load(m.Layers[0], nil)))
		if err != nil {
			t.Fatal(err)
		}
		plain, err := io.ReadAll(z)
		if err != nil {
			t.Fatal(err)
		}
		if len(c.Config.Entrypoint) != 1 || c.Config.Entrypoint[0] != "/usr/bin/dxpu" {
			t.Errorf("the image starts %q", c.Config.Entrypoint)
		}
		if c.Architecture != want.arch || len(c.RootFS.DiffIDs) != 1 || c.RootFS.DiffIDs[0] != digest(plain) {
			t.Errorf("configuration %+v", c)
		}
		if got := untar(t, bytes.NewReader(plain))["usr/bin/dxpu"]; string(got) != want.program {
			t.Errorf("%s has %q", want.arch, got)
		}
	}
	if !bytes.Equal(raw, testImage(t)) {
		t.Error("two images of the same input differ")
	}
}

// Another tool reads the image.
func TestImageIsReadBySkopeo(t *testing.T) {
	skopeo, err := exec.LookPath("skopeo")
	if err != nil {
		t.Skip("skopeo is not installed")
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	if err := os.WriteFile(file, testImage(t), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(skopeo, "inspect", "--override-arch", "arm64", "oci-archive:"+file).CombinedOutput()
	if err != nil || !bytes.Contains(out, []byte(`"Architecture": "arm64"`)) || !bytes.Contains(out, []byte("1.2.3")) {
		t.Errorf("skopeo: %v\n%s", err, out)
	}
}

func TestBill(t *testing.T) {
	b := billOf(&debug.BuildInfo{
		GoVersion: "go1.26.8", Main: debug.Module{Path: "example.com/dxpu"},
		Deps: []*debug.Module{
			{Path: "example.com/a", Version: "v1.0.0", Sum: "h1:x"},
			{Path: "example.com/b", Version: "v2.0.0+incompatible", Replace: &debug.Module{Path: "example.com/c", Version: "v3.0.0+x"}},
		},
		Settings: []debug.BuildSetting{{Key: "GOARCH", Value: "arm64"}, {Key: "-ldflags", Value: "secret"}},
	}, "1.2.3", epoch)
	raw, err := json.Marshal(b)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`"bomFormat":"CycloneDX"`, `"timestamp":"2023-11-14T22:13:20Z"`, `"purl":"pkg:golang/example.com/dxpu@1.2.3"`, `"purl":"pkg:golang/std@1.26.8"`,
		`"purl":"pkg:golang/example.com/a@v1.0.0"`, `{"name":"go:sum","value":"h1:x"}`, `"purl":"pkg:golang/example.com/c@v3.0.0%2Bx"`,
		`"dependsOn":["pkg:golang/std@1.26.8","pkg:golang/example.com/a@v1.0.0","pkg:golang/example.com/c@v3.0.0%2Bx"]`,
	} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("the bill does not contain %s:\n%s", want, raw)
		}
	}
	if strings.Contains(string(raw), "secret") || strings.Contains(string(raw), "example.com/b") {
		t.Errorf("the bill has too much: %s", raw)
	}
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{nil, {"image"}, {"image", "1", "f", "amd64"}, {"image", "1", "f", "amd64=/bin/sh", "arm64=/bin/ls"}, {"sbom", "1"}, {"sbom", "1", "/nowhere"}} {
		if err := run(io.Discard, args); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
	t.Setenv("SOURCE_DATE_EPOCH", "yesterday")
	if err := run(io.Discard, []string{"sbom", "1", os.Args[0]}); err == nil || !strings.Contains(err.Error(), "SOURCE_DATE_EPOCH") {
		t.Errorf("error %v", err)
	}
}

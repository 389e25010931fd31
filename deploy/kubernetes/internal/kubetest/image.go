package kubetest

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
)

// Image is the name of the image that BuildImage makes. Without a command, its containers
// wait for ever: it is the image of sandboxes, too.
const Image = "dxpu.test/programs:1"

// BuildImage writes an image with programs of this machine, and the libraries that they
// load, as an archive. programs maps paths in the image to files; loaded are files that come with
// a device, and load libraries of the image.
func BuildImage(file string, programs map[string]string, loaded ...string) error {
	files := map[string]string{"/bin/sh": "/bin/sh", "/bin/sleep": "/bin/sleep"}
	maps.Copy(files, programs)
	for _, from := range append(slices.Sorted(maps.Values(files)), loaded...) {
		libraries, err := librariesOf(from)
		if err != nil {
			return err
		}
		for _, l := range libraries {
			files[l] = l
		}
	}
	layer, err := layerOf(files)
	if err != nil {
		return err
	}
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux",
		"config": map[string]any{"Entrypoint": []string{"/bin/sleep", "infinity"}, "Env": []string{"PATH=/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]any{map[string]any{"Config": "config.json", "RepoTags": []string{Image}, "Layers": []string{"layer.tar"}}})
	if err != nil {
		return err
	}
	var archive bytes.Buffer
	w := tar.NewWriter(&archive)
	err = errors.Join(add(w, "config.json", config, 0o644), add(w, "layer.tar", layer, 0o644), add(w, "manifest.json", manifest, 0o644), w.Close())
	return errors.Join(err, os.WriteFile(file, archive.Bytes(), 0o600))
}

// librariesOf returns the libraries that a program loads, and the loader.
func librariesOf(program string) (out []string, err error) {
	raw, err := exec.Command("ldd", program).CombinedOutput()
	if err != nil {
		if strings.Contains(string(raw), "not a dynamic executable") {
			return nil, nil
		}
		return nil, fmt.Errorf("ldd %s: %w: %s", program, err, raw)
	}
	for word := range strings.FieldsSeq(string(raw)) {
		if strings.HasPrefix(word, "/") {
			out = append(out, word)
		}
	}
	return out, nil
}

func layerOf(files map[string]string) ([]byte, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	made := map[string]bool{}
	directory := func(path string) error {
		for i := 1; i <= len(path); i++ {
			if d := path[:i]; i == len(path) || path[i] == '/' {
				if !made[d] {
					made[d] = true
					if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d[1:] + "/", Mode: 0o755}); err != nil {
						return err
					}
				}
			}
		}
		return nil
	}
	for _, d := range []string{"/tmp", "/etc", "/dev", "/proc", "/sys", "/run"} {
		if err := directory(d); err != nil {
			return nil, err
		}
	}
	for _, in := range slices.Sorted(maps.Keys(files)) {
		raw, err := os.ReadFile(files[in])
		if err != nil {
			return nil, err
		}
		if err := errors.Join(directory(filepath.Dir(in)), add(w, in[1:], raw, 0o755)); err != nil {
			return nil, err
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

func add(w *tar.Writer, name string, data []byte, mode int64) error {
	err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: mode})
	if err == nil {
		_, err = w.Write(data)
	}
	return err
}

// BuildRelease writes the image of the driver as a release does, with a version as its tag.
func BuildRelease(file, version, driver string) error {
	cmd := exec.Command("go", "run", "./internal/tools/release", "image", version, file, runtime.GOARCH+"="+driver)
	cmd.Dir = filepath.Join(moduleDir(), "../..")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("image of the release: %w\n%s", err, out)
	}
	return nil
}

package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPlatformFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"lib/libCL.so.1", "lib/libCL.so", "lib/key.pem", "icd/a.icd", "icd/notes", "one.icd"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	env := map[string]string{
		"LD_LIBRARY_PATH":   dir + "/lib::relative:" + dir + "/none",
		"OCL_ICD_VENDORS":   dir + "/icd/",
		"OCL_ICD_FILENAMES": dir + "/one.icd",
	}
	files, dirs := platformFiles(func(name string) string { return env[name] })
	want := []string{dir + "/lib/libCL.so", dir + "/lib/libCL.so.1", dir + "/icd/a.icd", dir + "/one.icd"}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{dir + "/icd/"}, dirs); diff != "" {
		t.Errorf("folders (-want +got):\n%s", diff)
	}
	if files, dirs := platformFiles(func(string) string { return "" }); len(files)+len(dirs) > 0 {
		t.Errorf("without variables: %v, %v", files, dirs)
	}
}

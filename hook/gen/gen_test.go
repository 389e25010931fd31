package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []call
		err        string
	}{
		{
			"forms", "# facts\n\ncuMemcpyHtoD\tcopy .@2000 _v2@3020* _v2_ptds@7000*\ncuInit follow .*\n",
			[]call{
				{"cuInit", "follow", []form{{"cuInit", 0, false, true, false}}},
				{"cuMemcpyHtoD", "copy", []form{{"cuMemcpyHtoD", 2000, false, false, false}, {"cuMemcpyHtoD_v2", 3020, false, true, false}, {"cuMemcpyHtoD_v2_ptds", 7000, true, true, false}}},
			},
			"",
		},
		{"only a later form", "cuX launch _ptsz*+", []call{{"cuX", "launch", []form{{"cuX_ptsz", 0, true, true, true}}}}, ""},
		{"no class", "cuX", nil, "no class"},
		{"no form", "cuX other", nil, "no forms"},
		{"unknown class", "cuX x .", nil, "class"},
		{"no name", "x other .", nil, "not the name of a driver call"},
		{"empty form", "cuX other @2000", nil, "form"},
		{"unknown suffix", "cuX other _old", nil, "form"},
		{"short version", "cuX other .@20", nil, "form"},
		{"twice", "cuX other . .", nil, "twice"},
		{"two lines", "cuX other .\ncuX other _v2", nil, "two lines"},
		{"one symbol of two calls", "cuX other _v2\ncuX2 other .\ncuX2 other .", nil, "twice"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parse(strings.NewReader(tc.text))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Errorf("error %v, want %q", err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(call{}, form{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The output depends only on the list.
func TestGenerateTwice(t *testing.T) {
	files := func() map[string]string {
		dir := t.TempDir()
		if err := run("../symbols.txt", dir); err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for _, name := range []string{"trampolines.S", "symbols.h", "symbols.c", "hooks.c", "gates.S"} {
			b, err := os.ReadFile(filepath.Join(dir, name))
			if err != nil {
				t.Fatal(err)
			}
			out[name] = string(b)
		}
		return out
	}
	first := files()
	if diff := cmp.Diff(first, files()); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(first["trampolines.S"], "\nENTRY cuLaunchKernel_ptsz, ") || !strings.Contains(first["hooks.c"], "[SYM_cuLaunchKernel_ptsz] = hook_cuLaunchKernel_ptsz,") {
		t.Error("cuLaunchKernel_ptsz is missing or not wrapped")
	}
	if err := run("no-such-file", t.TempDir()); err == nil {
		t.Error("no error for a missing list")
	}
}

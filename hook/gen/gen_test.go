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
			"forms", "# facts\n\ncuMemcpyHtoD\t.@2000 _v2@3020* _v2_ptds@7000*\ncuInit .*\n",
			[]call{
				{"cuInit", []form{{"cuInit", 0, false, true}}},
				{"cuMemcpyHtoD", []form{{"cuMemcpyHtoD", 2000, false, false}, {"cuMemcpyHtoD_v2", 3020, false, true}, {"cuMemcpyHtoD_v2_ptds", 7000, true, true}}},
			},
			"",
		},
		{"only a later form", "cuX _ptsz", []call{{"cuX", []form{{"cuX_ptsz", 0, true, false}}}}, ""},
		{"no form", "cuX", nil, "no forms"},
		{"no name", "x .", nil, "not the name of a driver call"},
		{"empty form", "cuX @2000", nil, "form"},
		{"unknown suffix", "cuX _old", nil, "form"},
		{"short version", "cuX .@20", nil, "form"},
		{"twice", "cuX . .", nil, "twice"},
		{"two lines", "cuX .\ncuX _v2", nil, "two lines"},
		{"one symbol of two calls", "cuX _v2\ncuX2 .\ncuX2 .", nil, "twice"},
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
		for _, name := range []string{"trampolines.S", "symbols.h", "symbols.c", "hooks.c"} {
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

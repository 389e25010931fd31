package qemu

import (
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// loader is the name of the dynamic loader beside a program of ProgramFiles.
const loader = "ld.so"

// ProgramFiles returns files that bring dynamically linked programs of this machine into a
// directory of the guest, whose own libraries are others: the programs, their dynamic loader
// and their libraries. [ProgramCommand] starts one.
func ProgramFiles(ctx context.Context, dir string, programs ...string) ([]File, error) {
	var files []File
	add := func(name, source string) {
		f := File{Path: path.Join(dir, name), Source: source}
		if !slices.ContainsFunc(files, func(o File) bool { return o.Path == f.Path }) {
			files = append(files, f)
		}
	}
	for _, program := range programs {
		interpreter, err := interpreterOf(program)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", program, err)
		}
		out, err := exec.CommandContext(ctx, interpreter, "--list", program).Output()
		if err != nil {
			return nil, fmt.Errorf("the libraries of %s: %w", program, err)
		}
		add(filepath.Base(program), program)
		add(loader, interpreter)
		for line := range strings.Lines(string(out)) {
			name, rest, ok := strings.Cut(strings.TrimSpace(line), " => ")
			if source, _, _ := strings.Cut(rest, " "); ok && filepath.IsAbs(source) {
				add(filepath.Base(name), source)
			}
		}
	}
	return files, nil
}

// ProgramCommand returns the command of the guest's shell that starts a program of
// ProgramFiles.
func ProgramCommand(dir, program string) string {
	return fmt.Sprintf("%s --library-path %s %s", path.Join(dir, loader), dir, path.Join(dir, filepath.Base(program)))
}

// maxInterpreter bounds the path of a dynamic loader in a program, in bytes.
const maxInterpreter = 4096

func interpreterOf(program string) (string, error) {
	f, err := elf.Open(program)
	if err != nil {
		return "", err
	}
	defer f.Close() //nolint:errcheck // opened for reading
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP && p.Filesz <= maxInterpreter {
			name, err := io.ReadAll(p.Open())
			return strings.TrimRight(string(name), "\x00"), err
		}
	}
	return "", errors.New("it has no dynamic loader")
}

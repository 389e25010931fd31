// Command release makes the parts of a release that no common tool makes without a
// network: an OCI image, and a bill of materials. scripts/release.sh runs it.
//
//	release image VERSION FILE.tar amd64=BINARY arm64=BINARY
//	release sbom VERSION BINARY
//
// SOURCE_DATE_EPOCH is the time of all files: the same input gives the same output.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	if err := run(os.Stdout, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(out io.Writer, args []string) error {
	at, err := sourceDate()
	if err != nil {
		return err
	}
	switch {
	case len(args) >= 4 && args[0] == "image":
		return imageFile(args[1], args[2], args[3:], at)
	case len(args) == 3 && args[0] == "sbom":
		return writeBill(out, args[1], args[2], at)
	}
	return errors.New("want: image VERSION FILE ARCH=BINARY..., or: sbom VERSION BINARY")
}

// sourceDate returns the time of the files: that of the commit.
func sourceDate() (time.Time, error) {
	s := os.Getenv("SOURCE_DATE_EPOCH")
	if s == "" {
		s = "0"
	}
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return time.Time{}, fmt.Errorf("SOURCE_DATE_EPOCH: %q is not a number of seconds", s)
	}
	return time.Unix(n, 0).UTC(), nil
}

// imageFile writes an image to a file. The binaries have the name of the program.
func imageFile(version, file string, platforms []string, at time.Time) error {
	var program string
	binaries := make([]binary, len(platforms))
	for i, p := range platforms {
		arch, path, ok := strings.Cut(p, "=")
		if !ok {
			return fmt.Errorf("%q is not ARCH=BINARY", p)
		}
		name := filepath.Base(path)
		if program != "" && name != program {
			return fmt.Errorf("an image has one program, not %s and %s", program, name)
		}
		program = name
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		binaries[i] = binary{arch, content}
	}
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	return errors.Join(writeImage(f, program, version, binaries, at), f.Close())
}

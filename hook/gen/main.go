// Command gen writes the C and assembly tables of the driver library from the list
// in hook/symbols.txt.
//
//	gen -symbols hook/symbols.txt -out bin/hook
//
// It writes trampolines.S (one entry per exported symbol), symbols.h (their
// numbers), symbols.c (their names and versions), hooks.c (their wrappers) and gates.S
// (wrappers of sharing mode that only look at the gate).
package main

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	symbols := flag.String("symbols", "hook/symbols.txt", "list of symbols")
	out := flag.String("out", "bin/hook", "folder to write to")
	flag.Parse()
	if err := run(*symbols, *out); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(symbols, out string) error {
	text, err := os.ReadFile(symbols)
	if err != nil {
		return err
	}
	calls, err := parse(bytes.NewReader(text))
	if err != nil {
		return fmt.Errorf("%s: %w", symbols, err)
	}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	for name, write := range map[string]func([]call) []byte{
		"trampolines.S": trampolines, "symbols.h": header, "symbols.c": tables, "hooks.c": wrappers, "gates.S": gates,
	} {
		if err := os.WriteFile(filepath.Join(out, name), write(calls), 0o644); err != nil {
			return err
		}
	}
	return nil
}

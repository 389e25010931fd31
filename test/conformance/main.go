// Command conformance prints the table of docs/conformance.md: which check ran with which versions
// of other people's programs, and how it ended. It reads what "go test -json ./test/vm"
// writes from its standard input; run.sh does all of it.
package main

import (
	"bufio"
	"fmt"
	"os"
)

func main() {
	r := newReport()
	err := r.read(bufio.NewReader(os.Stdin))
	if err == nil {
		fmt.Print(r.table())
		err = r.err()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		os.Exit(1)
	}
}

package main

import (
	"os"
	"strings"
	"testing"
)

// testdata/run.json is a run with a check of each kind of end.
func TestTable(t *testing.T) {
	f, err := os.Open("testdata/run.json")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r := newReport()
	if err := r.read(f); err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("testdata/table.md")
	if err != nil {
		t.Fatal(err)
	}
	if got := r.table(); got != string(want) {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if err := r.err(); err == nil || err.Error() != "2 of 6 checks failed" {
		t.Errorf("the end is %v", err)
	}
}

func TestNoRun(t *testing.T) {
	r := newReport()
	if err := r.read(strings.NewReader("")); err != nil || r.err() == nil {
		t.Errorf("nothing: %v, %v", err, r.err())
	}
	if err := r.read(strings.NewReader("go: no such package\n")); err == nil {
		t.Error("other text is taken")
	}
}

package dxpu_test

import (
	"bytes"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	testFunction = regexp.MustCompile(`(?m)^func ((?:Test|Fuzz)[A-Z]\w*)\(`)
	quoted       = regexp.MustCompile("`([^`]+)`")
	testName     = regexp.MustCompile(`^(?:Test|Fuzz)[A-Z]\w*$`)
	packageName  = regexp.MustCompile(`^[a-z0-9/]+$`)
)

// The pages name tests as evidence ("`link`, `netio`: `TestA`, `TestB`; `udp`: `TestC`"):
// each is in one of the packages that stand before it.
func TestDocumentedTestsExist(t *testing.T) {
	where := packagesOfTests(t)
	pages, err := filepath.Glob("docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range pages {
		raw, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for line := range bytes.Lines(raw) {
			for _, n := range namedTests(string(line)) {
				found++
				if !slices.ContainsFunc(where[n.test], func(in string) bool { return len(n.packages) == 0 || slices.Contains(n.packages, in) }) {
					t.Errorf("%s: there is no %s in %v", page, n.test, n.packages)
				}
			}
		}
	}
	if found < 50 {
		t.Errorf("%d names of tests in %d pages: the pattern does not find them", found, len(pages))
	}
}

// packagesOfTests returns the last elements of the folders that have each test.
func packagesOfTests(t *testing.T) map[string][]string {
	where := map[string][]string{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range testFunction.FindAllSubmatch(src, -1) {
			where[string(m[1])] = append(where[string(m[1])], filepath.Base(filepath.Dir(path)))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return where
}

// named is a test with the packages that a page says it is in.
type named struct {
	test     string
	packages []string // none: not said
}

func namedTests(line string) (tests []named) {
	var packages []string
	end := 0
	for _, m := range quoted.FindAllStringSubmatchIndex(line, -1) {
		between := strings.TrimSpace(line[end:m[0]])
		end = m[1]
		word := line[m[2]:m[3]]
		switch {
		case testName.MatchString(word):
			if between != ":" && between != "," {
				packages = nil
			}
			tests = append(tests, named{word, packages})
		case packageName.MatchString(word) && between == ",":
			packages = append(slices.Clip(packages), path.Base(word))
		case packageName.MatchString(word):
			packages = []string{path.Base(word)}
		default:
			packages = nil
		}
	}
	return tests
}

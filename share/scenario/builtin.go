package scenario

import (
	"embed"
	"fmt"
)

//go:embed mixes/*.yaml
var mixFiles embed.FS

//go:embed rows/*.yaml
var rowFiles embed.FS

// Mixes returns the mixes of the comparison.
func Mixes() ([]*Spec, error) { return builtin(mixFiles, "mixes") }

// Rows returns the scenarios of the policies, each beside its paper.
func Rows() ([]*Spec, error) { return builtin(rowFiles, "rows") }

func builtin(files embed.FS, dir string) ([]*Spec, error) {
	list, err := files.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("scenario: %w", err)
	}
	var out []*Spec
	for _, f := range list {
		text, err := files.ReadFile(dir + "/" + f.Name())
		if err != nil {
			return nil, fmt.Errorf("scenario: %w", err)
		}
		s, err := Parse(text)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", f.Name(), err)
		}
		out = append(out, s)
	}
	return out, nil
}

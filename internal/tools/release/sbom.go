package main

import (
	"debug/buildinfo"
	"encoding/json"
	"io"
	"runtime/debug"
	"strings"
	"time"
)

// Documents of a bill of materials (CycloneDX 1.6).
type bill struct {
	Schema       string       `json:"$schema"`
	Format       string       `json:"bomFormat"`
	SpecVersion  string       `json:"specVersion"`
	Version      int          `json:"version"`
	Metadata     metadata     `json:"metadata"`
	Components   []component  `json:"components"`
	Dependencies []dependency `json:"dependencies"`
}

type metadata struct {
	Timestamp string    `json:"timestamp"`
	Component component `json:"component"`
}

type component struct {
	Ref        string     `json:"bom-ref"`
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	PURL       string     `json:"purl,omitempty"`
	Properties []property `json:"properties,omitempty"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

type dependency struct {
	Ref  string   `json:"ref"`
	Uses []string `json:"dependsOn"`
}

// writeBill writes the bill of materials of a binary, from the modules that the linker
// recorded in it.
func writeBill(w io.Writer, version, file string, at time.Time) error {
	info, err := buildinfo.ReadFile(file)
	if err != nil {
		return err
	}
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(billOf(info, version, at))
}

func billOf(info *debug.BuildInfo, version string, at time.Time) *bill {
	main := component{Ref: purl(info.Main.Path, version), Type: "application", Name: info.Main.Path, Version: version, PURL: purl(info.Main.Path, version)}
	for _, s := range info.Settings {
		if s.Key == "GOOS" || s.Key == "GOARCH" || s.Key == "CGO_ENABLED" || s.Key == "vcs.revision" {
			main.Properties = append(main.Properties, property{"go:" + s.Key, s.Value})
		}
	}
	b := &bill{
		Schema: "http://cyclonedx.org/schema/bom-1.6.schema.json", Format: "CycloneDX", SpecVersion: "1.6", Version: 1,
		Metadata: metadata{at.Format(time.RFC3339), main},
	}
	b.add(module("std", strings.TrimPrefix(info.GoVersion, "go"), ""))
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		b.add(module(m.Path, m.Version, m.Sum))
	}
	uses := dependency{Ref: main.Ref}
	for _, c := range b.Components {
		uses.Uses = append(uses.Uses, c.Ref)
	}
	b.Dependencies = []dependency{uses}
	return b
}

func (b *bill) add(c component) { b.Components = append(b.Components, c) }

func module(path, version, sum string) component {
	c := component{Ref: purl(path, version), Type: "library", Name: path, Version: version, PURL: purl(path, version)}
	if sum != "" {
		c.Properties = []property{{"go:sum", sum}}
	}
	return c
}

// purl returns the package URL of a Go module.
func purl(path, version string) string {
	return "pkg:golang/" + path + "@" + strings.ReplaceAll(version, "+", "%2B")
}

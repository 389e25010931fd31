package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"time"
)

// binary is the program of one architecture.
type binary struct {
	arch    string
	content []byte
}

// Media types and documents of an image (OCI Image Format Specification 1.1).
const (
	mediaIndex    = "application/vnd.oci.image.index.v1+json"
	mediaManifest = "application/vnd.oci.image.manifest.v1+json"
	mediaConfig   = "application/vnd.oci.image.config.v1+json"
	mediaLayer    = "application/vnd.oci.image.layer.v1.tar+gzip"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    *platform         `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

type platform struct {
	Architecture string `json:"architecture"`
	OS           string `json:"os"`
}

type index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []descriptor `json:"manifests"`
}

type manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	Config        descriptor        `json:"config"`
	Layers        []descriptor      `json:"layers"`
	Annotations   map[string]string `json:"annotations"`
}

type imageConfig struct {
	Created      time.Time     `json:"created"`
	Architecture string        `json:"architecture"`
	OS           string        `json:"os"`
	Config       processConfig `json:"config"`
	RootFS       rootFS        `json:"rootfs"`
}

type processConfig struct {
	User       string
	Entrypoint []string
	Cmd        []string
	WorkingDir string
	Labels     map[string]string
}

type rootFS struct {
	Type    string   `json:"type"`
	DiffIDs []string `json:"diff_ids"`
}

// image is a tar of an OCI image layout under construction.
type image struct {
	out *tar.Writer
	at  time.Time
	err error
}

// writeImage writes an image of a program with the binaries as the only file of their platforms.
func writeImage(w io.Writer, program, version string, binaries []binary, at time.Time) error {
	i := &image{out: tar.NewWriter(w), at: at}
	i.file("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	labels := map[string]string{
		"org.opencontainers.image.title":   program,
		"org.opencontainers.image.version": version,
		"org.opencontainers.image.source":  "https://github.com/dxpu-project/dxpu", "org.opencontainers.image.licenses": "Apache-2.0",
	}
	all := index{SchemaVersion: 2, MediaType: mediaIndex}
	for _, b := range binaries {
		layer, diffID, err := layerOf(program, b.content, at)
		if err != nil {
			return err
		}
		config := imageConfig{
			Created: at, Architecture: b.arch, OS: "linux",
			// An unprivileged user. The manifest of a program that needs root, such as the plugin of
			// a node, asks for it.
			Config: processConfig{User: "65534:65534", Entrypoint: []string{"/usr/bin/" + program}, Cmd: []string{"help"}, WorkingDir: "/", Labels: labels},
			RootFS: rootFS{Type: "layers", DiffIDs: []string{diffID}},
		}
		m := manifest{SchemaVersion: 2, MediaType: mediaManifest, Annotations: labels}
		m.Config = i.document(mediaConfig, config)
		m.Layers = []descriptor{i.blob(mediaLayer, layer)}
		d := i.document(mediaManifest, m)
		d.Platform = &platform{b.arch, "linux"}
		all.Manifests = append(all.Manifests, d)
	}
	top := i.document(mediaIndex, all)
	top.Annotations = map[string]string{"org.opencontainers.image.ref.name": version}
	raw, err := json.Marshal(index{SchemaVersion: 2, MediaType: mediaIndex, Manifests: []descriptor{top}})
	if err != nil {
		return err
	}
	i.file("index.json", raw)
	if i.err == nil {
		i.err = i.out.Close()
	}
	return i.err
}

// layerOf returns a compressed tar with the program, and the digest of the tar.
func layerOf(name string, program []byte, at time.Time) (layer []byte, diffID string, err error) {
	var plain, packed bytes.Buffer
	t := tar.NewWriter(&plain)
	for _, h := range []tar.Header{
		{Typeflag: tar.TypeDir, Name: "usr/", Mode: 0o755},
		{Typeflag: tar.TypeDir, Name: "usr/bin/", Mode: 0o755},
		{Typeflag: tar.TypeReg, Name: "usr/bin/" + name, Mode: 0o755, Size: int64(len(program))},
		{Typeflag: tar.TypeDir, Name: "tmp/", Mode: 0o1777},
	} {
		h.ModTime = at
		if err := t.WriteHeader(&h); err != nil {
			return nil, "", err
		}
		if h.Typeflag == tar.TypeReg {
			if _, err := t.Write(program); err != nil {
				return nil, "", err
			}
		}
	}
	if err := t.Close(); err != nil {
		return nil, "", err
	}
	z := gzip.NewWriter(&packed)
	if _, err := z.Write(plain.Bytes()); err != nil {
		return nil, "", err
	}
	if err := z.Close(); err != nil {
		return nil, "", err
	}
	return packed.Bytes(), digest(plain.Bytes()), nil
}

func digest(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }

// file adds a file. The first error stays.
func (i *image) file(name string, content []byte) {
	if i.err != nil {
		return
	}
	if i.err = i.out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: i.at}); i.err == nil {
		_, i.err = i.out.Write(content)
	}
}

// blob adds content under its digest.
func (i *image) blob(media string, content []byte) descriptor {
	d := descriptor{MediaType: media, Digest: digest(content), Size: len(content)}
	i.file("blobs/sha256/"+d.Digest[len("sha256:"):], content)
	return d
}

// document adds a value as JSON.
func (i *image) document(media string, v any) descriptor {
	raw, err := json.Marshal(v)
	if err != nil && i.err == nil {
		i.err = err
	}
	return i.blob(media, raw)
}

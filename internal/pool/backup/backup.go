// Package backup reads and writes backups of a pool's state.
//
// A backup is a sequence of lines, each a JSON value and a newline: a header, one line
// per record in the order of the keys, and an end by which a reader detects missing
// and damaged lines.
//
//	{"dxpu_backup":1,"cluster_id":"c-1","revision":7,"time":"2026-11-20T08:00:00Z","program":"0.4.0"}
//	{"key":"lease/l-1","value":{"v":1,"id":"l-1"}}
//	...
//	{"end":true,"records":1,"sha256":"<of all lines before, in hexadecimal>"}
//
// The version changes when readers of the previous version cannot read the backup.
// Readers ignore unknown fields. A backup holds secrets.
package backup

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"maps"
	"slices"
	"time"
)

// Version is the version of the format.
const Version = 1

// MaxLine bounds a line, in bytes. It is larger than any record that a store
// takes.
const MaxLine = 16 << 20

// ErrTruncated is returned for a backup without its last line.
var ErrTruncated = errors.New("the file is truncated: its last line is missing")

// Header describes a backup.
type Header struct {
	Version   int    `json:"dxpu_backup"`
	ClusterID string `json:"cluster_id"`
	// Revision is the revision of the pool in the backup.
	Revision uint64    `json:"revision"`
	Time     time.Time `json:"time"`
	// Program is the version of the manager that made the backup, for display.
	Program string `json:"program,omitempty"`
}

type record struct {
	Key   string          `json:"key"`
	Value json.RawMessage `json:"value"`
}

type end struct {
	End     bool   `json:"end"`
	Records int    `json:"records"`
	SHA256  string `json:"sha256"`
}

// Write writes a backup of records, whose values are JSON. It sets h.Version.
func Write(w io.Writer, h Header, records map[string][]byte) error {
	sum := sha256.New()
	out := io.MultiWriter(w, sum)
	h.Version = Version
	if err := writeLine(out, h); err != nil {
		return err
	}
	for _, k := range slices.Sorted(maps.Keys(records)) {
		if err := writeLine(out, record{k, records[k]}); err != nil {
			return fmt.Errorf("backup: record %s: %w", k, err)
		}
	}
	return writeLine(w, end{true, len(records), hex.EncodeToString(sum.Sum(nil))})
}

func writeLine(w io.Writer, v any) error {
	raw, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if len(raw) >= MaxLine {
		return fmt.Errorf("backup: a line of %d bytes is too long", len(raw))
	}
	_, err = w.Write(append(raw, '\n'))
	return err
}

// Read reads a whole backup. It returns no records if any line is bad.
func Read(r io.Reader) (Header, map[string][]byte, error) {
	p := parser{in: bufio.NewReaderSize(r, 64<<10), sum: sha256.New(), records: map[string][]byte{}}
	if err := p.run(); err != nil {
		return Header{}, nil, fmt.Errorf("backup: line %d: %w", p.line, err)
	}
	return p.header, p.records, nil
}

type parser struct {
	in      *bufio.Reader
	sum     hash.Hash
	line    int
	header  Header
	records map[string][]byte
}

func (p *parser) run() error {
	raw, err := p.next()
	if err != nil {
		return err
	}
	switch err := json.Unmarshal(raw, &p.header); {
	case err != nil || p.header.Version == 0:
		return errors.New("this is not a backup of a pool")
	case p.header.Version != Version:
		return fmt.Errorf("the backup has version %d and this program knows %d: use the program that made it, %q, or a later one",
			p.header.Version, Version, p.header.Program)
	}
	p.sum.Write(raw)
	for {
		raw, err := p.next()
		if err != nil {
			return err
		}
		if bytes.HasPrefix(raw, []byte(`{"end":`)) {
			return p.end(raw)
		}
		var r record
		switch err := json.Unmarshal(raw, &r); {
		case err != nil:
			return damaged("%v", err)
		case r.Key == "" || len(r.Value) == 0 || r.Value[0] != '{':
			return damaged("it is not a record")
		case p.records[r.Key] != nil:
			return damaged("record %q is listed twice", r.Key)
		}
		p.sum.Write(raw)
		p.records[r.Key] = r.Value
	}
}

func (p *parser) end(raw []byte) error {
	var e end
	if err := json.Unmarshal(raw, &e); err != nil {
		return damaged("%v", err)
	}
	switch {
	case !e.End || e.Records != len(p.records):
		return damaged("it has %d of %d records", len(p.records), e.Records)
	case e.SHA256 != hex.EncodeToString(p.sum.Sum(nil)):
		return damaged("the checksum does not match")
	}
	if _, err := p.in.ReadByte(); err != io.EOF {
		return damaged("data follows the last line")
	}
	return nil
}

func damaged(format string, args ...any) error {
	return fmt.Errorf("the file is damaged: "+format, args...)
}

// next returns the next line with its newline.
func (p *parser) next() ([]byte, error) {
	p.line++
	var line []byte
	for {
		part, err := p.in.ReadSlice('\n')
		if len(line)+len(part) > MaxLine {
			return nil, damaged("it is longer than %d bytes", MaxLine)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case errors.Is(err, io.EOF):
			return nil, ErrTruncated
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

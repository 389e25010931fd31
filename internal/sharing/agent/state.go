//go:build linux

package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/dxpu-project/dxpu/internal/sharing/offer"
	"github.com/dxpu-project/dxpu/share"
)

// remedy ends the errors of a state file that the agent cannot take over.
const remedy = "bring back a copy of the file, or move it away to start without its shares; end their programs first, because their memory is given out again"

// maxLinks bounds the symbolic links that lead to a state file, as the kernel does.
const maxLinks = 40

// resolveState returns the file that symbolic links lead to: replacing a link would leave a file
// with former shares where the operator keeps them. The file need not be there, but its folder
// must: without it, its disk is probably missing, and the shares with it.
func resolveState(path string) (string, error) {
	at := path
	for range maxLinks {
		to, err := os.Readlink(at)
		if err != nil { // it is no link, or not there
			return at, nil
		}
		if !filepath.IsAbs(to) {
			to = filepath.Dir(at) + "/" + to
		}
		if _, err := os.Stat(filepath.Dir(to)); err != nil {
			return "", fmt.Errorf("%s: it is a link to %s: %w: bring back that folder, or remove the link to start without the shares there", path, to, err)
		}
		at = to
	}
	return "", fmt.Errorf("%s: %w", path, syscall.ELOOP)
}

// readState returns what the state file has.
func (a *Agent) readState() (f file, err error) {
	if a.config.State == "" {
		return f, nil
	}
	// A pipe would keep the agent waiting.
	in, err := os.OpenFile(a.config.State, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	} else if err != nil {
		return f, err
	}
	defer in.Close()
	switch info, err := in.Stat(); {
	case err != nil:
		return f, err
	case !info.Mode().IsRegular():
		return f, fmt.Errorf("%s: is not a regular file: name another one with --state", a.config.State)
	}
	text, err := io.ReadAll(io.LimitReader(in, maxFile+1))
	switch {
	case err != nil:
		return f, err
	case len(text) > maxFile:
		return f, fmt.Errorf("%s: over %d bytes: %s", a.config.State, maxFile, remedy)
	}
	if f, err = parseState(text); err != nil {
		return f, fmt.Errorf("%s: not a state file: %w: %s", a.config.State, err, remedy)
	}
	return f, nil
}

// isShortage reports whether an error tells that the machine lacks something for a while. The
// users of shares cause no other errors of this kind.
func isShortage(err error) bool {
	for _, no := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.EROFS, syscall.EIO} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}

// fileV1 is a state file of version 1. Its other fields are those of later versions.
type fileV1 struct {
	Shares []struct {
		Record
		Compute share.PPM    `json:"compute_ppm"`
		Limit   share.PPM    `json:"limit_ppm"`
		Memory  int64        `json:"memory_bytes"`
		Kept    int64        `json:"kept_bytes"`
		GPUs    []string     `json:"gpus"`
		Lease   *offer.Lease `json:"lease"`
	} `json:"shares"`
}

// parseState returns a state file of this version, or of an earlier one.
func parseState(text []byte) (f file, err error) {
	if err := json.Unmarshal(text, &f); err != nil {
		return f, err
	}
	switch f.Version {
	case fileVersion:
		return f, nil
	case 1:
	default:
		return f, fmt.Errorf("version %d, want 1 to %d", f.Version, fileVersion)
	}
	var old fileV1
	if err := json.Unmarshal(text, &old); err != nil {
		return f, err
	}
	f.Shares = nil
	for i := range old.Shares {
		o := &old.Shares[i]
		r := o.Record
		r.Parts = nil
		for _, gpu := range o.GPUs {
			r.Parts = append(r.Parts, RecordPart{GPU: gpu, Compute: o.Compute, Limit: o.Limit, Memory: o.Memory, Kept: o.Kept, Lease: o.Lease})
		}
		f.Shares = append(f.Shares, r)
	}
	return f, nil
}

//go:build linux

package agent

import (
	"encoding/json"
	"fmt"

	"github.com/dxpu-project/dxpu/internal/sharing/offer"
	"github.com/dxpu-project/dxpu/share"
)

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

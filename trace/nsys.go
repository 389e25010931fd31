package trace

import (
	"errors"
	"io"

	"github.com/dxpu-project/dxpu/workload"
)

var sqliteMagic = []byte("SQLite format 3\x00")

// ReadNsys reads a sqlite export of Nsight Systems.
func ReadNsys(r io.ReaderAt, size int64, o Options) (*workload.Workload, error) {
	return nil, errors.ErrUnsupported
}

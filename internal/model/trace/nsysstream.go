package trace

import (
	"github.com/dxpu-project/dxpu/internal/model/trace/sqlite"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// nsysContext is a context of CUDA in a process.
type nsysContext struct {
	process uint64
	context int64
}

// maxContexts bounds what a hostile file makes the reader remember.
const maxContexts = 1 << 16

// streamTypes reads with which flag each stream was made. The default stream of a context,
// which no call makes, is not always in the table.
func (n *nsys) streamTypes() error {
	// Values of ENUM_CUPTI_STREAM_TYPE.
	types := map[int64]workload.StreamType{1: workload.BlockingStream, 2: workload.NonBlockingStream, 3: workload.DefaultStream}
	cols := []string{"streamId!", "hwId", "vmId", "processId", "contextId", "flag"}
	return n.scan(tableStream, cols, false, func(r *sqlite.Row, c []int, _ func() string) {
		var v [6]int64
		for i := range v {
			var ok bool
			if v[i], ok = r.Int(c[i]); !ok {
				return
			}
		}
		p := uint64(v[1])<<32 | uint64(v[2])<<24 | uint64(v[3])
		device, ok := n.contexts[nsysContext{p, v[4]}]
		if !ok {
			return // nothing ran in this context
		}
		n.b.SetStreamType(workload.Stream{Process: p, Device: device, ID: uint64(v[0])}, types[v[5]])
	})
}

// Package trace reads recorded runs of GPU programs, from the PyTorch profiler
// (Kineto) and from Nsight Systems, into the one workload model. Files are
// read as streams in bounded memory; damaged events are counted and reported,
// never silently used.
package trace

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// Options for reading.
type Options struct {
	// Progress is called now and then with bytes read of the file and its
	// size (0 when unknown); may be nil.
	Progress func(read, size int64)
	// StepPrefix is how the names of annotations that mark training steps
	// begin; "" means DefaultStepPrefix.
	StepPrefix string
}

// DefaultStepPrefix is what the PyTorch profiler calls its steps.
const DefaultStepPrefix = "ProfilerStep#"

func (o Options) stepPrefix() []byte {
	if o.StepPrefix == "" {
		return []byte(DefaultStepPrefix)
	}
	return []byte(o.StepPrefix)
}

// ErrFormat is what a file gives that is no trace of a known format.
var ErrFormat = errors.New("not a trace: want Chrome JSON of the PyTorch profiler (.json or .json.gz) or a .sqlite export of Nsight Systems (nsys export --type sqlite)")

const sniffLen = 512

// Open reads the trace in the file, whatever its format.
func Open(path string, o Options) (*workload.Workload, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	defer func() { _ = f.Close() }()
	var head [sniffLen]byte
	n, err := io.ReadFull(f, head[:])
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("trace: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("trace: %w", err)
	}
	var w *workload.Workload
	if bytes.HasPrefix(head[:n], sqliteMagic) {
		w, err = ReadNsys(f, st.Size(), o)
	} else if _, err = f.Seek(0, io.SeekStart); err == nil {
		w, err = ReadKineto(&progressReader{r: f, size: st.Size(), report: o.Progress}, o)
	}
	if err != nil {
		return nil, fmt.Errorf("trace: %s: %w", path, err)
	}
	return w, nil
}

// ReadKineto reads Chrome JSON of the PyTorch profiler, plain or gzipped.
func ReadKineto(r io.Reader, o Options) (*workload.Workload, error) {
	br := bufio.NewReaderSize(r, 1<<16)
	head, _ := br.Peek(2)
	if len(head) == 2 && head[0] == 0x1f && head[1] == 0x8b {
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		return readKineto(z, o)
	}
	return readKineto(br, o)
}

// progressReader reports about every 8 MiB.
type progressReader struct {
	r                io.Reader
	size, read, told int64
	report           func(read, size int64)
}

const progressEvery = 8 << 20

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.read += int64(n)
	if p.report != nil && (p.read-p.told >= progressEvery || err != nil) {
		p.told = p.read
		p.report(p.read, p.size)
	}
	return n, err
}

// Package trace reads traces of GPU programs, recorded by the PyTorch profiler (Kineto),
// Nsight Systems or rocprofv3, and Chakra execution traces into a workload. It reads files
// as streams in bounded memory, and counts and reports damaged events instead of using
// them.
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
	// Progress, unless nil, is called from time to time with the number of
	// bytes read of the file and the file's size (0 if unknown).
	Progress func(read, size int64)
	// StepPrefix is the prefix of the annotations that mark training steps;
	// "" means DefaultStepPrefix.
	StepPrefix string
}

// DefaultStepPrefix is the prefix that the PyTorch profiler gives its steps.
const DefaultStepPrefix = "ProfilerStep#"

func (o Options) stepPrefix() []byte {
	if o.StepPrefix == "" {
		return []byte(DefaultStepPrefix)
	}
	return []byte(o.StepPrefix)
}

// ErrFormat is returned for a file that is not a trace in a known format.
var ErrFormat = errors.New("not a trace: want Chrome JSON of the PyTorch profiler (.json or .json.gz), a .sqlite export of Nsight Systems (nsys export --type sqlite), a database of rocprofv3 (.db) or a Chakra execution trace (.et)")

const sniffLen = 512

// Open reads the trace in a file and detects its format.
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
		if err = checkLogs(path); err == nil {
			w, err = ReadSQLite(f, st.Size(), o)
		}
	} else if _, err = f.Seek(0, io.SeekStart); err == nil {
		w, err = readStream(&progressReader{r: f, size: st.Size(), report: o.Progress}, o)
	}
	if err != nil {
		return nil, fmt.Errorf("trace: %s: %w", path, err)
	}
	return w, nil
}

// journalMagic begins a rollback journal that has not been committed
// (https://www.sqlite.org/fileformat2.html, section 3).
const journalMagic = "\xd9\xd5\x05\xf9\x20\xa1\x63\xd7"

// checkLogs refuses a database with a write-ahead log or an uncommitted rollback
// journal beside it: rows in the log are not in the database, and a journal means
// that a transaction was interrupted.
func checkLogs(path string) error {
	if st, err := os.Stat(path + "-wal"); err == nil && st.Size() > 0 {
		return fmt.Errorf("%s-wal holds rows that are not in the database yet: run sqlite3 %q 'PRAGMA wal_checkpoint(TRUNCATE)' first", path, path)
	}
	f, err := os.Open(path + "-journal")
	if err != nil {
		return nil //nolint:nilerr // without a journal there is nothing to check
	}
	defer func() { _ = f.Close() }()
	head := make([]byte, len(journalMagic))
	if _, err := io.ReadFull(f, head); err == nil && string(head) == journalMagic {
		return fmt.Errorf("%s-journal shows that a transaction was interrupted: run sqlite3 %q 'PRAGMA integrity_check' to roll it back first", path, path)
	}
	return nil
}

// ReadKineto reads Chrome JSON of the PyTorch profiler, plain or gzipped.
func ReadKineto(r io.Reader, o Options) (*workload.Workload, error) {
	br, err := unzipped(r)
	if err != nil {
		return nil, err
	}
	return readKineto(br, o)
}

// ReadChakra reads a Chakra execution trace in protocol buffers, plain or gzipped.
func ReadChakra(r io.Reader) (*workload.Workload, error) {
	br, err := unzipped(r)
	if err != nil {
		return nil, err
	}
	return readChakra(br)
}

// readStream reads a trace in one of the formats that are read from front to back.
func readStream(r io.Reader, o Options) (*workload.Workload, error) {
	br, err := unzipped(r)
	if err != nil {
		return nil, err
	}
	if head, _ := br.Peek(sniffLen); isChakra(head) {
		return readChakra(br)
	}
	return readKineto(br, o)
}

// unzipped returns a reader of the contents of a file that may be gzipped.
func unzipped(r io.Reader) (*bufio.Reader, error) {
	br := bufio.NewReaderSize(r, 1<<16)
	head, _ := br.Peek(2)
	if len(head) == 2 && head[0] == 0x1f && head[1] == 0x8b {
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, fmt.Errorf("gzip: %w", err)
		}
		return bufio.NewReaderSize(z, 1<<16), nil
	}
	return br, nil
}

// progressReader calls report about every 8 MiB.
type progressReader struct {
	r                    io.Reader
	size, read, reported int64
	report               func(read, size int64)
}

const progressEvery = 8 << 20

func (p *progressReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	p.read += int64(n)
	if p.report != nil && (p.read-p.reported >= progressEvery || err != nil) {
		p.reported = p.read
		p.report(p.read, p.size)
	}
	return n, err
}

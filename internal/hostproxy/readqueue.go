package hostproxy

import (
	"github.com/dxpu-project/dxpu/internal/dataplane/engine"
	"github.com/dxpu-project/dxpu/internal/dataplane/transaction"
	"github.com/dxpu-project/dxpu/link"
	"github.com/dxpu-project/dxpu/pcie"
	"github.com/dxpu-project/dxpu/tlp"
)

// maxReads is the number of a device's reads that may wait for their completions:
// one for each tag of a function.
const maxReads = pcie.MaxTags

// readQueue holds the device's outstanding reads of guest memory, in the order of
// arrival.
type readQueue struct {
	entry  engine.Entry // of the Transmit that is under way
	buf    []byte       // payload of the present completion
	out    link.Run     // of completions, the present one
	jobs   []readJob
	head   int // the jobs before it are done
	count  int // reads in the jobs from head on
	ticket uint64
}

// readJob is one read, or a run of which done reads are answered and the ReadJob is the
// next one.
type readJob struct {
	transaction.ReadJob
	run    link.Run // Count 0: one read
	done   int
	mps    int
	addr   uint64
	n      int
	fetch  fetchState
	status pcie.CplStatus
	bytes  []byte // the bytes that a DMA message fetched; nil: read in place
	ticket uint64 // matches the answer of a message
}

type fetchState uint8

const (
	fetchNone    fetchState = iota // not started
	fetchPending                   // a DMA message is under way
	fetchDone                      // status and, if not in place, bytes are set
)

func (q *readQueue) empty() bool { return q.head == len(q.jobs) }

func (q *readQueue) front() *readJob { return &q.jobs[q.head] }

// add queues a read request; false means that the device has more reads
// outstanding than tags.
func (q *readQueue) add(p *tlp.Packet, mps int) bool {
	if q.count == maxReads {
		return false
	}
	q.count++
	q.push().start(p, mps)
	return true
}

// fits reports whether addRun takes a run: not if the device then has more reads
// outstanding than tags, nor if the reads have completions that are no run: several each, or
// with different lower addresses.
func (q *readQueue) fits(r *link.Run, mps int) bool {
	return q.count+r.Count <= maxReads && r.Size() <= mps && r.Size()%lowerAddresses == 0
}

// addRun queues a run of reads, if it fits.
func (q *readQueue) addRun(r *link.Run, mps int) bool {
	if !q.fits(r, mps) {
		return false
	}
	q.count += r.Count
	job := q.push()
	job.run = *r
	job.start(&r.First, mps)
	return true
}

// lowerAddresses is what Lower Address of a completion counts up to (section 2.2.9).
const lowerAddresses = 128

// push appends an empty job.
func (q *readQueue) push() *readJob {
	if q.head > len(q.jobs)/2 && len(q.jobs) == cap(q.jobs) { // seldom enough to cost nothing
		n := copy(q.jobs, q.jobs[q.head:])
		q.jobs, q.head = q.jobs[:n], 0
	}
	q.ticket++
	q.jobs = append(q.jobs, readJob{ticket: q.ticket})
	return &q.jobs[len(q.jobs)-1]
}

// start begins the answer to a request.
func (j *readJob) start(p *tlp.Packet, mps int) {
	j.mps = mps
	j.addr, j.n = p.ByteRange()
	j.Start(p, rootID, pcie.DefaultRCB, mps)
}

// pop removes the read at the front.
func (q *readQueue) pop() {
	if q.front().run.Count > 0 {
		q.popRun(1)
		return
	}
	q.count--
	q.next()
}

// popRun removes the first n reads of the run at the front.
func (q *readQueue) popRun(n int) {
	job := q.front()
	q.count -= n
	if job.done += n; job.done == job.run.Count {
		q.next()
		return
	}
	var p tlp.Packet
	job.run.TLP(job.done, &p)
	q.ticket++
	job.fetch, job.status, job.bytes, job.ticket = fetchNone, 0, nil, q.ticket
	job.start(&p, job.mps)
}

// next moves to the next job.
func (q *readQueue) next() {
	q.jobs[q.head] = readJob{}
	if q.head++; q.empty() {
		q.drop()
	}
}

func (q *readQueue) drop() {
	clear(q.jobs)
	q.jobs, q.head, q.count = q.jobs[:0], 0, 0
}

// runBytes bounds the bytes of one run of completions: the processor's nearest cache keeps
// them between the copy and the computation of their CRCs.
const runBytes = 16 << 10

// answerRun sends completions of the run of reads at the front as a run, from memory that
// is read at once. It returns false if the next read must be answered on its own.
func (q *readQueue) answerRun(e engine.Entry, s *slot, read func(addr uint64, dst []byte) bool) bool {
	if s.binding == nil || s.gone {
		return false
	}
	size := q.front().run.Size()
	if size == 0 {
		return false
	}
	r, addr := q.completions(min(s.binding.Fit(e, size), runBytes/size))
	if r == nil || r.Count == 0 {
		return false
	}
	r.Data = s.binding.Payload(e, r.Count*size)
	if r.Data == nil || !read(addr, r.Data) {
		return false
	}
	r.First.Data = r.Data[:size:size]
	if s.sendRun(e, r) != nil {
		return false
	}
	q.popRun(r.Count)
	return true
}

// completions returns the run of completions, without their data, of up to most reads of
// the run at the front, and the address of the bytes. It returns nil if there is no run
// there, or if its next read is being fetched by message.
func (q *readQueue) completions(most int) (r *link.Run, addr uint64) {
	job := q.front()
	if job.run.Count == 0 || job.fetch != fetchNone {
		return nil, 0
	}
	r, size := &q.out, job.run.Size()
	var p tlp.Packet
	job.run.TLP(job.done, &p)
	transaction.Respond(&r.First, &p, rootID, pcie.SuccessfulCompletion)
	r.First.Type, r.First.Length = tlp.CplD, uint16(size/pcie.DW)
	r.Count = min(most, job.run.Count-job.done)
	return r, p.Addr
}

// arrived notes the answer to a DMA message.
func (q *readQueue) arrived(ticket uint64, st pcie.CplStatus) {
	for i := q.head; i < len(q.jobs); i++ {
		if job := &q.jobs[i]; job.ticket == ticket {
			job.fetch, job.status = fetchDone, st
			return
		}
	}
}

// fetched returns the bytes that a message fetched for the read at the front.
func (q *readQueue) fetched(addr uint64, n int) []byte {
	if q.empty() || q.front().bytes == nil {
		return nil
	}
	job := q.front()
	off := addr - job.addr
	if addr < job.addr || off+uint64(n) > uint64(len(job.bytes)) {
		return nil
	}
	return job.bytes[off : off+uint64(n)]
}

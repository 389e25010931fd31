package trace

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// kineto reads one trace.
type kineto struct {
	s         *scanner
	b         *workload.Builder
	steps     []byte
	ev        event
	at        int64 // position of ev in the stream
	truncated bool  // the stream ended inside a value
	array     bool  // the file has traceEvents or is a bare array
	complete  bool  // the document's last bracket was read
}

func readKineto(r io.Reader, o Options) (*workload.Workload, error) {
	k := &kineto{s: newScanner(r), b: workload.NewBuilder("kineto"), steps: o.stepPrefix()}
	if err := k.document(); err != nil {
		return nil, err
	}
	if k.truncated {
		reason := "truncated, with all events after it: the file ends early"
		if k.s.fail != nil {
			reason = fmt.Sprintf("truncated, with all events after it: the file ends early (%v)", k.s.fail)
		}
		k.b.Report.Incomplete = true
		k.b.Report.Drop(reason, fmt.Sprintf("byte %d", k.s.where()))
	}
	k.checkRest()
	return k.b.Build()
}

// checkRest reads the stream to its end, so that gzip verifies its checksum.
func (k *kineto) checkRest() {
	// A file system may leave zero bytes at the end of a file that was not closed.
	if c, ok := k.s.peek(); ok && k.complete && c != 0 {
		k.b.Report.Doubt("the document ends at byte %d; the rest of the file was not read", k.s.where())
	}
	for !k.truncated && k.s.pos <= k.s.end {
		k.s.pos = k.s.end
		if !k.s.fill() {
			break
		}
	}
	if k.s.fail != nil && !k.truncated {
		k.b.Report.Drop(fmt.Sprintf("possibly wrong: %v", k.s.fail), fmt.Sprintf("byte %d", k.s.where()))
	}
}

// document reads the file: an object with traceEvents, or a bare array of events.
func (k *kineto) document() error {
	if c, ok := k.s.peek(); ok && c == 0xef && bytes.HasPrefix(k.s.rest(), []byte("\xef\xbb\xbf")) {
		k.s.pos += 3
	}
	c, ok := k.s.peek()
	switch {
	case ok && c == '[':
		k.events()
		k.complete = !k.truncated
		return nil
	case !ok || c != '{':
		if k.s.fail != nil {
			return fmt.Errorf("read: %w", k.s.fail)
		}
		return ErrFormat
	}
	k.s.pos++
	for !k.truncated {
		if k.s.eat('}') {
			k.complete = true
			break
		}
		if !k.topMember() {
			if !k.array {
				return ErrFormat
			}
			break
		}
		k.s.eat(',')
	}
	if !k.array {
		return fmt.Errorf("no traceEvents in the file: %w", ErrFormat)
	}
	return nil
}

// topMember reads one key and value of the outer object. It returns false if the
// rest of the file is invalid or missing.
func (k *kineto) topMember() bool {
	var key []byte
	c, ok := k.s.peek()
	st := short
	if ok && c == '"' {
		st = k.s.parse(func(b []byte) (int, status) {
			n, st := skipString(b, 0)
			if st == done {
				key = append(key[:0], b[1:n-1]...)
			}
			return n, st
		})
	} else if ok {
		st = bad
	}
	if st == done && !k.s.eat(':') {
		if st = bad; k.s.pos == k.s.end {
			st = short
		}
	}
	if st != done {
		k.endOutside(st)
		return false
	}
	c, _ = k.s.peek()
	switch {
	case string(key) == "traceEvents" && c == '[':
		k.events()
		return true
	case string(key) == "deviceProperties" && c == '[':
		st = k.devices()
	case string(key) == "distributedInfo" && c == '{':
		st = k.distributed()
	default:
		st = k.s.discard()
	}
	if st != done {
		k.endOutside(st)
	}
	return st == done
}

// endOutside notes why reading ended outside of the events.
func (k *kineto) endOutside(st status) {
	if st == short {
		k.truncated = true
		return
	}
	k.b.Report.Note("the file is not JSON from byte %d on; the rest was not read", k.s.where())
}

// devices reads the names in deviceProperties.
func (k *kineto) devices() status {
	return k.s.parse(func(b []byte) (int, status) {
		n, st := skipContainer(b, 0)
		if st != done {
			return n, st
		}
		var props []struct {
			Name string `json:"name"`
		}
		if json.Unmarshal(b[:n], &props) == nil {
			for _, p := range props {
				k.b.AddDevice(p.Name)
			}
		}
		return n, done
	})
}

// distributed reads the rank and the number of ranks in distributedInfo.
func (k *kineto) distributed() status {
	return k.s.parse(func(b []byte) (int, status) {
		n, st := skipContainer(b, 0)
		if st != done {
			return n, st
		}
		var info struct {
			Rank  *int32 `json:"rank"`
			World int32  `json:"world_size"`
		}
		if json.Unmarshal(b[:n], &info) == nil && info.Rank != nil && *info.Rank >= 0 {
			k.b.SetRank(*info.Rank)
			k.b.SetWorld(info.World)
		}
		return n, done
	})
}

// events reads the array of events up to its closing bracket.
func (k *kineto) events() {
	k.array = true
	k.s.pos++
	for {
		c, ok := k.s.peek()
		if !ok {
			k.truncated = true
			return
		}
		switch c {
		case ']':
			k.s.pos++
			return
		case ',':
			k.s.pos++
			continue
		}
		k.at = k.s.where()
		st := k.s.parse(k.ev.parse)
		k.b.Report.Events++
		if st == done {
			k.addEvent()
			continue
		}
		if st == short && k.s.eof {
			k.truncated = true
			return
		}
		k.b.Report.Drop("not valid JSON", k.position())
		if !k.recover() {
			return
		}
	}
}

func (k *kineto) position() string { return fmt.Sprintf("byte %d", k.at) }

// recover skips to the next bytes that look like an event.
func (k *kineto) recover() bool {
	k.s.pos++
	for {
		at, found := resync(k.s.rest(), 0)
		k.s.pos += at
		if found {
			return true
		}
		if !k.s.fill() {
			k.s.pos = k.s.end
			k.truncated = true
			return false
		}
	}
}

// addEvent adds the parsed event if it is a call, operation, step or synchronisation.
func (k *kineto) addEvent() {
	e := &k.ev
	c := e.class()
	if e.ph == 'B' && (c == classKernel || c == classCopy || c == classMemset) {
		k.b.Report.Drop("of the GPU written as begin and end, a form that no known profiler uses", k.position())
	}
	if e.ph != 'X' || c == classNone {
		return
	}
	step := c == classAnnotation && bytes.HasPrefix(e.name, k.steps)
	var part []byte
	if c == classModule || c == classAnnotation && !step {
		if part = e.rangeName(); len(part) == 0 {
			return
		}
	}
	ts, ok1 := parseMicros(unquote(e.ts))
	dur, ok2 := parseMicros(unquote(e.dur))
	if !ok1 || !ok2 {
		k.b.Report.Drop("without a readable ts or dur", k.position())
		return
	}
	corr, _ := parseInt(e.corr)
	switch c {
	case classAnnotation, classModule:
		th, ok := k.thread()
		switch {
		case !ok:
		case !step:
			k.b.AddRange(workload.Range{Name: k.b.Name(part), Thread: th, Start: ts, Dur: dur}, k.position)
		default:
			k.b.AddStep(workload.Step{Name: string(e.name.decode()), Thread: th, Start: ts, Dur: dur}, k.position)
		}
	case classCall:
		name := e.name.decode()
		f, keep := workload.Classify(string(name))
		if !keep {
			return
		}
		if th, ok := k.thread(); ok {
			k.b.AddFunction(f, workload.Call{Start: ts, Dur: dur, Corr: uint32(corr), Name: k.b.Name(name), Thread: th}, k.position)
		}
	case classSync:
		k.awaited(uint32(corr))
	case classEvent:
		if st, ok := k.streamOf(); ok {
			k.b.AddEvent(0, uint32(corr), st)
		}
	case classKernel, classCopy, classMemset:
		k.op(c, workload.Op{Start: ts, Dur: dur, Corr: uint32(corr)})
	case classNone:
	}
}

// awaited adds what a call waits for. The profiler records it on request
// (enable_cuda_sync_events), with -1 for what it does not know.
func (k *kineto) awaited(corr uint32) {
	e := &k.ev
	a := workload.Awaited{Corr: corr, Stream: workload.None, From: workload.None}
	dev, okDev := parseInt(e.device)
	if !okDev {
		dev, okDev = parseInt(e.pid)
	}
	stream := func(v []byte) int32 {
		id, ok := parseInt(v)
		if !ok || !okDev || id < 0 || id >= noStream {
			return workload.None
		}
		st, ok := k.b.Stream(workload.Stream{Device: dev, ID: uint64(id)})
		if !ok {
			return workload.None
		}
		return st
	}
	switch {
	case bytes.HasPrefix(e.name, []byte("Stream Sync")):
		if st, ok := k.streamOf(); ok {
			a.Stream = st
		}
	case bytes.HasPrefix(e.name, []byte("Stream Wait Event")):
		a.Stream, a.From = stream(e.stream), stream(e.from)
	case bytes.HasPrefix(e.name, []byte("Event Sync")):
		a.From = stream(e.from)
	default:
		return
	}
	if id, ok := parseInt(e.recorded); ok && id > 0 {
		a.Event = uint32(id)
	}
	k.b.AddAwaited(a)
}

// noStream is CUPTI_SYNCHRONIZATION_INVALID_VALUE.
const noStream = 1<<32 - 1

// op completes an operation on a stream and adds it.
func (k *kineto) op(c class, op workload.Op) {
	e := &k.ev
	var ok bool
	if op.Stream, ok = k.streamOf(); !ok {
		k.b.Report.Drop("without a readable stream", k.position())
		return
	}
	op.Bytes, _ = parseInt(e.bytes)
	op.Bytes = max(op.Bytes, 0)
	name := e.name.decode()
	op.Name = k.b.Name(name)
	id, inGraph := parseInt(e.graphNode)
	switch {
	case c == classCopy:
		op.Kind = workload.ClassifyCopy(string(name))
		op.Pageable = bytes.Contains(name, []byte("Pageable"))
	case c == classMemset:
		op.Kind = workload.Memset
	case inGraph && id != 0:
		op.Kind = workload.GraphKernel
	default:
		op.Kind = workload.Kernel
	}
	if len(e.group) > 0 && workload.ClassifyCollective(string(name)) != workload.NoCollective {
		op.Group = k.b.Name(slices.Concat(e.group.decode(), []byte(" "), e.ranks.decode()))
	}
	k.b.AddOp(op, k.position)
}

// thread returns the host thread of the event. Its calls have no process for the
// join, because the pid of an operation is a device.
func (k *kineto) thread() (int32, bool) {
	pid, _ := parseInt(k.ev.pid)
	tid, ok := parseInt(k.ev.tid)
	var th int32
	if ok {
		th, ok = k.b.Thread(workload.Thread{Owner: uint64(pid), ID: uint64(tid)})
	}
	if !ok {
		k.b.Report.Drop("without a readable thread", k.position())
	}
	return th, ok
}

// streamOf returns the stream of the event from its args or, without them, from
// pid and tid; in 2021 tid was "stream 7".
func (k *kineto) streamOf() (int32, bool) {
	e := &k.ev
	id, ok := parseInt(e.stream)
	if !ok {
		id, ok = parseInt(bytes.TrimSpace(bytes.TrimPrefix(unquote(e.tid), []byte("stream "))))
	}
	dev, okDev := parseInt(e.device)
	if !okDev {
		dev, okDev = parseInt(e.pid)
	}
	if !ok || !okDev {
		return 0, false
	}
	return k.b.Stream(workload.Stream{Device: dev, ID: uint64(id)})
}

package trace

import "bytes"

// event is one entry of traceEvents. The slices alias the window and hold the
// values as in the file: strings include their quotes, except name and cat.
type event struct {
	name, cat            text
	ph                   byte
	pid, tid, ts, dur    []byte
	corr, stream, device []byte
	bytes                []byte
	graphNode            []byte
	from, recorded       []byte // of waits for an event: its stream, and the correlation of the call that recorded it
	group, ranks         text   // of collectives: the name and the ranks of the group of processes
	argsFrom, argsTo     int    // position of args that precede cat or ph
}

// parse reads the event object that begins at b[0] and returns its length. Keys
// may be in any order; parse skips those that it does not need.
func (e *event) parse(b []byte) (int, status) {
	*e = event{}
	n, st := e.members(b, 0, (*event).member)
	if st == done && e.argsTo > 0 && e.wanted() {
		if _, st := e.members(b[:e.argsTo], e.argsFrom, (*event).arg); st != done {
			return 0, bad
		}
	}
	return n, st
}

// members calls f with each key of the object that begins at b[i] and the
// index of its value; f returns the index after the value. members accepts a
// comma before the closing brace.
func (e *event) members(b []byte, i int, f func(e *event, b, key []byte, i int) (int, status)) (int, status) {
	if i >= len(b) {
		return 0, short
	}
	if b[i] != '{' {
		return 0, bad
	}
	i++
	for {
		if i = skipSpace(b, i); i >= len(b) {
			return 0, short
		}
		if b[i] == '}' {
			return i + 1, done
		}
		if b[i] != '"' {
			return 0, bad
		}
		end, st := skipString(b, i)
		if st != done {
			return 0, st
		}
		key := b[i+1 : end-1]
		if i = skipSpace(b, end); i >= len(b) {
			return 0, short
		}
		if b[i] != ':' {
			return 0, bad
		}
		if i, st = f(e, b, key, skipSpace(b, i+1)); st != done {
			return 0, st
		}
		if i = skipSpace(b, i); i >= len(b) {
			return 0, short
		}
		switch b[i] {
		case ',':
			i++
		case '}':
		default:
			return 0, bad
		}
	}
}

// member reads a key of the event itself.
func (e *event) member(b, key []byte, i int) (int, status) {
	if string(key) == "args" {
		if e.ph != 0 && e.cat != nil && i < len(b) && b[i] == '{' {
			if !e.wanted() {
				return skipContainer(b, i)
			}
			return e.members(b, i, (*event).arg)
		}
		end, st := skipValue(b, i)
		if st == done && b[i] == '{' {
			e.argsFrom, e.argsTo = i, end
		}
		return end, st
	}
	end, st := skipValue(b, i)
	if st != done {
		return 0, st
	}
	v := b[i:end]
	switch string(key) {
	case "ph":
		if s := unquote(v); len(s) > 0 {
			e.ph = s[0]
		}
	case "cat":
		e.cat = unquote(v)
	case "name":
		e.name = unquote(v)
	case "pid":
		e.pid = v
	case "tid":
		e.tid = v
	case "ts":
		e.ts = v
	case "dur":
		e.dur = v
	}
	return end, done
}

// arg reads a key of the event's args.
func (e *event) arg(b, key []byte, i int) (int, status) {
	end, st := skipValue(b, i)
	if st != done {
		return 0, st
	}
	v := b[i:end]
	switch string(key) {
	case "correlation":
		e.corr = v
	case "stream":
		e.stream = v
	case "device":
		e.device = v
	case "bytes", "Bytes":
		e.bytes = v
	case "graph node id":
		e.graphNode = v
	case "wait_on_stream":
		e.from = v
	case "wait_on_cuda_event_record_corr_id":
		e.recorded = v
	case "Process Group Name":
		e.group = unquote(v)
	case "Process Group Ranks":
		e.ranks = unquote(v)
	}
	return end, done
}

// wanted reports whether the event's args are needed.
func (e *event) wanted() bool { return e.ph == 'X' && e.class() >= classCall }

// class is what an event describes, by its category.
type class uint8

const (
	classNone class = iota
	classAnnotation
	classModule
	classCall
	classKernel
	classCopy
	classMemset
	classSync
	classEvent
)

// class returns the event's class. Kineto writes categories in lower case since
// 2022; before, it capitalised them and omitted "gpu_".
func (e *event) class() class {
	switch string(e.cat) {
	case "kernel", "Kernel":
		return classKernel
	case "gpu_memcpy", "Memcpy", "memcpy":
		return classCopy
	case "gpu_memset", "Memset", "memset":
		return classMemset
	case "cuda_runtime", "Runtime", "runtime", "cuda_driver", "hip_runtime":
		return classCall
	case "cuda_sync":
		return classSync
	case "cuda_event":
		return classEvent
	case "user_annotation", "Operator", "cpu_op", "UserAnnotation":
		return classAnnotation
	case "python_function":
		return classModule
	}
	return classNone
}

// modulePrefix begins the names of the calls of layers, which the PyTorch profiler records
// with with_stack or with_modules.
const modulePrefix = "nn.Module: "

// rangeName returns the name of a part of the program, nil if the event is none: each
// operator is a cpu_op, which are too many to be of use.
func (e *event) rangeName() []byte {
	switch string(e.cat) {
	case "user_annotation", "UserAnnotation":
		return e.name.decode()
	case "python_function":
		if name, ok := bytes.CutPrefix(e.name, []byte(modulePrefix)); ok {
			return text(name).decode()
		}
	}
	return nil
}

// eventKeys are the keys that events of the known profilers begin with.
var eventKeys = [...]string{"ph", "name", "cat", "ts", "pid", "tid", "dur", "id", "s", "args", "bp"}

// resync returns the index at or after i where the next event seems to begin: a
// brace that follows a comma, bracket or brace and precedes one of eventKeys. If
// found is false, at is where to continue with more data.
func resync(b []byte, i int) (at int, found bool) {
	for i < len(b) {
		j := bytes.IndexByte(b[i:], '{')
		if j < 0 {
			return len(b), false
		}
		i += j
		k := i - 1
		for k >= 0 && isSpace(b[k]) {
			k--
		}
		if k < 0 || b[k] == ',' || b[k] == '[' || b[k] == '}' {
			q := skipSpace(b, i+1)
			if q+8 > len(b) {
				return i, false
			}
			for _, key := range eventKeys {
				if b[q] == '"' && string(b[q+1:q+1+len(key)]) == key && b[q+1+len(key)] == '"' {
					return i, true
				}
			}
		}
		i++
	}
	return len(b), false
}

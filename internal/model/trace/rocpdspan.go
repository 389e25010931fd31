package trace

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/internal/model/trace/sqlite"
	"github.com/dxpu-project/dxpu/internal/model/workload"
)

// Limits of what a hostile file makes the reader remember.
const (
	maxTracks  = 1 << 20
	maxStamps  = 4 * workload.MaxRecords
	maxMessage = 1 << 12 // bytes of the JSON with the text of a range
)

// rocpdMarker begins the names of the categories of ROCTx.
const rocpdMarker = "MARKER_"

// rocpdPlace says where something ran. Schema version 3 has it in each row, version 4 in a
// table of tracks.
type rocpdPlace struct{ pid, tid, agent, stream int64 }

// rocpdStamps are the times of schema version 4.0 by their ascending numbers.
type rocpdStamps struct{ ids, values []int64 }

// at returns a time.
func (t rocpdStamps) at(id int64) (int64, bool) {
	i, ok := slices.BinarySearch(t.ids, id)
	if !ok {
		return 0, false
	}
	return t.values[i], true
}

// rocpdSpan holds the columns that calls and operations share.
type rocpdSpan struct {
	rocpdPlace
	start, dur time.Duration
	process    uint64
	event      int64
	corr       uint32
}

// message returns the text of a range from the data of its event.
func message(data string) string {
	var m struct {
		Message string `json:"message"`
	}
	if len(data) > maxMessage || json.Unmarshal([]byte(data), &m) != nil {
		return ""
	}
	return m.Message
}

// categories reads the names of categories, which version 3 has among all strings.
func (r *rocpd) categories() error {
	if _, ok := r.db.Table(rocpdCategory + r.run); !ok {
		return nil
	}
	clear(r.markers)
	return r.scan(rocpdCategory+r.run, []string{"id!", "name!"}, false, func(row *sqlite.Row, c []int, _ func() string) {
		if id, ok := row.Int(c[0]); ok && len(r.markers) < maxStrings && strings.HasPrefix(row.Text(c[1]), rocpdMarker) {
			r.markers[id] = true
		}
	})
}

func (r *rocpd) readTracks() error {
	return r.scan(rocpdTrack+r.run, []string{"id!", "pid", "tid", "agent_id", "stream_id"}, false, func(row *sqlite.Row, c []int, where func() string) {
		id, ok := row.Int(c[0])
		switch {
		case !ok:
		case len(r.tracks) >= maxTracks:
			r.b.Report.Drop("that are tracks beyond the limit", where())
		default:
			var p rocpdPlace
			p.pid, _ = row.Int(c[1])
			p.tid, _ = row.Int(c[2])
			p.agent, _ = row.Int(c[3])
			p.stream, _ = row.Int(c[4])
			r.tracks[id] = p
		}
	})
}

func (r *rocpd) readStamps() error {
	return r.scan(rocpdTimestamp+r.run, []string{"id!", "value!"}, false, func(row *sqlite.Row, c []int, where func() string) {
		id, ok1 := row.Int(c[0])
		value, ok2 := row.Int(c[1])
		switch n := len(r.stamps.ids); {
		case !ok1 || !ok2:
		case n >= maxStamps || n > 0 && id <= r.stamps.ids[n-1]:
			r.b.Report.Drop("that are times out of order or beyond the limit", where())
		default:
			r.stamps.ids, r.stamps.values = append(r.stamps.ids, id), append(r.stamps.values, value)
		}
	})
}

// spans reads a table of calls or operations in each of the three layouts: version 3 has
// times and place in each row, version 4.0 numbers of times and of a track, later ones the
// times and the number of a track. device is the names of the columns with GPU and stream,
// where the row has them, own that of further ones, whose indices row gets.
func (r *rocpd) spans(table string, device, own []string, row func(row *sqlite.Row, c []int, s rocpdSpan, where func() string)) error {
	cols := slices.Concat([]string{"start!", "end!", "event_id!", "", "pid!", "tid!"}, device, own)
	const nSpan = 8
	stamped, tracked := r.has(table, "start_id"), r.has(table, "track_id")
	if stamped {
		cols[0], cols[1] = "start_id!", "end_id!"
	}
	if tracked {
		copy(cols[3:nSpan], []string{"track_id!", "", "", "", ""})
	}
	return r.scan(table+r.run, cols, true, func(in *sqlite.Row, c []int, where func() string) {
		s, ok := r.span(in, c, stamped, tracked)
		if !ok {
			r.b.Report.Drop("without a readable start, end or process", where())
			return
		}
		row(in, c[nSpan:], s, where)
	})
}

// has reports whether a table has a column.
func (r *rocpd) has(table, column string) bool {
	t, ok := r.db.Table(table + r.run)
	if !ok {
		return false
	}
	i, err := t.Column(column)
	return err == nil && i >= 0
}

func (r *rocpd) span(in *sqlite.Row, c []int, stamped, tracked bool) (s rocpdSpan, ok bool) {
	start, ok1 := in.Int(c[0])
	end, ok2 := in.Int(c[1])
	if stamped && ok1 && ok2 {
		start, ok1 = r.stamps.at(start)
		end, ok2 = r.stamps.at(end)
	}
	var ok3 bool
	if tracked {
		id, _ := in.Int(c[3])
		s.rocpdPlace, ok3 = r.tracks[id]
	} else {
		s.pid, ok3 = in.Int(c[4])
		s.tid, _ = in.Int(c[5])
		s.agent, _ = in.Int(c[6])
		s.stream, _ = in.Int(c[7])
	}
	s.event, _ = in.Int(c[2])
	s.start, s.dur = time.Duration(start), time.Duration(end)-time.Duration(start)
	s.process, s.corr = uint64(s.pid), r.corr(s.event)
	return s, ok1 && ok2 && ok3
}

// corr returns the stack of an event, or 0.
func (r *rocpd) corr(event int64) uint32 {
	i, ok := slices.BinarySearchFunc(r.events, event, func(e rocpdStack, id int64) int {
		return cmp.Compare(e.id, id)
	})
	if !ok {
		return 0
	}
	return r.events[i].stack
}

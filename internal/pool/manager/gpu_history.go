package manager

import (
	"cmp"
	"slices"
	"strings"
	"time"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// The ring of events of a busy pool reaches back some hours. An operator who decides
// whether to send a GPU back needs its last weeks, so the events that tell about its
// health and that of its box are also kept with the GPU, repetitions as one.

const (
	// keepIncident is how long an incident is remembered.
	keepIncident = 90 * 24 * time.Hour
	// maxIncidents bounds those of a GPU or a node, and maxHistories the GPUs and nodes
	// that have any: 50 MB, if all have as many and as long ones as possible.
	maxIncidents = 24
	maxHistories = 8192
	// maxIncidentText bounds the message of an incident, in bytes.
	maxIncidentText = 200
	// sameIncident is the time within which repetitions are one incident.
	sameIncident = time.Hour
)

// historyRecord is what happened to a GPU or to a node, the oldest first.
type historyRecord struct {
	Incidents []incidentRecord `json:"incidents"`
}

func (r *historyRecord) unshare() { r.Incidents = slices.Clone(r.Incidents) }

// last returns when the newest incident happened.
func (r *historyRecord) last() (at time.Time) {
	for _, i := range r.Incidents {
		if i.Last.After(at) {
			at = i.Last
		}
	}
	return at
}

// incidentRecord is one incident. State tells changes of the health of different kinds apart.
type incidentRecord struct {
	Type    dxpuv1.EventType `json:"type"`
	Code    uint32           `json:"code,omitempty"`
	State   string           `json:"state,omitempty"`
	First   time.Time        `json:"first"`
	Last    time.Time        `json:"last"`
	Count   uint64           `json:"count"`
	Message string           `json:"message"`
}

func (i *incidentRecord) repeats(o *incidentRecord) bool {
	return i.Type == o.Type && i.Code == o.Code && i.State == o.State && o.First.Sub(i.Last) < sameIncident
}

// subjectOf returns the GPU or node whose history an event belongs to, "" for none.
// begins is false for events that only continue a history: a box of new GPUs has none.
func subjectOf(e *dxpuv1.Event) (id string, begins bool) {
	switch e.Type {
	case dxpuv1.EventType_EVENT_TYPE_GPU_HEALTH, dxpuv1.EventType_EVENT_TYPE_GPU_ERROR, dxpuv1.EventType_EVENT_TYPE_GPU_DUPLICATE:
		return e.GpuId, true
	case dxpuv1.EventType_EVENT_TYPE_GPU_ADDED, dxpuv1.EventType_EVENT_TYPE_GPU_REMOVED, dxpuv1.EventType_EVENT_TYPE_GPU_RETURNED:
		return e.GpuId, false
	case dxpuv1.EventType_EVENT_TYPE_NODE_LOST, dxpuv1.EventType_EVENT_TYPE_NODE_UNSTABLE:
		return cmp.Or(e.BoxId, e.HostId), true
	case dxpuv1.EventType_EVENT_TYPE_NODE_STABLE:
		return cmp.Or(e.BoxId, e.HostId), false
	}
	return "", false
}

// remember adds an event to the history of its GPU or node.
func (t *tx) remember(e *dxpuv1.Event) {
	if !t.alike {
		return
	}
	id, begins := subjectOf(e)
	known := t.histories.get(id) != nil
	if id == "" || !known && !begins {
		return
	}
	if !known {
		t.makeRoomForHistory()
		t.histories.put(id, &historyRecord{})
	}
	next := incidentRecord{
		Type: e.Type, Code: e.ErrorCode, First: t.now, Last: t.now, Count: max(1, e.ErrorCount), Message: truncate(e.Message, maxIncidentText),
	}
	if e.Type == dxpuv1.EventType_EVENT_TYPE_GPU_HEALTH {
		_, next.State, _ = strings.Cut(e.Message, " changed ")
		next.State = truncate(next.State, maxIncidentText)
	}
	r := t.histories.edit(id)
	r.Incidents = slices.DeleteFunc(r.Incidents, func(i incidentRecord) bool { return t.now.Sub(i.Last) > keepIncident })
	if at := slices.IndexFunc(r.Incidents, func(i incidentRecord) bool { return i.repeats(&next) }); at >= 0 {
		i := &r.Incidents[at]
		i.Last, i.Count, i.Message = t.now, i.Count+next.Count, next.Message
		return
	}
	if over := len(r.Incidents) + 1 - maxIncidents; over > 0 {
		r.Incidents = r.Incidents[over:]
	}
	r.Incidents = append(r.Incidents, next)
}

// makeRoomForHistory removes the histories that ended long ago if there are too many,
// and several at once, so that the next ones need no search.
func (t *tx) makeRoomForHistory() {
	if t.histories.len() < maxHistories {
		return
	}
	ids := t.histories.ids()
	slices.SortStableFunc(ids, func(a, b string) int { return t.histories.get(a).last().Compare(t.histories.get(b).last()) })
	for _, id := range ids[:maxHistories/16] {
		t.histories.remove(id)
	}
}

// forgetHistory removes the histories of a node that was deleted and of its GPUs.
func (t *tx) forgetHistory(node string) {
	for _, id := range t.histories.ids() {
		if id == node || strings.HasPrefix(id, node+"/") {
			t.histories.remove(id)
		}
	}
}

// historyOf returns what happened to a GPU and to its box, the newest first.
func (t *tx) historyOf(g *dxpuv1.GPU) []*dxpuv1.Incident {
	var out []*dxpuv1.Incident
	for _, id := range []string{g.Id, g.BoxId} {
		r := t.histories.get(id)
		if r == nil {
			continue
		}
		for _, i := range r.Incidents {
			if t.now.Sub(i.Last) <= keepIncident {
				out = append(out, &dxpuv1.Incident{
					Subject: id, Type: i.Type, ErrorCode: i.Code, FirstTime: timestamp(i.First), LastTime: timestamp(i.Last), Count: i.Count, Message: i.Message,
				})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b *dxpuv1.Incident) int { return b.LastTime.AsTime().Compare(a.LastTime.AsTime()) })
	return out
}

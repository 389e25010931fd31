package cli

import (
	"bytes"
	"encoding/json"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

func TestPoolTop(t *testing.T) {
	now := time.Date(2026, 11, 21, 8, 0, 0, 0, time.UTC)
	lease := func(id string, s dxpuv1.LeaseState) *dxpuv1.Lease {
		return &dxpuv1.Lease{
			Id: id, State: s, HostId: "h1", CreateTime: timestamppb.New(now.Add(-90 * time.Second)),
			Spec: &dxpuv1.LeaseSpec{Count: 2, Tenant: "red"},
		}
	}
	busy, quiet := lease("l-1", dxpuv1.LeaseState_LEASE_STATE_ACTIVE), lease("l-2", dxpuv1.LeaseState_LEASE_STATE_ACTIVE)
	ill, waits := lease("l-3", dxpuv1.LeaseState_LEASE_STATE_DEGRADED), lease("l-4", dxpuv1.LeaseState_LEASE_STATE_PENDING)
	waits.QueuePosition, waits.StateReason = 1, "in the queue: no GPU is free."
	slot := func(out uint64) *dxpuv1.HostSlot {
		return &dxpuv1.HostSlot{
			ObservedState: dxpuv1.BindingState_BINDING_STATE_ATTACHED,
			Counters:      &dxpuv1.Counters{RttNs: 6800, SendRate: out, ReceiveRate: 1e6, DatagramsRetransmitted: 3},
		}
	}
	links := map[string][]*dxpuv1.HostSlot{"l-1": {slot(2e6), slot(1e6)}, "l-2": {slot(5e5)}}
	pool := &dxpuv1.Pool{
		Hosts: 2, HostsConnected: 1, Boxes: 1, BoxesConnected: 1, Gpus: 8, GpusFree: 3, GpusBound: 4, GpusUnavailable: 1, SparesHeld: 2,
	}

	var out bytes.Buffer
	newPoolTop(now, pool, []*dxpuv1.Lease{quiet, busy, waits, ill}, links, 2).write(&out)
	const want = `08:00:00  hosts 1/2  boxes 1/1  gpus 8: 4 bound, 3 free (2 spares), 1 unavailable

LEASE  TENANT  STATE     HOST  GPUS  AGE    NETWORK  OUT MB/S  IN MB/S  RESENT
l-3    red     degraded  h1    0/2   1m30s  -        0.0       0.0      0
l-1    red     active    h1    2/2   1m30s  6.8µs    3.0       2.0      6
and 1 more leases (--rows)

QUEUE  LEASE  TENANT  GPUS  PRIORITY  AGE    WHY
1      l-4    red     2     0         1m30s  no GPU is free.
`
	if got := out.String(); got != want {
		t.Errorf("got:\n%s\nwant:\n%s", got, want)
	}
}

// The examples of the help name fields that the JSON has; one named a field of another command,
// so that jq printed null.
func TestTopExamples(t *testing.T) {
	var names string
	for _, v := range []any{poolTop{Leases: []topLease{{}}, Queue: []topQueued{{}}}, top{Slots: []topSlot{{}}}} {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		names += string(b)
	}
	fields := regexp.MustCompile(`[ \[.]\.?([a-z]\w*)`)
	checked := 0
	for line := range strings.Lines(newTopCommand(&connection{}).Example) {
		_, filter, _ := strings.Cut(line, "jq -c ")
		for _, f := range fields.FindAllStringSubmatch(filter, -1) {
			checked++
			if !strings.Contains(names, `"`+f[1]+`":`) {
				t.Errorf("%s names the field %s", strings.TrimSpace(line), f[1])
			}
		}
	}
	if checked < 8 {
		t.Errorf("%d fields are named, want 8 or more", checked)
	}
}

package manager

import (
	"slices"
	"testing"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
)

// A watch of leases reads the state only for events in its scope, so that many watches of
// one tenant do not take time from all others.
func TestWatchSortsOutTheEventsOfOthers(t *testing.T) {
	events := []*dxpuv1.Event{
		{LeaseId: "l-10", Tenant: "a", HostId: "h1"},
		{LeaseId: "l-9", Tenant: "a"},
		{LeaseId: "l-3", Tenant: "b", HostId: "h1", Type: dxpuv1.EventType_EVENT_TYPE_LEASE_PREEMPTED},
		{HostId: "h1"},
		{LeaseId: "l-9", Tenant: "a"},
	}
	for _, c := range []struct {
		name    string
		visible scope
		lease   string
		want    []string
	}{
		{"admin", scope{all: true}, "", []string{"l-3", "l-9", "l-10"}},
		{"one lease", scope{all: true}, "l-9", []string{"l-9"}},
		{"tenant", scope{tenant: "a"}, "", []string{"l-9", "l-10"}},
		{"tenant without leases", scope{tenant: "c"}, "", nil},
		{"host", scope{host: "h1"}, "", []string{"l-3", "l-10"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := changedLeases(events, &dxpuv1.WatchLeasesRequest{LeaseId: c.lease}, c.visible); !slices.Equal(got, c.want) {
				t.Errorf("the watch reads %v, want %v", got, c.want)
			}
		})
	}
}

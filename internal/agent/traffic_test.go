package agent

import "testing"

// Counts become visible together, and each of them once.
func TestTrafficIsPublished(t *testing.T) {
	var s SlotState
	counters := func() SlotCounters { return s.Report(0, nil).Counters }
	s.Traffic.ToDevice.Count(1, 64)
	s.Traffic.FromDevice.Count(15, 15<<12)
	if got := counters(); got != (SlotCounters{}) || s.Traffic.TLPs() != 0 {
		t.Errorf("before the end of the entry: %+v", got)
	}
	for range 2 {
		s.Traffic.Publish()
		want := SlotCounters{ToDevice: 1, ToDeviceBytes: 64, FromDevice: 15, FromDeviceBytes: 15 << 12}
		if got := counters(); got != want || s.Traffic.TLPs() != 16 {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
	s.Traffic.ToDevice.Count(2, 0)
	s.Traffic.Publish()
	if got := counters().ToDevice; got != 3 {
		t.Errorf("%d TLPs, want 3", got)
	}
}

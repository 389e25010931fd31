package cli

import (
	"strings"
	"testing"
	"time"
)

// A time of day that the local clock jumps over, or has twice, is refused: another hour than
// the one that is meant would be reserved.
func TestTimesOfTheLocalZone(t *testing.T) {
	for _, c := range []struct{ zone, text, want string }{
		{"Europe/Berlin", "2027-03-28 02:30", "does not exist"},
		{"Europe/Berlin", "2027-03-28 03:00", ""},
		{"Europe/Berlin", "2027-03-28 8:00", ""},
		{"Europe/Berlin", "2027-10-31 02:30:00", "is twice"},
		{"Europe/Berlin", "2027-10-31 03:00", ""},
		{"Australia/Lord_Howe", "2027-04-04 01:45", "is twice"}, // by half an hour
		{"Pacific/Apia", "2011-12-30 12:00", "does not exist"},  // a whole day
		{"UTC", "2027-03-28 02:30", ""},
	} {
		zone, err := time.LoadLocation(c.zone)
		if err != nil {
			t.Fatal(err)
		}
		_, err = parseTimeIn(c.text, zone)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s in %s: %v, want %q", c.text, c.zone, err, c.want)
		}
	}
}

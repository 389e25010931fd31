//go:build linux

package agent

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

// The owner of a share is one process: another one that has its ID and its start time after a boot
// of the machine keeps no share. Files of an earlier version do not name the boot.
func TestOwnerAfterABoot(t *testing.T) {
	stamp, err := stampOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(stamp)
	if err != nil {
		t.Fatal(err)
	}
	boot := bootID()
	if boot == "" || strings.Count(string(text), boot) != 1 {
		t.Fatalf("the stamp %s does not name the boot %q", text, boot)
	}
	for _, tt := range []struct {
		text string
		live bool
	}{
		{string(text), true},
		{strings.ReplaceAll(string(text), boot, "7d1dcd1c-6a35-4f4c-9c5c-2f0a1b6b3f55"), false},
		{strings.ReplaceAll(string(text), boot, ""), true},
	} {
		var read OwnerStamp
		if err := json.Unmarshal([]byte(tt.text), &read); err != nil {
			t.Fatal(err)
		}
		owner := ownerOf(&read)
		if (owner != nil) != tt.live {
			t.Errorf("%s: found %v, want %v", tt.text, owner != nil, tt.live)
		}
		owner.close()
	}
}

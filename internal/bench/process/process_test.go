package process

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
)

// Programs that the test binary is under these names.
const (
	helper = "process-test-helper" // calls Start, and prints its error
	leaf   = "process-test-leaf"   // ends at once
)

func TestMain(m *testing.M) {
	switch os.Args[0] {
	case leaf:
		os.Exit(0)
	case helper:
	default:
		os.Exit(m.Run())
	}
	_, err := Start(context.Background(), []string{leaf})
	fmt.Printf("%q\n", fmt.Sprint(err)) // a JSON string
	os.Exit(0)
}

// A process that was started by Start starts no other one.
func TestStartOneLevel(t *testing.T) {
	p, err := Start(t.Context(), []string{helper})
	if err != nil {
		t.Fatal(err)
	}
	var got string
	if err := p.Replies.Decode(&got); err != nil || !strings.Contains(got, "may start no other one") {
		t.Errorf("%q, %v", got, err)
	}
	for range 2 { // the second has no effect
		if err := p.Stop(); err != nil {
			t.Error(err)
		}
	}
}

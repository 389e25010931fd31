package web

import (
	"encoding/binary"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// example is a curl command of the documentation and its documented output.
type example struct {
	call, body, output string
	stream             bool
}

var (
	fence = regexp.MustCompile("(?s)```(sh|json)\n(.*?)```")
	curl  = regexp.MustCompile(`(?s)curl -sN? \$API/(\w+) -H 'Content-Type: (application/json|application/connect\+json)'[\s\\]+(?:-d '([^']*)'|--data-binary @-)`)
	shell = regexp.MustCompile(`BODY='([^']*)'`)
)

// examples returns the commands of a document. If a block has several, its output
// belongs to the last one.
func examples(t *testing.T, document string) []example {
	t.Helper()
	var out []example
	for _, block := range fence.FindAllStringSubmatch(document, -1) {
		if block[1] == "json" {
			out[len(out)-1].output = block[2]
			continue
		}
		found := curl.FindAllStringSubmatch(block[2], -1)
		if n := strings.Count(block[2], "curl "); n != len(found) {
			t.Fatalf("of %d commands only %d were parsed:\n%s", n, len(found), block[2])
		}
		for _, m := range found {
			e := example{call: m[1], body: m[3], stream: m[2] == "application/connect+json"}
			if e.stream {
				e.body = shell.FindStringSubmatch(block[2])[1]
			}
			out = append(out, e)
		}
	}
	return out
}

// TestDocumentedCalls runs the examples of docs/api.md in order against a manager,
// and compares the output.
func TestDocumentedCalls(t *testing.T) {
	document, err := os.ReadFile("../../../docs/api.md")
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, 0, box("box-a", "r1", "DxPU software GPU", pcie, 4, 0), host("h1", "r1", 4))
	all := examples(t, string(document))
	if len(all) < 15 {
		t.Fatalf("found only %d examples", len(all))
	}
	lease := ""
	for i, e := range all {
		t.Run(fmt.Sprintf("%d %s", i, e.call), func(t *testing.T) {
			if lease != "" {
				e.body, e.output = strings.ReplaceAll(e.body, "l-22", lease), strings.ReplaceAll(e.output, "l-22", lease)
			}
			got := w.example(e)
			if id := regexp.MustCompile(`"lease":\{"id":\s?"(l-\d+)"`).FindStringSubmatch(got); lease == "" && id != nil {
				lease = id[1]
				e.output = strings.ReplaceAll(e.output, "l-22", lease)
			}
			e.compare(t, got)
			w.settle()
		})
	}
}

// example makes the call of a command.
func (w *world) example(e example) string {
	w.t.Helper()
	body, kind := e.body, "application/json"
	if e.stream {
		kind = "application/connect+json"
		body = string(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))) + body
	}
	req, err := http.NewRequestWithContext(w.t.Context(), http.MethodPost, w.url+"/dxpu.v1.PoolService/"+e.call, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	req.Header.Set("Content-Type", kind)
	if e.stream {
		req.Header.Set("Connect-Timeout-Ms", "2000")
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		w.t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	var got strings.Builder
	buf := make([]byte, 64<<10)
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); {
		n, err := res.Body.Read(buf)
		got.Write(buf[:n])
		if err != nil || e.stream && strings.Contains(got.String(), "LEASE_CREATED") {
			break
		}
	}
	return got.String()
}

var (
	quoted  = regexp.MustCompile(`"((?:[^"\\]|\\.)*)"`)
	changes = regexp.MustCompile(`^\d+$`) // versions, revisions, sizes
)

// compare checks that the answer contains everything in the documented output, except
// for values that change from run to run.
func (e example) compare(t *testing.T, got string) {
	t.Helper()
	if e.output == "" {
		if strings.Contains(got, `"code"`) {
			t.Errorf("the call failed: %s", got)
		}
		return
	}
	for _, m := range quoted.FindAllStringSubmatch(e.output, -1) {
		if changes.MatchString(m[1]) {
			continue
		}
		for part := range strings.SplitSeq(m[1], "…") {
			if !strings.Contains(got, part) {
				t.Errorf("%s %s\nthe documented output has %q, which is not in\n%s", e.call, e.body, part, got)
			}
		}
	}
}

package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
)

// Profiles are served to programs of this machine, if a flag allows it, and have no
// command line.
func TestProfiles(t *testing.T) {
	for _, tc := range []struct {
		name, path, host string
		allowed          bool
		want             int
	}{
		{"allowed", "goroutine?debug=1", "", true, http.StatusOK},
		{"not allowed", "goroutine?debug=1", "", false, http.StatusForbidden},
		{"a name that resolves to this machine", "heap", "rebound.example", true, http.StatusForbidden},
		{"the command line", "cmdline", "", true, http.StatusNotFound},
		{"an unknown profile", "nothing", "", true, http.StatusNotFound},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := &adminOptions{listen: "127.0.0.1:0", urlFile: filepath.Join(t.TempDir(), "url"), profiling: tc.allowed}
			serve, err := o.open(t.Context(), http.NewServeMux(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			ctx, stop := context.WithCancel(t.Context())
			var g errgroup.Group
			g.Go(func() error { return serve(ctx) })
			defer func() {
				stop()
				if err := g.Wait(); err != nil {
					t.Error(err)
				}
			}()
			url, err := os.ReadFile(o.urlFile)
			if err != nil {
				t.Fatal(err)
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimSpace(string(url))+"/debug/pprof/"+tc.path, nil)
			if err != nil {
				t.Fatal(err)
			}
			req.Host = tc.host
			res, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(res.Body)
			_ = res.Body.Close()
			if res.StatusCode != tc.want {
				t.Errorf("%s: %s", res.Status, body)
			}
		})
	}
	if _, err := (&adminOptions{profiling: true}).open(t.Context(), http.NewServeMux(), slog.New(slog.DiscardHandler)); err == nil {
		t.Error("--allow-profiling without --admin-listen is no error")
	}
}

// With --log-format json every line of a log is one object.
func TestJSONLogs(t *testing.T) {
	for _, tc := range []struct {
		format string
		json   bool
		err    string
	}{{"json", true, ""}, {"text", false, ""}, {"xml", false, "unknown format"}} {
		var out bytes.Buffer
		cmd := &cobra.Command{}
		cmd.SetErr(&out)
		var o logOptions
		f := pflag.NewFlagSet("", pflag.ContinueOnError)
		o.register(f)
		if err := f.Parse([]string{"--log-format", tc.format}); tc.err != "" || err != nil {
			if err == nil || tc.err == "" || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("%s: %v", tc.format, err)
			}
			continue
		}
		o.logger(cmd).Info("a line", "gpu", "b1/0", "text", "with \"quotes\"\nand two lines")
		var line struct{ Msg, GPU, Text string }
		if err := json.Unmarshal(out.Bytes(), &line); (err == nil) != tc.json || tc.json && (line.GPU != "b1/0" || line.Msg != "a line") {
			t.Errorf("%s: %q: %v", tc.format, out.String(), err)
		}
	}
}

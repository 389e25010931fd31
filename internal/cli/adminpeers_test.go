//go:build linux

package cli

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// The connections to the admin port, for which no credential is needed, take an eighth of the
// descriptors at most.
func TestAdminConnectionsAreBounded(t *testing.T) {
	var files unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &files); err != nil {
		t.Fatal(err)
	}
	few := files
	few.Cur = min(files.Cur, 200)
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Setrlimit(unix.RLIMIT_NOFILE, &files) }()
	var log bytes.Buffer
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(http.ResponseWriter, *http.Request) {})
	o := &adminOptions{listen: "127.0.0.1:0", urlFile: filepath.Join(t.TempDir(), "url")}
	serve, err := o.open(t.Context(), mux, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var g errgroup.Group
	g.Go(func() error { return serve(ctx) })
	raw, err := os.ReadFile(o.urlFile)
	if err != nil {
		t.Fatal(err)
	}
	at, err := url.Parse(strings.TrimSpace(string(raw)))
	if err != nil {
		t.Fatal(err)
	}
	served := 0
	for range few.Cur/8 + 5 {
		c, err := net.Dial("tcp", at.Host)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		fmt.Fprint(c, "GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
		if res, err := http.ReadResponse(bufio.NewReader(c), nil); err == nil && res.StatusCode == http.StatusOK {
			served++
		}
	}
	stop()
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
	if served != int(few.Cur/8) {
		t.Errorf("%d connections are served, want %d", served, few.Cur/8)
	}
	if want := fmt.Sprintf("--admin-listen has %d connections, which is its limit: an eighth of the open files", few.Cur/8); !strings.Contains(log.String(), want) {
		t.Errorf("the log: %s", log.String())
	}
}

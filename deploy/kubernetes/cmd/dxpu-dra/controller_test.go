package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestControllerFlags: the controller refuses at the start the names that the manager would refuse for each claim.
func TestControllerFlags(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*controllerOptions)
		want   string
	}{
		"right":           {func(*controllerOptions) {}, ""},
		"a tenant":        {func(o *controllerOptions) { o.tenant = "lab" }, ""},
		"a prefix":        {func(o *controllerOptions) { o.tenantPrefix = "k8s-" }, ""},
		"no manager":      {func(o *controllerOptions) { o.managers = "" }, "--manager is missing"},
		"no workers":      {func(o *controllerOptions) { o.workers = 0 }, "--workers: 0 is not 1 to 1000"},
		"no time":         {func(o *controllerOptions) { o.queueTimeout = 0 }, "--queue-timeout: 0s is not above 0"},
		"capitals":        {func(o *controllerOptions) { o.tenant = "Lab" }, `--tenant: "Lab" is not 1 to 63 of`},
		"a long prefix":   {func(o *controllerOptions) { o.tenantPrefix = strings.Repeat("a", 63) }, "is not 1 to 62 of"},
		"a strange start": {func(o *controllerOptions) { o.tenantPrefix = "-a" }, `--tenant-prefix: "-a" is not 1 to 62 of`},
		"both":            {func(o *controllerOptions) { o.tenant, o.tenantPrefix = "lab", "k8s-" }, "want either --tenant, for all leases, or --tenant-prefix"},
	} {
		t.Run(name, func(t *testing.T) {
			o := controllerOptions{managers: "http://m:7470", workers: 1, queueTimeout: time.Minute}
			tc.change(&o)
			err := o.check()
			if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// TestCleartext: a token is not sent without TLS, and the error says how it is.
func TestCleartext(t *testing.T) {
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("t\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := controllerOptions{managers: "http://192.0.2.1:7470", tokenFile: token}
	if _, err := o.pool(); err == nil || !strings.Contains(err.Error(), "--allow-cleartext") {
		t.Errorf("error %v", err)
	}
	o.cleartext = true
	c, err := o.pool()
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

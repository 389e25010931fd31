package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/pflag"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/etcdstore"
)

// storeOptions are the flags of "dxpu manager" for its state.
type storeOptions struct {
	dataDir   string
	advertise string
	quotaMiB  int64
	restore   string // path of a backup
	etcd      etcdstore.Options
}

// registerPlace adds the flags for a state that one process uses.
func (o *storeOptions) registerPlace(f *pflag.FlagSet) {
	f.StringVar(&o.dataDir, "data-dir", "", "directory for the state, kept by an etcd in this process (default: memory)")
	f.StringSliceVar(&o.etcd.Endpoints, "etcd-endpoints", nil, "`URLs` of an etcd cluster for the state, such as https://etcd1:2379,https://etcd2:2379")
	f.StringVar(&o.etcd.CAFile, "etcd-ca", "", "PEM file of the authority that signed etcd's certificates")
	f.StringVar(&o.etcd.CertFile, "etcd-cert", "", "PEM file of this manager's certificate for etcd")
	f.StringVar(&o.etcd.KeyFile, "etcd-key", "", "PEM file of that certificate's key")
	f.StringVar(&o.etcd.Prefix, "etcd-prefix", "/dxpu/", "prefix of the keys in etcd: one per pool")
	f.Int64Var(&o.quotaMiB, "etcd-quota", 4096, "limit of the state's size on disk in --data-dir, in MiB")
}

func (o *storeOptions) register(f *pflag.FlagSet) {
	o.registerPlace(f)
	f.StringVar(&o.advertise, "advertise-url", "", "URL at which others reach this manager (default: that of --listen)")
	f.StringVar(&o.restore, "restore", "", "backup to start from if no state exists; with several managers, pass it to each")
	f.StringVar(&o.etcd.Name, "etcd-name", "", "name of this manager in --etcd-initial-cluster")
	f.StringVar(&o.etcd.PeerListen, "etcd-peer-listen", "", "URL on which this manager's etcd listens for the others (default: that of --etcd-initial-cluster)")
	f.StringVar(&o.etcd.InitialCluster, "etcd-initial-cluster", "", "all managers that share the state: NAME=URL,NAME=URL,NAME=URL with their --etcd-peer-listen")
}

func (o *storeOptions) check() error {
	several := o.etcd.InitialCluster != ""
	switch {
	case o.restore != "" && o.dataDir == "" && len(o.etcd.Endpoints) == 0:
		return withHint(errors.New("--restore needs --data-dir or --etcd-endpoints"), "a state in memory ends with the manager")
	case len(o.etcd.Endpoints) > 0 && several:
		return withHint(errors.New("--etcd-endpoints and --etcd-initial-cluster exclude each other"), "the state is in one place")
	case several && o.dataDir == "":
		return withHint(errors.New("--etcd-initial-cluster needs --data-dir"), "the directory keeps this manager's copy of the state")
	case several && o.etcd.Name == "":
		return withHint(errors.New("--etcd-initial-cluster needs --etcd-name"), "the name selects this manager's entry")
	case !several && (o.etcd.Name != "" || o.etcd.PeerListen != ""):
		return withHint(errors.New("--etcd-name and --etcd-peer-listen need --etcd-initial-cluster"), "it lists all managers that share the state")
	case (o.etcd.CertFile == "") != (o.etcd.KeyFile == ""):
		return errors.New("--etcd-cert and --etcd-key go together")
	case o.quotaMiB < 16:
		return withHint(fmt.Errorf("--etcd-quota: %d MiB is too little", o.quotaMiB), "the minimum is 16, the default 4096")
	}
	return nil
}

// shared reports whether several managers may use the same state.
func (o *storeOptions) shared() bool { return len(o.etcd.Endpoints) > 0 || o.etcd.InitialCluster != "" }

// open opens the store. It returns nil if the state is in memory.
func (o *storeOptions) open(ctx context.Context, url string, log *slog.Logger) (*etcdstore.Store, error) {
	if o.dataDir == "" && len(o.etcd.Endpoints) == 0 {
		return nil, nil
	}
	e := o.etcd
	e.Dir, e.Quota, e.Log = o.dataDir, o.quotaMiB<<20, log
	if o.restore != "" {
		records, err := readBackup(o.restore) // now, so that a damaged backup is an error at the start
		if err != nil {
			return nil, err
		}
		e.Initial = func() (map[string][]byte, error) { return records.records, nil }
	}
	if o.dataDir != "" {
		e.Legacy = filepath.Join(o.dataDir, "pool.json")
	}
	host, _ := os.Hostname()
	e.Self = &dxpuv1.ManagerInfo{Id: cmp.Or(e.Name, strings.Trim(host+"@"+url, "@")), Url: cmp.Or(o.advertise, url), Version: version()}
	return etcdstore.Open(ctx, e)
}

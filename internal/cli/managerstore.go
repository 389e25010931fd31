//go:build linux

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/client"
	"github.com/dxpu-project/dxpu/internal/atomicfile"
	"github.com/dxpu-project/dxpu/internal/pool/backup"
	"github.com/dxpu-project/dxpu/internal/pool/etcdstore"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
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
	f.BoolVar(&o.etcd.Join, "etcd-join", false, "join the running managers in the place of one that \"dxpu manager replace-member\" has removed; without effect once --data-dir has a state")
	f.StringVar(&o.etcd.InitialCluster, "etcd-initial-cluster", "", "all managers that share the state: NAME=URL,NAME=URL,NAME=URL with their --etcd-peer-listen")
}

func (o *storeOptions) check() error {
	several := o.etcd.InitialCluster != ""
	if o.advertise != "" {
		if _, err := client.ParseManagers(o.advertise); err != nil {
			return withHint(fmt.Errorf("--advertise-url: %w", err), "write it like https://10.0.0.1:7470")
		}
	}
	switch {
	case o.restore != "" && o.dataDir == "" && len(o.etcd.Endpoints) == 0:
		return withHint(errors.New("--restore needs --data-dir or --etcd-endpoints"), "a state in memory ends with the manager")
	case len(o.etcd.Endpoints) > 0 && several:
		return withHint(errors.New("--etcd-endpoints and --etcd-initial-cluster exclude each other"), "the state is in one place")
	case several && o.dataDir == "":
		return withHint(errors.New("--etcd-initial-cluster needs --data-dir"), "the directory keeps this manager's copy of the state")
	case o.etcd.Join && !several:
		return withHint(errors.New("--etcd-join needs --etcd-initial-cluster"), "\"dxpu manager replace-member\" prints its value")
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

func newBackupCommand() *cobra.Command {
	conn := &connection{}
	cmd := &cobra.Command{
		Use: "backup FILE", Short: "Write the state of the pool to a file", Args: cobra.ExactArgs(1),
		Long: `Write a consistent copy of the pool's state to a file while the manager runs. The
command verifies the copy before it replaces FILE.

The file contains secrets of bindings and of the pool's authority. Only an admin may
create it, and only the owner of the file may read it. It is text with one record
per line, for "dxpu manager restore" and "dxpu manager --restore".`,
		Example: `  dxpu manager backup /var/backups/dxpu-$(date +%F).backup`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if args[0] == "" {
				return usagef("the name of the file is empty")
			}
			api, err := conn.pool()
			if err != nil {
				return err
			}
			stream, err := api.Backup(cmd.Context(), connect.NewRequest(&dxpuv1.BackupRequest{}))
			if err != nil {
				return err
			}
			b, err := saveBackup(args[0], stream)
			if err = errors.Join(err, stream.Close()); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d records of pool %s at revision %d\n", args[0], len(b.records), b.header.ClusterID, b.header.Revision)
			return err
		},
	}
	return conn.register(cmd)
}

// savedBackup is the contents of a backup file.
type savedBackup struct {
	header  backup.Header
	records map[string][]byte
}

// saveBackup writes a backup to a file, atomically and verified.
func saveBackup(path string, chunks *connect.ServerStreamForClient[dxpuv1.BackupResponse]) (*savedBackup, error) {
	b := &savedBackup{}
	if _, err := os.Stat(filepath.Dir(path)); err != nil { // names the directory, if that is what is missing
		return nil, err
	}
	err := atomicfile.Replace(path, func(f *os.File) (err error) {
		for err == nil && chunks.Receive() {
			_, err = f.Write(chunks.Msg().Chunk)
		}
		if err = cmp.Or(err, chunks.Err()); err == nil {
			_, err = f.Seek(0, io.SeekStart)
		}
		if err == nil {
			b.header, b.records, err = backup.Read(f)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return b, nil
}

// readBackup reads a backup and returns the records of the restored state.
func readBackup(path string) (*savedBackup, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if info, err := f.Stat(); err != nil || info.IsDir() {
		return nil, cmp.Or(err, fmt.Errorf("%s: is a directory", path))
	}
	b := &savedBackup{}
	if b.header, b.records, err = backup.Read(f); err == nil {
		b.records, err = manager.Restored(b.records)
	}
	if err != nil {
		text := strings.TrimPrefix(err.Error(), "backup: ")
		return nil, withHint(fmt.Errorf("%s: %s", path, text), "nothing was changed; use another backup")
	}
	return b, nil
}

func newRestoreCommand() *cobra.Command {
	o := &storeOptions{}
	cmd := &cobra.Command{
		Use: "restore FILE", Short: "Restore the state of a stopped manager from a backup", Args: cobra.ExactArgs(1),
		Long: `Restore the state of a stopped manager from a backup: into a new data directory, or
into an existing etcd cluster below an unused prefix. For three managers with an
embedded etcd, start each with --restore FILE and an empty --data-dir instead.

When the manager starts, nodes get the desired state as of the backup. Leases that
are newer than the backup no longer exist, and their bindings end. Nodes that
enrolled after the backup enrol again.`,
		Example: `  dxpu manager restore pool.backup --data-dir /var/lib/dxpu
  dxpu manager restore pool.backup --etcd-endpoints https://etcd1:2379,https://etcd2:2379`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if (o.dataDir == "") == (len(o.etcd.Endpoints) == 0) {
				return usagef("give either --data-dir or --etcd-endpoints")
			}
			if err := o.check(); err != nil {
				return usage(err)
			}
			b, err := readBackup(args[0])
			if err != nil {
				return err
			}
			if err := o.checkEmpty(); err != nil {
				return err
			}
			log := (&logOptions{level: slog.LevelWarn}).logger(cmd)
			if err := o.restoreState(cmd.Context(), b.records, log); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "restored %d records of pool %s as of %s\n",
				len(b.records), b.header.ClusterID, b.header.Time.Local().Format(time.DateTime))
			return err
		},
	}
	o.registerPlace(cmd.Flags())
	return cmd
}

// checkEmpty refuses a data directory that is not empty. It may contain the join
// token, which is not part of a backup.
func (o *storeOptions) checkEmpty() error {
	if o.dataDir == "" {
		return nil
	}
	entries, err := os.ReadDir(o.dataDir)
	entries = slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return e.Name() == "join-token" })
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return fmt.Errorf("--data-dir: %w", err)
	case len(entries) > 0:
		return withHint(fmt.Errorf("--data-dir: %s is not empty: it contains %s", o.dataDir, entries[0].Name()),
			"move the contents away, or restore into a new directory")
	}
	return nil
}

// restoreTimeout bounds the wait for managers that use the same etcd to stop.
const restoreTimeout = 10 * time.Second

// restoreState writes the records as a new state, if none exists.
func (o *storeOptions) restoreState(ctx context.Context, records map[string][]byte, log *slog.Logger) (err error) {
	used := false
	o.etcd.Initial = func() (map[string][]byte, error) { used = true; return records, nil }
	store, err := o.open(ctx, "", log)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, store.Close())
		if err != nil && o.dataDir != "" { // checkEmpty has checked that it was empty
			err = errors.Join(err, os.RemoveAll(filepath.Join(o.dataDir, "etcd")), os.Remove(filepath.Join(o.dataDir, "lock")))
		}
	}()
	campaign, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	if _, err := store.Campaign(campaign); err != nil {
		return withHint(err, "is etcd running, and have all managers that use it stopped?")
	}
	_, err = store.Load(ctx, "")
	if err == nil && !used {
		err = withHint(fmt.Errorf("a state exists below %s", store.Prefix()), "choose another --etcd-prefix, or delete the state with etcdctl del --prefix %s", store.Prefix())
	}
	return errors.Join(err, store.Resign(context.WithoutCancel(ctx)))
}

// endOf gives a member that another one has replaced the exit code of a refusal: its unit does
// not start it again.
func endOf(err error) error {
	if errors.Is(err, etcdstore.ErrReplaced) {
		return &refusedError{err}
	}
	return err
}

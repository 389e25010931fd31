package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	dxpuv1 "github.com/dxpu-project/dxpu/api/dxpu/v1"
	"github.com/dxpu-project/dxpu/internal/pool/backup"
	"github.com/dxpu-project/dxpu/internal/pool/manager"
)

func newBackupCommand() *cobra.Command {
	conn := &connection{}
	cmd := &cobra.Command{
		Use:   "backup FILE",
		Short: "Write the state of the pool to a file",
		Long: `Write the state of the pool to a file, as it is at one moment, while the manager
goes on. The file is whole when the command succeeds: it is read again before it
gets its name, and replaces one that has it.

The file holds secrets, those of bindings and of the pool's authority: only its
owner may read it, and only an admin may make it. It is text, a record a line;
"dxpu manager restore" and "dxpu manager --restore" read it.`,
		Example: `  dxpu manager backup /var/backups/dxpu-$(date +%F).backup`,
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			api, err := conn.pool()
			if err != nil {
				return err
			}
			stream, err := api.Backup(cmd.Context(), connect.NewRequest(&dxpuv1.BackupRequest{}))
			if err != nil {
				return err
			}
			b, err := saveBackup(args[0], &chunkReader{stream: stream})
			if err = errors.Join(err, stream.Close()); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%s: %d records of pool %s at revision %d\n", args[0], len(b.records), b.header.ClusterID, b.header.Revision)
			return err
		},
	}
	return conn.register(cmd)
}

// chunkReader reads the chunks of a stream.
type chunkReader struct {
	stream *connect.ServerStreamForClient[dxpuv1.BackupResponse]
	rest   []byte
}

// Read implements io.Reader.
func (r *chunkReader) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		if !r.stream.Receive() {
			if err := r.stream.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		r.rest = r.stream.Msg().Chunk
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// savedBackup is a backup in a file.
type savedBackup struct {
	header  backup.Header
	records map[string][]byte
}

// saveBackup writes a backup to a file, whole or not at all.
func saveBackup(path string, from io.Reader) (*savedBackup, error) {
	b := &savedBackup{}
	err := replaceFile(path, func(f *os.File) error {
		_, err := io.Copy(f, from)
		if err == nil {
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

// readBackup reads a backup as it becomes the state again.
func readBackup(path string) (*savedBackup, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b := &savedBackup{}
	if b.header, b.records, err = backup.Read(f); err == nil {
		b.records, err = manager.Restored(b.records)
	}
	if err != nil {
		return nil, withHint(fmt.Errorf("%s: %w", path, err), "nothing was changed; use another backup")
	}
	return b, nil
}

func newRestoreCommand() *cobra.Command {
	o := &storeOptions{}
	cmd := &cobra.Command{
		Use:   "restore FILE",
		Short: "Make a backup the state of a manager that does not run",
		Long: `Make a backup the state of a manager that does not run: in a new data directory, or
in an etcd cluster that exists, below a prefix where there is nothing yet. For three
managers with an etcd of their own, start each of them with --restore FILE and an
empty --data-dir instead.

What was given out since the backup was made is told anew when the manager starts:
nodes get what they should have as of the backup. Leases that were made since are
gone, and what their nodes hold of them is taken down. Nodes that enrolled since
enrol again.`,
		Example: `  dxpu manager restore pool.backup --data-dir /var/lib/dxpu
  dxpu manager restore pool.backup --etcd-endpoints https://etcd1:2379,https://etcd2:2379`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if (o.dataDir == "") == (len(o.etcd.Endpoints) == 0) {
				return &usageError{errors.New("either --data-dir or --etcd-endpoints says where the state goes")}
			}
			if err := o.check(); err != nil {
				return &usageError{err}
			}
			b, err := readBackup(args[0])
			if err != nil {
				return err
			}
			if err := o.checkEmpty(); err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: slog.LevelWarn}))
			if err := o.restoreState(cmd.Context(), b.records, log); err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "%d records of pool %s restored as of %s\n",
				len(b.records), b.header.ClusterID, b.header.Time.Local().Format(time.DateTime))
			return err
		},
	}
	o.registerPlace(cmd.Flags())
	return cmd
}

// checkEmpty refuses a data directory in which there is something. The join token,
// which no backup has, may be there already.
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
		return withHint(fmt.Errorf("--data-dir: %s is not empty: it has %s", o.dataDir, entries[0].Name()),
			"move what is there away, or restore into a new directory")
	}
	return nil
}

// restoreTimeout is how long a restore waits for managers that use the same etcd
// to end.
const restoreTimeout = 10 * time.Second

// restoreState makes records the state where there is none.
func (o *storeOptions) restoreState(ctx context.Context, records map[string][]byte, log *slog.Logger) (err error) {
	used := false
	o.etcd.Initial = func() (map[string][]byte, error) { used = true; return records, nil }
	store, err := o.open(ctx, "", log)
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, store.Close())
		if err != nil && o.dataDir != "" { // it was empty
			err = errors.Join(err, os.RemoveAll(filepath.Join(o.dataDir, "etcd")), os.Remove(filepath.Join(o.dataDir, "lock")))
		}
	}()
	campaign, cancel := context.WithTimeout(ctx, restoreTimeout)
	defer cancel()
	if _, err := store.Campaign(campaign); err != nil {
		return withHint(err, "are all managers that use this etcd stopped, and does etcd run?")
	}
	_, err = store.Load(ctx)
	if err == nil && !used {
		err = withHint(fmt.Errorf("there is a state already below %s", o.etcd.Prefix), "choose another --etcd-prefix, or remove what is there with etcdctl del --prefix")
	}
	return errors.Join(err, store.Resign(context.WithoutCancel(ctx)))
}

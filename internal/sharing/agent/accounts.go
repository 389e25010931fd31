//go:build linux

package agent

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/dxpu-project/dxpu/internal/sharing/broker"
	"github.com/dxpu-project/dxpu/share"
)

// What shares have used of their limits of compute changes with each launch, so it is not in the
// state file, but in one of its own in the folder of the agent. That folder is usually in memory:
// the file is of no use after a boot, and is written often, so that an agent that is killed forgives
// a tenth of a second at most.

const (
	accountsName  = "accounts.json" // no share has such a name
	accountPeriod = 100 * time.Millisecond
	maxAccounts   = 4 << 20 // bytes
)

// accounts is the file. Its time is that of the machine's monotonic clock, which begins again with
// each boot, and which no person sets.
type accounts struct {
	Version int       `json:"version"`
	Boot    string    `json:"boot"`
	At      int64     `json:"at_ns"`
	Shares  []account `json:"shares"`
}

type account struct {
	Share string `json:"share"`
	Made  uint64 `json:"made,omitempty"` // of its record: another share may have the name
	GPU   string `json:"gpu"`            // its UUID, or its name
	share.Account
}

// bootID returns the name of the time since the boot of this machine.
func bootID() string { return strings.TrimSpace(readSome("/proc/sys/kernel/random/boot_id")) }

// accountNameLocked returns how the file names a GPU.
func (a *Agent) accountNameLocked(gpu int) string {
	g := &a.config.Broker.GPUs[gpu]
	return cmp.Or(UUIDText(g.UUID), a.uuids[g.Name], g.Name)
}

// keepAccounts writes the accounts until the context ends.
func (a *Agent) keepAccounts(ctx context.Context) error {
	tick := time.NewTicker(accountPeriod)
	defer tick.Stop()
	written := false // the file has shares
	boot := bootID()
	for done := false; !done; {
		select {
		case <-tick.C:
		case <-ctx.Done():
			done = true
		}
		f := accounts{Version: 1, Boot: boot, Shares: []account{}}
		a.mu.Lock()
		f.At = monotonic()
		for _, x := range a.broker.Accounts(a.now()) {
			var made uint64
			if s := a.shares[x.Share]; s != nil {
				made = s.record.Made
			}
			f.Shares = append(f.Shares, account{x.Share, made, a.accountNameLocked(x.GPU), x.Account})
		}
		a.mu.Unlock()
		if len(f.Shares) == 0 && !written {
			continue
		}
		text, err := json.Marshal(f)
		if err == nil {
			err = a.writeAccounts(text)
		}
		if err != nil {
			a.config.Log.Error("what shares have used of their compute is not written", "error", err)
		}
		written = len(f.Shares) > 0 || err != nil && written
	}
	return nil
}

// writeAccounts replaces the file. It need not survive the end of the machine.
func (a *Agent) writeAccounts(text []byte) error {
	path := filepath.Join(a.config.Dir, accountsName)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// readAccounts returns the file of a former agent, empty without one of this boot.
func (a *Agent) readAccounts() (f accounts, err error) {
	in, err := os.Open(filepath.Join(a.config.Dir, accountsName))
	if errors.Is(err, fs.ErrNotExist) {
		return f, nil
	} else if err != nil {
		return f, err
	}
	defer in.Close()
	text, err := io.ReadAll(io.LimitReader(in, maxAccounts+1))
	switch {
	case err != nil:
	case len(text) > maxAccounts:
		err = fmt.Errorf("over %d bytes", maxAccounts)
	default:
		err = json.Unmarshal(text, &f)
	}
	switch {
	case err != nil:
		return accounts{}, fmt.Errorf("%s: %w", in.Name(), err)
	case f.Version != 1:
		return accounts{}, fmt.Errorf("%s: version %d, want 1", in.Name(), f.Version)
	case f.Boot != bootID() || f.At > monotonic():
		return accounts{}, nil
	}
	return f, nil
}

// chargeLocked gives the restored shares what they had used. Without the file they have used
// nothing: it is no reason to keep them from the GPU.
func (a *Agent) chargeLocked() {
	f, err := a.readAccounts()
	if err != nil {
		a.config.Log.Error("what shares have used of their compute is not known, and counts no more", "error", err)
		return
	}
	ago := time.Duration(monotonic() - max(f.At, 0))
	gpus := map[string]int{}
	for i := range a.config.Broker.GPUs {
		gpus[a.accountNameLocked(i)] = i
	}
	for _, x := range f.Shares {
		s := a.shares[x.Share]
		if gpu, ok := gpus[x.GPU]; ok && s != nil && s.record.Made == x.Made {
			a.broker.Charge(a.now(), &broker.Account{Share: x.Share, GPU: gpu, Account: x.Account}, ago)
		}
	}
}

package cli

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// chooseManagers finds addresses for three managers: ADDRESS0 to ADDRESS2 of
// their APIs, PEERS of their etcds, and DXPU_MANAGER, all of them; and ADDRESS3 and PEER3
// for one that replaces another.
func chooseManagers(ts *testscript.TestScript, _ bool, _ []string) {
	// Fixed ports on loopback addresses of their own: another connection could take a
	// port that was just found to be free.
	net := fmt.Sprintf("127.%d.%d", 1+rand.N(254), rand.N(256))
	var peers, urls []string
	for i := range 3 {
		at := fmt.Sprintf("%s.%d", net, i+1)
		ts.Setenv(fmt.Sprint("ADDRESS", i), at+":7470")
		urls = append(urls, "http://"+at+":7470")
		peers = append(peers, fmt.Sprintf("m%d=http://%s:2380", i, at))
	}
	ts.Setenv("ADDRESS3", net+".4:7470")
	ts.Setenv("PEER3", "http://"+net+".4:2380")
	ts.Setenv("PEERS", strings.Join(peers, ","))
	ts.Setenv("DXPU_MANAGER", strings.Join(urls, ","))
}

// findLeader waits until one of the managers leads and sets LEADER, one of m0, m1
// and m2, LEADER_URL, LEADER_ADDRESS, LEADER_DIR and LEADER_PEER, and the same of a FOLLOWER.
func findLeader(ts *testscript.TestScript, _ bool, _ []string) {
	poll(ts, func() bool {
		roles := map[string]bool{}
		for i, url := range strings.Split(ts.Getenv("DXPU_MANAGER"), ",") {
			role, _, _ := strings.Cut(readyz(url)+"\n", "\n")
			switch {
			case role == "ok: leader":
				role = "LEADER"
			case strings.HasPrefix(role, "follower: "):
				role = "FOLLOWER"
			default:
				continue
			}
			roles[role] = true
			ts.Setenv(role, fmt.Sprint("m", i))
			ts.Setenv(role+"_URL", url)
			ts.Setenv(role+"_ADDRESS", strings.TrimPrefix(url, "http://"))
			ts.Setenv(role+"_DIR", fmt.Sprint("s", i))
			ts.Setenv(role+"_PEER", strings.TrimSuffix(url, ":7470")+":2380")
		}
		return roles["LEADER"] && roles["FOLLOWER"]
	}, "no manager leads, or none follows")
}

// signalManager sends a manager, by its name or its address, a signal that "kill" does not
// know. One that has ended can be killed again:
//
//	signal STOP|CONT|KILL m0|m1|m2|ADDRESS
func signalManager(ts *testscript.TestScript, _ bool, args []string) {
	ended := false
	for _, cmd := range ts.BackgroundCmds() {
		is := func(flag string) bool {
			i := slices.Index(cmd.Args, flag)
			return i >= 0 && cmd.Args[i+1] == args[1]
		}
		if !is("--etcd-name") && !is("--listen") {
			continue
		}
		err := cmd.Process.Signal(map[string]os.Signal{"STOP": syscall.SIGSTOP, "CONT": syscall.SIGCONT, "KILL": syscall.SIGKILL}[args[0]])
		if errors.Is(err, os.ErrProcessDone) {
			ended = true
			continue
		}
		ts.Check(err)
		// A stopped process would never end if the script fails.
		ts.Defer(func() { _ = cmd.Process.Signal(syscall.SIGCONT) })
		return
	}
	if args[0] != "KILL" || !ended {
		ts.Fatalf("no manager %s", args[1])
	}
}

// readyz returns a manager's answer to /readyz, "" without one.
func readyz(url string) string {
	res, err := (&http.Client{Timeout: time.Second}).Get(url + "/readyz")
	if err != nil {
		return ""
	}
	defer func() { _ = res.Body.Close() }()
	raw, _ := io.ReadAll(res.Body)
	return string(raw)
}

// findCluster sets CLUSTER to the value of --etcd-initial-cluster in a file:
//
//	initial-cluster FILE
func findCluster(ts *testscript.TestScript, _ bool, args []string) {
	_, after, ok := strings.Cut(ts.ReadFile(args[0]), "--etcd-initial-cluster ")
	if !ok {
		ts.Fatalf("no --etcd-initial-cluster in %s", args[0])
	}
	ts.Setenv("CLUSTER", strings.Fields(after)[0])
}

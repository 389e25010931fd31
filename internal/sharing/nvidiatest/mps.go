package nvidiatest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
)

// control is nvidia-cuda-mps-control: with -d it starts the daemon, with -f it is the
// daemon, and else it gives the daemon the commands of its standard input.
func control() int {
	socket := filepath.Join(os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), "control")
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case "-d":
			return startDaemon(socket)
		case "-f":
			return serveDaemon(socket)
		}
		fmt.Println("Invalid arguments")
		return 1
	}
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			fmt.Println("Cannot find MPS control daemon process")
			return 1
		}
		fmt.Fprintln(conn, in.Text())
		_, _ = io.Copy(os.Stdout, conn)
		_ = conn.Close()
	}
	return 0
}

// startDaemon starts the daemon in a session of its own and waits until it listens.
func startDaemon(socket string) int {
	if conn, err := net.Dial("unix", socket); err == nil {
		_ = conn.Close()
		fmt.Println("An instance of this daemon is already running")
		return 1
	}
	_ = os.Remove(socket)
	cmd := exec.Command(os.Args[0], "-f")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	ready, err := cmd.StdoutPipe()
	if err != nil || cmd.Start() != nil {
		return 1
	}
	if _, err := bufio.NewReader(ready).ReadString('\n'); err != nil {
		return 1
	}
	return 0
}

// server is a process with the name of a server, which ends with its daemon.
func server() int {
	signal.Ignore(syscall.SIGPIPE)
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// daemon is the fake control daemon with at most one server, for one GPU.
type daemon struct {
	socket string

	mu       sync.Mutex
	percent  float64 // default
	memory   string  // default
	server   *fakeServer
	mode     string // of a script
	clients  map[net.Conn]int
	quit     chan struct{}
	quitOnce sync.Once
}

type fakeServer struct {
	cmd     *exec.Cmd
	stdin   io.Closer
	status  string
	wedged  bool
	percent float64
	memory  string
}

func serveDaemon(socket string) int {
	l, err := net.Listen("unix", socket)
	if err != nil {
		return 1
	}
	fmt.Println("ready")
	d := &daemon{socket: socket, percent: 100, memory: "none", clients: make(map[net.Conn]int), quit: make(chan struct{})}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go d.serve(conn)
		}
	}()
	<-d.quit
	_ = l.Close()
	return 0
}

func (d *daemon) serve(conn net.Conn) {
	defer conn.Close()
	in := bufio.NewReader(conn)
	line, err := in.ReadString('\n')
	if err != nil {
		return
	}
	d.mu.Lock()
	mode := d.mode
	d.mu.Unlock()
	words := strings.Fields(line)
	if len(words) == 0 {
		return
	}
	if mode == "hang" && words[0] != "fake" {
		<-d.quit
		return
	}
	if mode == "garbage" && words[0] != "connect" && words[0] != "fake" {
		fmt.Fprintf(conn, "\x00\xff %s \x1b[2J segmentation\n", strings.Repeat("x", 1000))
		return
	}
	if words[0] == "connect" && len(words) == 2 {
		d.connect(conn, in, words[1])
		return
	}
	d.mu.Lock()
	answer := d.answer(words)
	d.mu.Unlock()
	if answer != "" {
		fmt.Fprintln(conn, answer)
	}
	if words[0] == "quit" {
		d.quitOnce.Do(func() { close(d.quit) })
	}
}

// connect serves a client until one of both ends. Without a server the daemon starts one.
func (d *daemon) connect(conn net.Conn, in *bufio.Reader, pid string) {
	n, _ := strconv.Atoi(pid)
	d.mu.Lock()
	if d.server == nil {
		d.startServer()
	}
	if d.server == nil || d.server.status != "ACTIVE" {
		d.mu.Unlock()
		fmt.Fprintln(conn, "807: MPS server not ready")
		return
	}
	if len(d.clients) >= 48 {
		d.mu.Unlock()
		fmt.Fprintln(conn, "808: MPS maximum clients reached")
		return
	}
	d.clients[conn] = n
	fmt.Fprintf(conn, "connected %.1f %s\n", d.server.percent, d.server.memory)
	d.mu.Unlock()
	_, _ = in.ReadString(0)
	d.mu.Lock()
	delete(d.clients, conn)
	d.recover()
	d.mu.Unlock()
}

// recover ends a fault when all clients have left.
func (d *daemon) recover() {
	if s := d.server; s != nil && s.status == "FAULT" && !s.wedged && len(d.clients) == 0 {
		s.status = "ACTIVE"
	}
}

func (d *daemon) startServer() {
	cmd := exec.Command(filepath.Join(filepath.Dir(os.Args[0]), serverName))
	stdin, err := cmd.StdinPipe()
	if err != nil || cmd.Start() != nil {
		return
	}
	s := &fakeServer{cmd: cmd, stdin: stdin, status: "INITIALIZING", percent: d.percent, memory: d.memory}
	d.server = s
	go func() {
		_ = cmd.Wait()
		d.mu.Lock()
		defer d.mu.Unlock()
		d.ended(s)
	}()
}

// ended forgets a server, which takes its clients with it.
func (d *daemon) ended(s *fakeServer) {
	if d.server != s {
		return
	}
	d.server = nil
	for c := range d.clients {
		_ = c.Close()
	}
}

func (d *daemon) answer(words []string) string {
	switch args := words[1:]; words[0] {
	case "get_server_list":
		if d.server == nil {
			return ""
		}
		return strconv.Itoa(d.server.cmd.Process.Pid)
	case "start_server":
		if d.server == nil {
			d.startServer()
		}
		return ""
	case "set_default_active_thread_percentage":
		return setPercent(args, &d.percent)
	case "get_default_active_thread_percentage":
		return fmt.Sprintf("%.1f", d.percent)
	case "set_default_device_pinned_mem_limit":
		return setMemory(args, &d.memory)
	case "quit":
		if d.server != nil {
			_ = d.server.cmd.Process.Kill()
			d.ended(d.server)
		}
		_ = os.Remove(d.socket)
		return ""
	case "fake":
		return d.script(args)
	default:
		return d.ofServer(words[0], args)
	}
}

// ofServer answers a command whose first argument is a server.
func (d *daemon) ofServer(verb string, args []string) string {
	if len(args) == 0 {
		return "Invalid command"
	}
	s := d.server
	if s == nil || strconv.Itoa(s.cmd.Process.Pid) != args[0] {
		return "Server " + args[0] + " not found"
	}
	switch args = args[1:]; verb {
	case "get_server_status":
		status := s.status
		if status == "INITIALIZING" {
			s.status = "ACTIVE"
		}
		return status
	case "get_client_list":
		var pids []string
		for _, pid := range d.clients {
			pids = append(pids, strconv.Itoa(pid))
		}
		slices.Sort(pids)
		return strings.Join(pids, "\n")
	case "set_active_thread_percentage":
		return setPercent(args, &s.percent)
	case "set_device_pinned_mem_limit":
		return setMemory(args, &s.memory)
	case "terminate_client":
		for c, pid := range d.clients {
			if len(args) == 1 && strconv.Itoa(pid) == args[0] {
				_ = c.Close()
			}
		}
		return ""
	case "shutdown_server":
		if !s.wedged {
			_ = s.cmd.Process.Kill()
			d.ended(s)
		}
		return ""
	}
	return "Invalid command"
}

func setPercent(args []string, to *float64) string {
	if len(args) != 1 {
		return "Invalid command"
	}
	v, err := strconv.ParseFloat(args[0], 64)
	if err != nil || v <= 0 || v > 100 {
		return "Invalid value " + args[0]
	}
	*to = v
	return fmt.Sprintf("%.1f", v)
}

// setMemory takes a device and an integer with G or M.
func setMemory(args []string, to *string) string {
	if len(args) != 2 || args[0] != "0" {
		return "Invalid device"
	}
	n := strings.TrimRight(args[1], "GM")
	if _, err := strconv.ParseUint(n, 10, 32); err != nil || len(n) != len(args[1])-1 {
		return "Invalid value " + args[1]
	}
	*to = args[1]
	return ""
}

func (d *daemon) script(args []string) string {
	switch order := strings.Join(args, " "); order {
	case "fault", "wedge":
		if d.server != nil {
			d.server.status, d.server.wedged = "FAULT", order == "wedge"
			d.recover()
		}
	case "crash":
		if d.server != nil {
			_ = d.server.cmd.Process.Kill()
		}
	default:
		d.mode = order
	}
	return "done"
}

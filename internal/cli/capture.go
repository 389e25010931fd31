package cli

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/spf13/cobra"

	"github.com/dxpu-project/dxpu/internal/dataplane/capture"
)

// captureOptions are the flags of "dxpu capture".
type captureOptions struct {
	admin    string
	output   string
	slot     int
	binding  string
	snaplen  uint16
	count    uint64
	duration time.Duration
	lua      bool
}

func newCaptureCommand() *cobra.Command {
	o := &captureOptions{}
	cmd := &cobra.Command{
		Use: "capture", Short: "Capture the TLPs of a proxy's bindings for Wireshark", Args: cobra.NoArgs,
		Long: `Capture the TLPs that pass through a proxy in a pcapng file. The file contains each
TLP once, decrypted and in order, as it is between the network and the device or the
VM, with a time in nanoseconds. The proxy must run on this machine with
--admin-listen and --allow-capture. A capture never delays the proxy: TLPs that it
has to leave out are counted in the file.

A capture ends after --count, after --duration or with Ctrl-C. The file contains a
tenant's memory; only its owner can read it.

Wireshark and tshark read the file with the dissector that --dissector prints. The
dissector also reads datagrams that tcpdump captured on the wire: completely if the
binding has no cipher, otherwise only the headers. "-X" is not needed if the
dissector is in Wireshark's folder of personal Lua plugins.`,
		Example: `  dxpu capture --dissector > dxpu.lua
  dxpu capture --admin http://127.0.0.1:9100 --slot 0 --duration 10s -w slot0.pcapng
  tshark -X lua_script:dxpu.lua -r slot0.pcapng -Y 'dxpu.tlp.time > 0.0001'
  dxpu capture --admin http://127.0.0.1:9100 -w - | wireshark -X lua_script:dxpu.lua -k -i -
  tcpdump -i eth0 -w wire.pcap udp port 7471 && tshark -X lua_script:dxpu.lua -r wire.pcap`,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.run(cmd) },
	}
	adminFlag(cmd, &o.admin)
	f := cmd.Flags()
	f.StringVarP(&o.output, "write", "w", "", "file to write, - for standard output (required)")
	f.IntVar(&o.slot, "slot", -1, "capture only this slot (default: all)")
	f.StringVar(&o.binding, "binding", "", "capture only the binding with this number, as datagrams carry it")
	f.Uint16Var(&o.snaplen, "snaplen", 0, "`number` of bytes to keep of each TLP (default: all)")
	f.Uint64VarP(&o.count, "count", "c", 0, "end after this number of TLPs")
	durationVar(f, &o.duration, "duration", 0, "end after this time")
	f.BoolVar(&o.lua, "dissector", false, "print the Wireshark dissector instead of a capture")
	return cmd
}

// maxSlot is the highest number of a slot: that of a box.
const maxSlot = 255

// adminFlag adds the flag for the URL of a proxy's admin listener.
func adminFlag(cmd *cobra.Command, v *string) {
	cmd.Flags().StringVar(v, "admin", "", "URL of the proxy's --admin-listen (default $DXPU_ADMIN)")
}

// adminURL returns the URL of a page of a proxy's admin listener.
func adminURL(flag, page string, query url.Values) (string, error) {
	s := flag
	if s == "" {
		s = os.Getenv("DXPU_ADMIN")
	}
	if s == "" {
		return "", withHint(errors.New("--admin is missing"), `start the proxy with "--admin-listen 127.0.0.1:9100" and pass --admin http://127.0.0.1:9100`)
	}
	u, err := url.Parse(strings.TrimSuffix(s, "/"))
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" {
		return "", withHint(fmt.Errorf("--admin: %q is not the URL of a proxy", s),
			`start the proxy with "--admin-listen 127.0.0.1:9100" and pass --admin http://127.0.0.1:9100`)
	}
	u.Path += page
	u.RawQuery = query.Encode()
	return u.String(), nil
}

// adminRequest sends a request to a proxy and returns the body of the answer.
func adminRequest(ctx context.Context, method, target string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, target, nil)
	if err != nil {
		return nil, err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, withHint(err, "is the proxy running with --admin-listen?")
	}
	if res.StatusCode == http.StatusOK {
		return res.Body, nil
	}
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<10))                                                // an error leaves the status
	if res.StatusCode == http.StatusNotFound && strings.TrimSpace(string(text)) == "404 page not found" { // the answer of Go's servers without a handler
		err = withHint(fmt.Errorf("the server has no page %s", req.URL.Path), "is this the --admin-listen of a proxy?")
	} else {
		err = fmt.Errorf("the proxy answered %s: %s", res.Status, strings.TrimSpace(string(text)))
	}
	return nil, errors.Join(err, res.Body.Close())
}

func (o *captureOptions) run(cmd *cobra.Command) (err error) {
	if o.lua {
		_, err := io.WriteString(cmd.OutOrStdout(), capture.Dissector)
		return err
	}
	target, err := adminURL(o.admin, "/capture", o.query())
	if err != nil {
		return usage(err)
	}
	if o.slot < -1 || o.slot > maxSlot {
		return usagef("--slot %d: want 0 to %d", o.slot, maxSlot)
	}
	if o.binding != "" {
		if _, err := strconv.ParseUint(o.binding, 0, 64); err != nil {
			return usagef("--binding: %q is not the number of a binding", o.binding)
		}
	}
	out, err := o.open(cmd)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()

	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	if o.duration > 0 {
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	in, err := adminRequest(ctx, http.MethodGet, target)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // the stream usually ends in the middle
	written, dropped, err := copyCapture(out, in, o.count)
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	advice := ""
	if dropped > 0 && !cmd.Flags().Changed("snaplen") {
		advice = ": --snaplen 64 captures the headers alone, of more TLPs"
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%d TLPs captured, %d dropped%s\n", written, dropped, advice)
	return err
}

func (o *captureOptions) query() url.Values {
	q := url.Values{"binding": {o.binding}, "snaplen": {strconv.Itoa(int(o.snaplen))}} // the proxy ignores empty values
	if o.slot >= 0 {
		q.Set("slot", strconv.Itoa(o.slot))
	}
	return q
}

// nopCloser leaves standard output open.
type nopCloser struct{ io.Writer }

func (nopCloser) Close() error { return nil }

func (o *captureOptions) open(cmd *cobra.Command) (io.WriteCloser, error) {
	switch {
	case o.output == "-":
		return nopCloser{cmd.OutOrStdout()}, nil
	case o.output != "":
		return os.OpenFile(o.output, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	}
	return nil, usage(withHint(errors.New("-w is missing"), `"-w FILE" names the file, "-w -" writes to standard output`))
}

// copyCapture copies whole packets, so that the file is valid however the
// capture ends, and adds statistics at the end. It stops after limit packets unless
// limit is 0. The end of the proxy ends the capture without an error.
func copyCapture(out io.Writer, in io.Reader, limit uint64) (written, dropped uint64, err error) {
	source := &endingReader{r: in}
	buffer := bufio.NewReader(source) // the pcapng reader adds no buffer of its own
	r, err := pcapgo.NewNgReader(buffer, pcapgo.DefaultNgReaderOptions)
	if err != nil {
		return 0, 0, err
	}
	var w *pcapgo.NgWriter
	var last time.Time
	for limit == 0 || written < limit {
		var data []byte
		var info gopacket.CaptureInfo
		var opts pcapgo.NgPacketOptions
		if data, info, opts, err = r.ZeroCopyReadPacketDataWithOptions(); err != nil {
			err = cmp.Or(source.err, err)
			break
		}
		if w == nil {
			if w, err = newCaptureWriter(out, r); err != nil {
				return 0, 0, err
			}
		}
		last = info.Timestamp
		if opts.DropCount != nil {
			dropped += *opts.DropCount
		}
		written++
		if err = w.WritePacketWithOptions(info, data, opts); err != nil {
			return written, dropped, err // it would come again from each further call of w
		}
		if buffer.Buffered() == 0 { // the reader of a pipe waits for these packets
			if err = w.Flush(); err != nil {
				return written, dropped, err
			}
		}
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = nil
	}
	if w == nil {
		var werr error
		if w, werr = newCaptureWriter(out, r); werr != nil {
			return 0, 0, errors.Join(err, werr)
		}
	}
	stats := pcapgo.NgInterfaceStatistics{LastUpdate: last, PacketsReceived: written + dropped, PacketsDropped: dropped}
	werr := w.WriteInterfaceStats(0, stats)
	if werr == nil {
		werr = w.Flush()
	}
	return written, dropped, errors.Join(err, werr)
}

// endingReader keeps the error that breaks off a stream: the pcapng reader tells some only in words.
type endingReader struct {
	r   io.Reader
	err error // nil: none, or the end of the stream
}

func (e *endingReader) Read(p []byte) (int, error) {
	n, err := e.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		e.err = err
	}
	return n, err
}

// newCaptureWriter starts a file with the section and the interface of r. The
// reader knows the interface once it has looked for the first packet.
func newCaptureWriter(out io.Writer, r *pcapgo.NgReader) (*pcapgo.NgWriter, error) {
	iface, err := r.Interface(0)
	if err != nil {
		return nil, err
	}
	return pcapgo.NewNgWriterInterface(out, iface, pcapgo.NgWriterOptions{SectionInfo: r.SectionInfo()})
}

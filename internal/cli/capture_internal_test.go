package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/pcapgo"

	"github.com/dxpu-project/dxpu/internal/dataplane/capture"
)

// captureStream returns a capture of three packets, the length of its beginning, and the
// number of packets that were dropped before each.
func captureStream(t *testing.T) (raw []byte, begin int, dropped uint64) {
	t.Helper()
	var stream bytes.Buffer
	w, err := pcapgo.NewNgWriterInterface(&stream, pcapgo.NgInterface{Name: "host", LinkType: capture.LinkType},
		pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "dxpu"}})
	if err != nil || w.Flush() != nil {
		t.Fatal(err)
	}
	begin, dropped = stream.Len(), 3
	for i := range 3 {
		data := make([]byte, capture.HeaderSize+12)
		info := gopacket.CaptureInfo{Timestamp: time.Unix(0, int64(i)), CaptureLength: len(data), Length: 100}
		if err := w.WritePacketWithOptions(info, data, pcapgo.NgPacketOptions{DropCount: &dropped}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return stream.Bytes(), begin, dropped
}

// A capture that breaks off anywhere behind its beginning leaves a valid file, also if it is
// interrupted or its time is over.
func TestCopyCaptureOfATruncatedStream(t *testing.T) {
	for _, end := range []error{io.EOF, context.Canceled, context.DeadlineExceeded} {
		t.Run(end.Error(), func(t *testing.T) { copyTruncated(t, end) })
	}
}

// copyTruncated copies captures that end with an error.
func copyTruncated(t *testing.T, end error) {
	want := end
	if errors.Is(end, io.EOF) {
		want = nil // the end of the proxy
	}
	stream, begin, dropped := captureStream(t)
	for n := begin; n <= len(stream); n++ {
		var file bytes.Buffer
		written, lost, err := copyCapture(&file, io.MultiReader(bytes.NewReader(stream[:n]), iotest.ErrReader(end)), 0)
		if !errors.Is(err, want) || lost != written*dropped {
			t.Fatalf("%d bytes: %d packets, %d dropped: %v", n, written, lost, err)
		}
		var stats pcapgo.NgInterfaceStatistics
		r, err := pcapgo.NewNgReader(&file, pcapgo.NgReaderOptions{
			StatisticsCallback: func(_ int, s pcapgo.NgInterfaceStatistics) { stats = s },
		})
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		packets := uint64(0)
		for {
			_, info, err := r.ReadPacketData()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil || info.Timestamp.UnixNano() != int64(packets) || info.Length != 100 {
				t.Fatalf("%d bytes: packet %d: %+v, %v", n, packets, info, err)
			}
			packets++
		}
		if packets != written || stats.PacketsReceived != written+lost || stats.PacketsDropped != lost {
			t.Errorf("%d bytes: %d packets in the file, want %d; statistics %+v", n, packets, written, stats)
		}
	}
}

// A capture of a number of packets ends with the last of them.
func TestCopyCaptureOfTwoPackets(t *testing.T) {
	stream, _, _ := captureStream(t)
	if written, _, err := copyCapture(io.Discard, bytes.NewReader(stream), 2); written != 2 || err != nil {
		t.Errorf("limit 2: %d packets, %v", written, err)
	}
}

// fullFile takes the first n bytes of a file.
type fullFile struct{ n int }

func (d *fullFile) Write(p []byte) (int, error) {
	if d.n -= len(p); d.n < 0 {
		return 0, errors.New("no space left on device")
	}
	return len(p), nil
}

// A disk that is full is one error, not one for each attempt to write.
func TestCopyCaptureToAFullDisk(t *testing.T) {
	stream, _, _ := captureStream(t)
	for n := range len(stream) {
		_, _, err := copyCapture(&fullFile{n}, bytes.NewReader(stream), 0)
		if err == nil || strings.Contains(err.Error(), "\n") {
			t.Fatalf("%d bytes: %v", n, err)
		}
	}
}

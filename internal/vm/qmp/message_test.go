package qmp

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// What QEMU 11.1.3 sends, shortened.
const (
	greetingLine = `{"QMP": {"version": {"qemu": {"micro": 3, "minor": 1, "major": 11}, "package": "Debian 1:11.1.3+ds-1~bpo13+1"}, "capabilities": ["oob"]}}`
	returnLine   = `{"return": {}, "id": 3}`
	errorLine    = `{"id": 4, "error": {"class": "DeviceNotFound", "desc": "Device 'x' not found"}}`
	deletedLine  = `{"timestamp": {"seconds": 1795219200, "microseconds": 250000}, "event": "DEVICE_DELETED", "data": {"device": "v0", "path": "/machine/peripheral/v0"}}`
	resumeLine   = `{"timestamp": {"seconds": -1, "microseconds": -1}, "event": "RESUME"}`
)

func TestParse(t *testing.T) {
	for _, c := range []struct {
		name, line string
		want       message
		bad        bool
	}{
		{name: "greeting", line: greetingLine, want: message{greeting: &Version{11, 1, 3, "Debian 1:11.1.3+ds-1~bpo13+1"}}},
		{name: "return", line: returnLine + "\r\n", want: message{reply: &reply{id: 3, value: json.RawMessage(`{}`)}}},
		{name: "error", line: errorLine, want: message{reply: &reply{id: 4, err: &Error{Class: "DeviceNotFound", Desc: "Device 'x' not found"}}}},
		{name: "event", line: deletedLine, want: message{event: &Event{
			Name: "DEVICE_DELETED",
			Data: json.RawMessage(`{"device": "v0", "path": "/machine/peripheral/v0"}`),
			Time: time.Unix(1795219200, 250e6),
		}}},
		{name: "event without time or data", line: resumeLine, want: message{event: &Event{Name: "RESUME"}}},
		{name: "empty", line: "", bad: true},
		{name: "nothing known in it", line: "{}", bad: true},
		{name: "not an object", line: "[1]", bad: true},
		{name: "reply without id", line: `{"return": {}}`, bad: true},
		{name: "error without id", line: `{"error": {"class": "GenericError", "desc": "JSON parse error"}}`, bad: true},
		{name: "return and error", line: `{"return": {}, "error": {"class": "a", "desc": "b"}, "id": 1}`, bad: true},
		{name: "event and return", line: `{"return": {}, "event": "STOP", "id": 1}`, bad: true},
		{name: "negative id", line: `{"return": {}, "id": -1}`, bad: true},
		{name: "id of another client", line: `{"return": {}, "id": "a"}`, bad: true},
		{name: "two objects", line: `{"return": {}, "id": 1} {}`, bad: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := parse([]byte(c.line))
			if (err != nil) != c.bad || c.bad && !errors.Is(err, ErrNotQMP) {
				t.Fatalf("error %v", err)
			}
			if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(message{}, reply{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestParseTruncated(t *testing.T) {
	for _, line := range []string{greetingLine, returnLine, errorLine, deletedLine, resumeLine} {
		for n := range line {
			if m, err := parse([]byte(line[:n])); err == nil {
				t.Errorf("%d bytes of %s give %+v", n, line, m)
			}
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, line := range []string{greetingLine, returnLine, errorLine, deletedLine, resumeLine, "{}", ""} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		before := bytes.Clone(line)
		m, err := parse(line)
		if !bytes.Equal(before, line) {
			t.Fatal("input changed")
		}
		if (err != nil) != reflect.DeepEqual(m, message{}) {
			t.Fatalf("%+v with error %v", m, err)
		}
		for i := range line { // the result may not alias the read buffer
			line[i] = 'x'
		}
		if m.event != nil && m.event.Data != nil && !json.Valid(m.event.Data) || m.reply != nil && m.reply.err == nil && !json.Valid(m.reply.value) {
			t.Fatalf("aliases its input: %+v", m)
		}
	})
}

func TestReadLine(t *testing.T) {
	const buffer = 16 // the smallest of bufio
	for _, n := range []int{0, 1, buffer - 2, buffer - 1, buffer, 2 * buffer, MaxMessage - 1} {
		line := strings.Repeat("a", n) + "\n"
		got, err := readLine(bufio.NewReaderSize(strings.NewReader(line+"next"), buffer))
		if err != nil || string(got) != line {
			t.Errorf("%d bytes: got %d, %v", n, len(got), err)
		}
		if _, err := readLine(bufio.NewReaderSize(strings.NewReader(line[:n]), buffer)); err == nil {
			t.Errorf("%d bytes without end: no error", n)
		}
	}
	if _, err := readLine(bufio.NewReader(strings.NewReader(strings.Repeat("a", MaxMessage) + "\n"))); !errors.Is(err, ErrNotQMP) {
		t.Errorf("a message that is too long: %v", err)
	}
}

package backup

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"strings"
	"testing"
	"time"
)

var header = Header{ClusterID: "c-1", Revision: 7, Time: time.Date(2026, 11, 20, 8, 0, 0, 0, time.UTC), Program: "0.4.0"}

func write(t testing.TB, records map[string][]byte) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := Write(&b, header, records); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

var golden = `{"dxpu_backup":1,"cluster_id":"c-1","revision":7,"time":"2026-11-20T08:00:00Z","program":"0.4.0"}
{"key":"lease/l-1","value":{"v":1,"id":"l-1"}}
{"key":"meta","value":{"cluster_id":"c-1"}}
{"end":true,"records":2,"sha256":"` + goldenSum + `"}
`

const goldenSum = "c98c5bec5652c2c463ace178440b58ad55a6103e2d27a8e3703192f9513567de"

func records() map[string][]byte {
	return map[string][]byte{"meta": []byte(`{"cluster_id":"c-1"}`), "lease/l-1": []byte(`{"v":1,"id":"l-1"}`)}
}

func TestFormat(t *testing.T) {
	b := write(t, records())
	if string(b) != golden {
		t.Errorf("got\n%s", b)
	}
	h, got, err := Read(bytes.NewReader(b))
	want := header
	want.Version = 1
	if err != nil || h != want || !reflect.DeepEqual(got, records()) {
		t.Errorf("read %+v %s, %v", h, got, err)
	}
}

func TestTruncation(t *testing.T) {
	b := write(t, records())
	for n := range b {
		if h, got, err := Read(bytes.NewReader(b[:n])); !errors.Is(err, ErrTruncated) || got != nil || h != (Header{}) {
			t.Errorf("of %d bytes: %v", n, err)
		}
	}
}

// Read detects every changed byte.
func TestDamage(t *testing.T) {
	b := write(t, records())
	for i := range b {
		d := bytes.Clone(b)
		d[i] ^= 1
		if _, got, err := Read(bytes.NewReader(d)); err == nil && !reflect.DeepEqual(got, records()) {
			t.Errorf("byte %d: %s", i, d)
		}
	}
}

func TestErrors(t *testing.T) {
	first := golden[:strings.Index(golden, "\n")+1]
	tests := []struct{ name, file, want string }{
		{"empty", "", "line 1: the file is truncated"},
		{"something else", "hello\n", "line 1: this is not a backup of a pool"},
		{"other JSON", "{}\n", "line 1: this is not a backup of a pool"},
		{"a later version", `{"dxpu_backup":2,"program":"9.0"}` + "\n", `line 1: the backup has version 2 and this program knows 1: use the program that made it, "9.0", or a later one`},
		{"no record", first + "{}\n", "line 2: the file is damaged: it is not a record"},
		{"no object", first + `{"key":"a","value":1}` + "\n", "line 2: the file is damaged: it is not a record"},
		{"no JSON", first + "x\n", "line 2: the file is damaged: invalid character"},
		{"twice", first + strings.Repeat(`{"key":"a","value":{}}`+"\n", 2), `line 3: the file is damaged: record "a" is listed twice`},
		{"records missing", first + `{"end":true,"records":1,"sha256":""}` + "\n", "line 2: the file is damaged: it has 0 of 1 records"},
		{"another checksum", first + `{"end":true,"records":0,"sha256":"00"}` + "\n", "line 2: the file is damaged: the checksum does not match"},
		{"more", golden + "x", "line 4: the file is damaged: data follows the last line"},
		{"a line too long", first + strings.Repeat("x", MaxLine+1), "line 2: the file is damaged: it is longer than"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, got, err := Read(strings.NewReader(tt.file))
			if err == nil || !strings.Contains(err.Error(), tt.want) || got != nil {
				t.Errorf("got %v, want %s", err, tt.want)
			}
		})
	}
}

func TestWriteFails(t *testing.T) {
	for name, value := range map[string]string{"no JSON": "x", "too long": `"` + strings.Repeat("x", MaxLine) + `"`} {
		if err := Write(&bytes.Buffer{}, header, map[string][]byte{"lease/l-1": []byte(value)}); err == nil || !strings.Contains(err.Error(), "lease/l-1") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add(write(f, nil))
	f.Add(write(f, records()))
	f.Add([]byte(golden[:90]))
	f.Add([]byte(fmt.Sprintf("%s{}\n", golden)))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, got, err := Read(bytes.NewReader(b))
		if err != nil {
			if got != nil || h != (Header{}) {
				t.Fatalf("an error and a value: %v", err)
			}
			return
		}
		var again bytes.Buffer
		if err := Write(&again, h, got); err != nil {
			t.Fatal(err)
		}
		h2, got2, err := Read(&again)
		if err != nil || !h2.Time.Equal(h.Time) || len(got2) != len(got) || !maps.EqualFunc(got, got2, func(a, b []byte) bool { return len(a) > 0 && len(b) > 0 }) {
			t.Fatalf("round trip: %v", err)
		}
	})
}

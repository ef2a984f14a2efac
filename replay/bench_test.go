package replay

import (
	"bytes"
	"os"
	"testing"
)

// BenchmarkReadTrace is the time and memory of a line.
func BenchmarkReadTrace(b *testing.B) {
	path, _, _ := madeTrace(b)
	data, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	_, lines, _ := bytes.Cut(data, []byte("\n"))
	span, _, _ := bytes.Cut(lines, []byte("\n"))
	d := &reader{name: "x", header: madeHeader()}
	b.ReportAllocs()
	b.SetBytes(int64(len(span)))
	for b.Loop() {
		if err := d.line(1, span); err != nil {
			b.Fatal(err)
		}
	}
}

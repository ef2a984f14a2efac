package profile_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/evenkeel/evenkeel/profile"
)

// BenchmarkRead1M reads a recording of a million lines; B/op divided by a
// million is what a line costs, however many there are.
func BenchmarkRead1M(b *testing.B) {
	const lines = 1_000_000
	for b.Loop() {
		n := 0
		r, w := io.Pipe()
		go func() {
			fmt.Fprintln(w, header)
			for range lines {
				if _, err := io.WriteString(w, point+"\n"); err != nil {
					return
				}
			}
			w.Close()
		}()
		if _, err := profile.Read("x", r, profile.Visitor{Point: func(*profile.Point) error { n++; return nil }}); err != nil || n != lines {
			b.Fatal(n, err)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/lines, "ns/line")
}

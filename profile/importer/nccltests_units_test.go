package importer

import (
	"fmt"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// inUnits is sampleRows of an all_reduce over 8 ranks below a line of units, with the
// times and bandwidths in those.
func inUnits(units string, perUS, perGBs float64) string {
	l := written("all_reduce", 8)
	text := rankLines(8, 8, h100Text) + strings.Replace(l.head(), "(us)  (GB/s)  (GB/s)", units, 1)
	for _, row := range [][3]float64{{1 << 20, 40, 41}, {1 << 24, 150, 151}, {1 << 28, 1500, 1510}} {
		text += fmt.Sprintf("%12.0f %12.0f float sum -1", row[0], row[0]/4)
		for _, us := range row[1:] {
			alg := row[0] / us / 1e3 * perGBs
			text += fmt.Sprintf(" %.9g %.7g %.7g 0", us*perUS, alg, alg*2*7/8)
		}
		text += "\n"
	}
	return text
}

// A table is in the units that the line below its column names says; those of a unit
// that is not known are not guessed at.
func TestNCCLUnits(t *testing.T) {
	all := threePoints(op.KindAllReduce, h100of8, true)
	for _, c := range []struct {
		units         string
		perUS, perGBs float64
	}{
		{"(us)  (GB/s)  (GB/s)", 1, 1},
		{"(ms)  (GB/s)  (GB/s)", 1e-3, 1},
		{"(ns)  (MB/s)  (MB/s)  (ns)  (MB/s)  (MB/s)", 1e3, 1e3},
		{"(s)  (GiB/s)  (GiB/s)", 1e-6, 1e9 / (1 << 30)},
		{"(us)  (Gb/s)  (Gb/s)", 1, 8},
		{"(usec)  (Gbps)  (Gbps)  %Y-%m-%d %H:%M:%S", 1, 8},
	} {
		ncclCase{log: inUnits(c.units, c.perUS, c.perGBs), points: all, flags: []string{noAverage}}.check(t)
	}
	footer := "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 184180\n"
	ncclCase{log: inUnits("(us)  (MB/s)  (MB/s)", 1, 1e3) + footer, points: all}.check(t)

	for units, want := range map[string]string{
		"(hours)  (GB/s)  (GB/s)":             `column time is in "hours", want us, ms, s or ns`,
		"(us)  (pages/s)  (GB/s)":             `column algbw is in "pages/s", want GB/s, MB/s, GiB/s or Gb/s`,
		"(us) (GB/s) (GB/s) () (GB/s) (GB/s)": `column time is in "", want us`,
	} {
		log := inUnits(units, 1, 1)
		line := strings.Count(log[:strings.Index(log, "(elements)")], "\n") + 1
		ncclCase{
			log: log, fails: ErrNothing.Error(), drops: map[string]int{"the unit of a column is not known": 3},
			flags: []string{fmt.Sprintf(":%d: %s", line, want), noAverage},
		}.check(t)
	}
	kib := strings.Replace(inUnits("(us)  (GB/s)  (GB/s)", 1, 1), "(B)", "(KiB)", 1)
	ncclCase{log: kib, fails: ErrNothing.Error(), drops: map[string]int{"the unit of a column is not known": 3}, flags: []string{`column size is in "KiB", want B`, noAverage}}.check(t)
}

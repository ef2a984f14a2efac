package importer

import (
	"fmt"
	"slices"
	"strings"
)

// ncclUnitLine is the line of units below the column names, as
//
//	#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
//
// All generations of nccl-tests print these units; forks and those who edit a table
// print others.
type ncclUnitLine struct {
	line int
	of   []string // without parentheses, in their order
}

// ncclUnits reads a line of units; nil if it is none. Columns without a unit leave no
// token behind, and what follows the last (the format of -S 1) is passed over.
func ncclUnits(tokens []string) []string {
	if len(tokens) > 0 && tokens[0] == "#" {
		tokens = tokens[1:]
	} else if len(tokens) > 0 {
		tokens = append([]string{strings.TrimPrefix(tokens[0], "#")}, tokens[1:]...)
	}
	var of []string
	for _, t := range tokens {
		inner, closed := strings.CutSuffix(t, ")")
		inner, opened := strings.CutPrefix(inner, "(")
		if !opened || !closed {
			break
		}
		of = append(of, inner)
	}
	if len(of) < len(ncclWithUnits) {
		return nil
	}
	return of
}

// ncclWithUnits are the columns of one half that have a unit, after the two before it.
var ncclWithUnits = []string{"size", "count", "time", "algbw", "busbw"}

// usualNCCLUnits are those of tables without a line of units, with the time's in s.
func usualNCCLUnits(time float64) [2][3]float64 {
	half := [3]float64{time, 1e9, 1e9}
	return [2][3]float64{half, half}
}

// measure takes over the units of a line; none leave the layout as it is. Where the
// line does not give both halves as many units, those of the first stand for both.
func (l *ncclLayout) measure(of []string) {
	if of == nil {
		return
	}
	for i, want := range [][]string{{"B", "bytes"}, {"elements"}} {
		if !slices.Contains(want, of[i]) {
			l.odd = fmt.Sprintf("column %s is in %q, want %s", ncclWithUnits[i], of[i], want[0])
			return
		}
	}
	of = of[2:]
	each := len(of) / l.halves
	if each < 3 || len(of)%l.halves != 0 {
		each = 0
	}
	for half := range l.units {
		for i := range l.units[half] {
			column, unit := ncclWithUnits[2+i], of[min(half, l.halves-1)*each+i]
			known, example := ncclRates(), "GB/s, MB/s, GiB/s or Gb/s"
			if i == 0 {
				known, example = ncclTimes(), "us, ms, s or ns"
			}
			value, ok := known[unit]
			if !ok {
				l.odd = fmt.Sprintf("column %s is in %q, want %s", column, unit, example)
				return
			}
			l.units[half][i] = value
		}
	}
}

// ncclTimes are the units of time in s.
func ncclTimes() map[string]float64 {
	return map[string]float64{
		"ns": 1e-9, "nsec": 1e-9, "us": 1e-6, "usec": 1e-6, "µs": 1e-6, "μs": 1e-6,
		"ms": 1e-3, "msec": 1e-3, "s": 1, "sec": 1,
	}
}

// ncclRates are the units of bandwidth in bytes a second. Of b and B, the first is a bit.
func ncclRates() map[string]float64 {
	all := map[string]float64{}
	for prefix, scale := range map[string]float64{
		"": 1, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12,
		"Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30, "Ti": 1 << 40,
	} {
		for unit, size := range map[string]float64{"B": scale, "b": scale / 8, "bit": scale / 8} {
			for _, per := range []string{"/s", "/sec", "ps"} {
				all[prefix+unit+per] = size
			}
		}
	}
	return all
}

// rateUnit is the unit of the table's busbw, and so of the average below it.
func (t *ncclTable) rateUnit() float64 {
	if t.layout == nil {
		return 1e9
	}
	return t.layout.units[0][2]
}

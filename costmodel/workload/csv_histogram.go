package workload

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

// What tables call the columns of a histogram.
func rangeNames() []string { return []string{"range", "bin", "bucket", "interval"} }

func boundNames() []string {
	return []string{"upper", "upper_bound", "upper_tokens", "bound", "le", "up_to"}
}

func weightNames() []string {
	return []string{"count", "counts", "number", "weight", "share", "frequency", "probability", "sequences"}
}

func lowNames() []string {
	return []string{"low", "lower", "lower_bound", "lower_tokens", "low_tokens", "lo", "from", "start", "begin", "min", "bin_start", "bin_low"}
}

func highNames() []string {
	return []string{"high", "upper", "upper_bound", "upper_tokens", "high_tokens", "hi", "to", "end", "stop", "max", "bin_end", "bin_high"}
}

// histogramColumns are those of a histogram: where a bin begins, -1 if that is said
// by the row before or by the bin itself; the bin, or where it ends; its count.
type histogramColumns struct{ low, bin, weight int }

// findHistogram finds a column of counts or shares, and one of ranges, bounds or
// lengths, or two of where bins begin and end, each the only one of its sort.
func findHistogram(columns []string, header bool) (histogramColumns, bool) {
	c := histogramColumns{only(columns, lowNames()), only(columns, highNames()), only(columns, weightNames())}
	lengths := slices.Concat(rangeNames(), lengthNames(), []string{"value"})
	if c.low < 0 || c.bin < 0 || only(columns, lengths) >= 0 {
		c.low, c.bin = -1, only(columns, append(lengths, boundNames()...))
	}
	return c, header && c.bin >= 0 && c.weight >= 0
}

// only is the column with one of the names; -1 where none or several have.
func only(columns, names []string) int {
	found := -1
	for i, c := range columns {
		if !slices.Contains(names, strings.ToLower(c)) {
			continue
		}
		if found >= 0 {
			return -1
		}
		found = i
	}
	return found
}

// histogram reads the bins of a table. A bound includes itself and begins behind
// the bound of the row before.
func (t *csvTable) histogram(c histogramColumns) (*Histogram, error) {
	h := &Histogram{}
	last := units.Tokens(0)
	err := t.each(func(line int, cells []string) error {
		in := intake{name: t.name, column: t.columns[c.bin], unit: "line", at: line}
		if len(h.Bins) >= MaxLengths {
			return in.bad("more than %d bins", MaxLengths)
		}
		bin, err := t.bin(c, cells, last)
		if err != nil {
			return in.bad("%w", err)
		}
		last = bin.High
		in.column = t.columns[c.weight]
		if bin.Weight, err = parseWeight(strings.TrimSpace(cells[c.weight])); err != nil {
			return in.bad("%w", err)
		}
		h.Bins = append(h.Bins, bin)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if c.low >= 0 {
		h.sorted().closeEnds()
	}
	return h.named(t.name)
}

// bin reads the range of a row; the row before ends with last.
func (t *csvTable) bin(c histogramColumns, cells []string, last units.Tokens) (bin Bin, err error) {
	cell := strings.TrimSpace(cells[c.bin])
	switch {
	case c.low >= 0:
		if bin.High, err = parseLength(cell); err != nil {
			return bin, err
		}
		if low := strings.TrimSpace(cells[c.low]); low != "0" {
			if bin.Low, err = parseLength(low); err != nil {
				return bin, fmt.Errorf("begins at %w", err)
			}
		}
		return bin, nil
	case slices.Contains(boundNames(), strings.ToLower(t.columns[c.bin])):
		if bin.High, err = parseLength(cell); err != nil {
			return bin, err
		}
		if bin.Low = last + 1; bin.High < bin.Low {
			return bin, fmt.Errorf("%d: the bound before is %d: bounds must rise", int64(bin.High), int64(last))
		}
		return bin, nil
	}
	return parseRange(cell)
}

// closeEnds takes the ends of bins for the first length beyond them where a bin
// begins at the end of another, as with the edges of numpy's histograms. A bin that
// begins at 0 begins at 1.
func (h *Histogram) closeEnds() {
	shared := false
	for i := 1; i < len(h.Bins); i++ {
		shared = shared || h.Bins[i].Low == h.Bins[i-1].High
	}
	for i := range h.Bins {
		b := &h.Bins[i]
		if shared {
			b.High--
		}
		b.Low = max(1, b.Low)
	}
}

// named sorts and checks a histogram that was read.
func (h *Histogram) named(name string) (*Histogram, error) {
	if err := h.sorted().Validate(); err != nil {
		return nil, fmt.Errorf("%s: in rising order, %w", name, err)
	}
	return h, nil
}

// parseRange reads "[32,64)", "[11, 50]", "(10, 50]", "11-50" or "64".
// A bin that begins at 0 begins at 1: there are no sequences of no tokens.
func parseRange(text string) (Bin, error) {
	inner, low, high := strings.TrimSpace(text), units.Tokens(0), units.Tokens(0)
	for end := range strings.SplitSeq(inner, "-") {
		if thousands.MatchString(strings.TrimSpace(end)) {
			return Bin{}, fmt.Errorf("%q: thousands set apart, or a range? write a length as 1024, a range as 11-50 or [32,64)", shorten(text))
		}
	}
	if n := len(inner); n >= 2 && strings.ContainsAny(inner[:1], "[(") && strings.ContainsAny(inner[n-1:], "])") {
		if inner[0] == '(' {
			low++
		}
		if inner[n-1] == ')' {
			high--
		}
		inner = inner[1 : n-1]
	}
	from, to, two := strings.Cut(inner, ",")
	if !two {
		from, to, two = strings.Cut(inner, "-")
	}
	if !two {
		l, err := parseLength(inner)
		if err != nil && openEnd.MatchString(inner) {
			err = fmt.Errorf("%q: has an open end: say where it begins and ends, as in 1025-2048", shorten(text))
		}
		return Bin{Low: l, High: l}, err
	}
	a, err1 := strconv.ParseInt(strings.TrimSpace(from), 10, 64)
	b, err2 := strconv.ParseInt(strings.TrimSpace(to), 10, 64)
	if err1 != nil || err2 != nil || a < 0 || b < 0 || b > int64(MaxLength) {
		return Bin{}, fmt.Errorf("%q: want a range of tokens such as [32,64) or 11-50, or one length, up to %d", shorten(text), int64(MaxLength))
	}
	bin := Bin{Low: max(1, units.Tokens(a)+low), High: units.Tokens(b) + high}
	if bin.High < bin.Low {
		return Bin{}, fmt.Errorf("%q: holds no length", shorten(text))
	}
	return bin, nil
}

// openEnd is a bin of all lengths above or below one.
var openEnd = regexp.MustCompile(`^(?:[<>≤≥]=?\s*\d+|\d+\s*\+)$`)

// parseWeight reads a count or a share.
func parseWeight(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 0) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("%q: want a count or a share of 0 or more", shorten(text))
	}
	return v, nil
}

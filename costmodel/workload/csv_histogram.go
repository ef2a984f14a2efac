package workload

import (
	"fmt"
	"math"
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

// histogramColumns finds the columns of a histogram: one of ranges, bounds or
// lengths, and one of counts or shares, each the only one of its sort.
func histogramColumns(columns []string, header bool) (bins, weights int, ok bool) {
	if !header {
		return 0, 0, false
	}
	bins = only(columns, slices.Concat(rangeNames(), boundNames(), lengthNames(), []string{"value"}))
	weights = only(columns, weightNames())
	return bins, weights, bins >= 0 && weights >= 0
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
func (t *csvTable) histogram(bins, weights int) (*Histogram, error) {
	h := &Histogram{}
	title := strings.ToLower(t.columns[bins])
	last := units.Tokens(0)
	err := t.each(func(line int, cells []string) error {
		in := intake{name: t.name, column: t.columns[bins], unit: "line", at: line}
		if len(h.Bins) >= MaxLengths {
			return in.bad("more than %d bins", MaxLengths)
		}
		var bin Bin
		var err error
		switch cell := strings.TrimSpace(cells[bins]); {
		case slices.Contains(boundNames(), title):
			bin.High, err = parseLength(cell)
			if bin.Low = last + 1; err == nil && bin.High < bin.Low {
				err = fmt.Errorf("%d: the bound before is %d: bounds must rise", int64(bin.High), int64(last))
			}
			last = bin.High
		default:
			bin, err = parseRange(cell)
		}
		if err != nil {
			return in.bad("%w", err)
		}
		in.column = t.columns[weights]
		if bin.Weight, err = parseWeight(strings.TrimSpace(cells[weights])); err != nil {
			return in.bad("%w", err)
		}
		h.Bins = append(h.Bins, bin)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return h.named(t.name)
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

// parseWeight reads a count or a share.
func parseWeight(text string) (float64, error) {
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v >= 0) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("%q: want a count or a share of 0 or more", shorten(text))
	}
	return v, nil
}

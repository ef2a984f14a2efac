package costmodel

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Doubt is a part of what a law may be off by that other laws are off by as well, since
// all of them rest on it: where a kernel's causal blocks take longer than assumed, so do
// the laws that were made from the one of these.
type Doubt struct {
	// Of names what it is about, in words that say what measuring would settle it: the
	// title of a law, or what several laws have in common.
	Of string `json:"of"`
	// Ratio is by what factor of time either way, as the end of a 90 % interval.
	Ratio float64 `json:"ratio"`
}

// Title names a law and where it holds: "attn_fwd (full d128 bf16) on h100_sxm".
func (l *Law) Title() string { return lawTitle(l) + " on " + l.On() }

// PassedOn are the doubts of a law that is made from this one: its own, and those that it
// shares with others.
func (l *Law) PassedOn() []Doubt {
	return append(slices.Clone(l.Doubts), Doubt{l.Title(), math.Exp(l.ownLog())})
}

// spreadLog is half of a law's 90 % interval, the wider side, in log time.
func (l *Law) spreadLog() float64 { return max(math.Log(l.Spread.Hi), -math.Log(l.Spread.Lo)) }

// ownLog is what a law's shared doubts leave of its interval. All of these are
// independent, so that squares add.
func (l *Law) ownLog() float64 {
	left := l.spreadLog() * l.spreadLog()
	for _, d := range l.Doubts {
		left -= math.Log(d.Ratio) * math.Log(d.Ratio)
	}
	return math.Sqrt(max(0, left))
}

// With is the factor of a 90 % interval of two independent doubts.
func With(a, b float64) float64 { return math.Exp(math.Hypot(math.Log(a), math.Log(b))) }

// Without is what a 90 % interval by a factor of `all` is by where a part of it, by a
// factor of its own, is told from the rest: squares of logarithms add.
func Without(all, part float64) float64 {
	return math.Exp(math.Sqrt(max(0, math.Log(all)*math.Log(all)-math.Log(part)*math.Log(part))))
}

func (l *Law) validateDoubts() error {
	for i, d := range l.Doubts {
		switch {
		case d.Of == "":
			return fmt.Errorf("doubts[%d].of: empty: it says what the law rests on", i)
		case !(d.Ratio > 1 && d.Ratio < 1e6):
			return fmt.Errorf("doubts[%d].ratio: %v: want a factor above 1", i, d.Ratio)
		}
	}
	return nil
}

// doubted is by how much a time may be less or more for one reason.
type doubted struct {
	of         string
	less, more units.Seconds
}

// doubts share the half widths of times out among the reasons for them, those of one
// reason together: in the order of their names, so that sums are the same every time. A
// law's are in the proportions that it has at its measured shapes, and their squares add
// up to that of its interval.
func doubts(of map[*Law]Estimate) []doubted {
	var all []doubted
	for l, e := range of {
		less, more, total := e.Mid-e.Lo, e.Hi-e.Mid, l.ownLog()*l.ownLog()
		for _, d := range l.Doubts {
			total += math.Log(d.Ratio) * math.Log(d.Ratio)
		}
		if len(l.Doubts) == 0 {
			all = append(all, doubted{l.Title(), less, more})
			continue
		}
		for _, d := range l.PassedOn() {
			share := units.Seconds(math.Log(d.Ratio) / math.Sqrt(total))
			all = append(all, doubted{d.Of, share * less, share * more})
		}
	}
	slices.SortFunc(all, func(a, b doubted) int {
		return cmp.Or(cmp.Compare(a.of, b.of), cmp.Compare(a.less, b.less), cmp.Compare(a.more, b.more))
	})
	sums := all[:0]
	for _, d := range all {
		if n := len(sums); n > 0 && sums[n-1].of == d.of {
			sums[n-1].less, sums[n-1].more = sums[n-1].less+d.less, sums[n-1].more+d.more
			continue
		}
		sums = append(sums, d)
	}
	return sums
}

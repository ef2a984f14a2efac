package costmodel

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Doubt is a component of a law's error that the law shares with other laws, because all
// of them rest on the same assumption. If a kernel's causal blocks were derived from its
// full blocks, for example, an error of that ratio shifts every law derived the same way.
// Errors of one Doubt are fully correlated between laws; those of different doubts are
// independent.
type Doubt struct {
	// Of names the assumption, in words that tell which measurement would settle it: the
	// title of a law, or what several laws have in common.
	Of string `json:"of"`
	// Ratio is the half width of the 90 % interval that the assumption causes, as a factor
	// of time above 1: the time lies between 1/Ratio and Ratio times the prediction.
	Ratio float64 `json:"ratio"`
}

// Title names a law and where it holds: "attn_fwd (full d128 bf16) on h100_sxm".
func (l *Law) Title() string { return lawTitle(l) + " on " + l.On() }

// PassedOn returns the doubts that a law derived from this one inherits: those that this
// law shares with others, and one for this law's own error.
func (l *Law) PassedOn() []Doubt {
	return append(slices.Clone(l.Doubts), Doubt{l.Title(), math.Exp(l.ownLog())})
}

// InDoubt is the law with one more doubt, named and as large as given, in its interval.
func (l Law) InDoubt(of string, ratio float64) Law {
	l.Spread = Spread{Lo: 1 / CombineFactors(1/l.Spread.Lo, ratio), Hi: CombineFactors(l.Spread.Hi, ratio)}
	l.Width = nil // of the law's own error alone
	l.Doubts = append(slices.Clone(l.Doubts), Doubt{of, ratio})
	return l
}

// spreadLog is half of a law's 90 % interval, the wider side, in log time.
func (l *Law) spreadLog() float64 { return max(math.Log(l.Spread.Hi), -math.Log(l.Spread.Lo)) }

// ownLog is the part of a law's log half width that its shared doubts do not explain.
// Doubts are independent, so variances (squares of log half widths) subtract.
func (l *Law) ownLog() float64 {
	left := l.spreadLog() * l.spreadLog()
	for _, d := range l.Doubts {
		left -= math.Log(d.Ratio) * math.Log(d.Ratio)
	}
	return math.Sqrt(max(0, left))
}

// CombineFactors is the half width of the 90 % interval of a product of two quantities with
// independent errors, of which each has the interval from 1/a to a and from 1/b to b times
// its value. Half widths are factors, 1 or more; their logarithms add in quadrature:
//
//	exp(sqrt(log(a)^2 + log(b)^2))
func CombineFactors(a, b float64) float64 { return math.Exp(math.Hypot(math.Log(a), math.Log(b))) }

// RemainingFactor is the inverse of CombineFactors: the half width, as a factor, that
// remains of a 90 % interval of half width all without an independent component of half
// width part. It is 1 where that component alone is as wide:
//
//	exp(sqrt(max(0, log(all)^2 - log(part)^2)))
func RemainingFactor(all, part float64) float64 {
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

// shareOf is the doubt's part of the log of an interval's side, from lo to hi.
func (d Doubt) shareOf(hi, lo units.Seconds) units.Seconds {
	whole := math.Log(float64(hi / lo))
	return units.Seconds(math.Log(d.Ratio) / max(whole, math.Log(d.Ratio)))
}

// without is what is left of a side without a share of it: squares add up.
func without(share units.Seconds) units.Seconds {
	return units.Seconds(math.Sqrt(max(0, 1-float64(share*share))))
}

// doubted is how far one reason may shorten (less) or lengthen (more) a time.
type doubted struct {
	of         string
	less, more units.Seconds
}

// doubts splits the half widths of the given times among the reasons for them (doubts and
// the laws' own errors) and adds up those of one reason. Within a law the split follows
// the proportions of its log half widths, so that the squares of the parts add up to the
// square of the whole. The result is ordered by name, so that floating-point sums do not
// depend on map order.
func doubts(of map[*Law]Estimate) []doubted {
	var all []doubted
	for l, e := range of {
		less, more, total := e.Mid-e.Lo, e.Hi-e.Mid, l.ownLog()*l.ownLog()
		if l.InTraining != nil && l.InTraining.Ratio > 1 {
			d := l.InTraining.doubt()
			down, up := d.shareOf(e.Mid, e.Lo), d.shareOf(e.Hi, e.Mid)
			all = append(all, doubted{d.Of, down * less, up * more})
			less, more = without(down)*less, without(up)*more
		}
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

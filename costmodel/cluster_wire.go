package costmodel

import (
	"cmp"
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

const (
	// wireShare is the share of a link's datasheet rate that a collective reaches.
	wireShare = 0.8
	// wireInterval is the interval of such a rate, where nobody measured anything
	// over the link: topology and protocol matter more than the sheet.
	wireInterval = 2.2
	// wireKind is what of that interval is a collective's own, whichever group; the rest
	// all collectives over the link share. wireGroup is what is a group's own. Of
	// aiconfigurator's largest messages, on six GPU types with up to four versions of a
	// library, the rates through the busiest port that a group's collectives reach
	// deviate from their mean by up to a factor of 1.28 in nine of ten, and those of one
	// collective in its groups of 2, 4 and 8 by another 1.11.
	wireKind  = 1.3
	wireGroup = 1.15
	// wireCoefs is the interval of its latency and rate each.
	wireCoefs = 1.8
	// NetLatency is the assumed latency of one level of a tree of ranks between nodes:
	// nccl-tests logs show 54 to 84 us for the smallest all_gathers among 16 ranks of two nodes,
	// and 117 us for an all_reduce of 1 MiB among 64 of eight.
	NetLatency units.Seconds = 12e-6
	// BusLatency is the assumed latency of one level inside a node.
	BusLatency units.Seconds = 8e-6
)

// AssumedWire describes a link that nobody measured, among the members of a group, by
// rates and a latency from datasheets.
type AssumedWire struct {
	Class   string
	Members []op.Member
	Nodes   int
	Latency units.Seconds // of one hop
	// One is the rate of a single port, All that of all ports of a node when they serve
	// one ring together. Both are for one direction.
	One, All units.BytesPerS
	By       string // whose rate One is; completes a sentence that ends in "80 % of"
	AllBy    string // whose All is; empty where it is By's
	// Port bounds what its members send; nil where nothing does.
	Port *op.Port
}

// Laws returns the wire's group and an assumed law for each collective that a step may
// use, all alpha + beta x in the bytes x on the busiest port. The latency alpha is that
// of a tree over the ranks, ceil(log2 ranks) levels (twice that for an all_reduce, up and
// down; one for point-to-point ops and all-to-alls). The rate is wireShare of the
// datasheet's.
func (w AssumedWire) Laws() (op.GroupType, []Law) {
	g := op.NewGroupType(w.Members, w.Nodes, w.Class)
	levels := math.Ceil(math.Log2(float64(g.Ranks())))
	var laws []Law
	for _, k := range StepCollectives() {
		hops, rate, by := levels, w.All, cmp.Or(w.AllBy, w.By)
		switch k {
		case op.KindSendRecv, op.KindAllToAll, op.KindAllToAllV:
			hops, rate, by = 1, w.One, w.By
		case op.KindAllReduce:
			hops = 2 * levels
		}
		laws = append(laws, Law{
			Op: k, Group: g.Name, Curve: wireLine(hops*float64(w.Latency), wireShare*float64(rate)), Range: everySize(k),
			Spread: Spread{Lo: 1 / wireInterval, Hi: wireInterval}, Port: w.Port,
			Doubts:  []Doubt{{"collectives over " + w.Class, RemainingFactor(wireInterval, wireKind)}, {string(k) + " over " + w.Class, RemainingFactor(wireKind, wireGroup)}},
			Assumed: fmt.Sprintf("not measured: %.0f %% of %s (%.3g GB/s) and %.3g us a level of its tree", 100*wireShare, by, float64(rate)/1e9, 1e6*float64(w.Latency)),
		})
	}
	return g, laws
}

// StepCollectives lists the collectives that a step, or a strategy's search, may ask the
// predictor for.
func StepCollectives() []op.Kind {
	return []op.Kind{op.KindAllReduce, op.KindAllGather, op.KindReduceScatter, op.KindAllToAll, op.KindAllToAllV, op.KindSendRecv}
}

// wireLine is a curve of one latency and one rate, both guessed.
func wireLine(latency, rate float64) *Curve {
	return &Curve{Form: AlphaBeta, Pieces: []Piece{{Alpha: wireGuess(latency), Beta: wireGuess(1 / rate)}}}
}

func wireGuess(v float64) Coef { return Coef{Value: v, Lo: v / wireCoefs, Hi: v * wireCoefs} }

// everySize is the range of a law that holds for every size alike.
func everySize(k op.Kind) []AxisRange {
	var axes []AxisRange
	for _, name := range op.CoordNames(k) {
		axes = append(axes, AxisRange{Axis: name, Min: 1, Max: math.Exp2(50)})
	}
	return axes
}

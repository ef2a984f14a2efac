package groupcost

import (
	"context"
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// measured is a class's costs.
type measured struct {
	recompute bool
	base      units.Seconds
	tokens    units.Tokens // that fit
	curve     curve
}

// PricesOff and HalfOff are by what share the sum of prices is off the simulation of a
// packed group of unequal sequences at most in nine groups of ten and in half of them: of
// one type and of two, a fifth to wholly full (TestPricesAgainstPackedSimulation). Far off,
// and then too dear, are only groups of one or two short sequences.
const (
	PricesOff = 0.05
	HalfOff   = 0.02
)

// samples is the number of lengths that are simulated.
const samples = 24

// measure prices a mechanism: with activations kept and recomputed, nil where it
// holds nothing so.
//
// What a sequence of s tokens adds is taken from a full group of sequences like
// it, for that is where it will be: a launch, a message's latency and a small
// matrix are paid once for all of them, not by each. So Time(s) is (P - Base)/m
// with P the time of m = load/s of them, and Base what a group takes of itself.
//
// How far the sum of prices is off the simulation of a packed group: see PricesOff.
func (g *group) measure(ctx context.Context, m *mechanism) (kept, again *measured, err error) {
	load := m.kept
	if least := 4 * g.shortest(m); load < least {
		load = m.most()
	}
	if m.kept > 0 {
		kept = &measured{tokens: m.kept}
	}
	if m.again > 0 {
		again = &measured{recompute: true, tokens: m.again}
	}
	if kept != nil && again != nil && float64(again.tokens) < worthIt*float64(kept.tokens) {
		again = nil
	}
	if g.b.o.Of.Tokens > 0 {
		return kept, again, g.only(ctx, m, kept, again)
	}
	if err := g.bases(ctx, m, load, kept, again); err != nil {
		return nil, nil, err
	}
	var points [2][]sample
	for _, s := range g.lengths(m) {
		count := int(max(1, load/s))
		x, err := g.passes(ctx, m, costmodel.Documents{Tokens: s, Count: count})
		if err != nil {
			return nil, nil, err
		}
		for i, of := range []*measured{kept, again} {
			if of != nil {
				points[i] = append(points[i], sample{float64(s), float64(x.Time(of.recompute)-of.base) / float64(count)})
			}
		}
	}
	for i, of := range []*measured{kept, again} {
		if of != nil {
			of.curve = tabulate(points[i])
		}
	}
	return kept, again, nil
}

// only prices sequences of one length: a group of one and one of as many as it may have
// take what they are simulated to take, and groups between them are on the line.
func (g *group) only(ctx context.Context, m *mechanism, of ...*measured) error {
	tokens := g.b.o.Of.Tokens
	time := func(count int, recompute bool) (float64, error) {
		p, err := g.passes(ctx, m, costmodel.Documents{Tokens: max(tokens, g.shortest(m)), Count: count})
		return float64(p.Time(recompute)), err
	}
	for _, x := range of {
		if x == nil {
			continue
		}
		one, err := time(1, x.recompute)
		if err != nil {
			return err
		}
		each := one
		if n := g.together(x.tokens); n > 1 {
			all, err := time(n, x.recompute)
			if err != nil {
				return err
			}
			each = (all - one) / float64(n-1)
		}
		base := min(max(0, one-each), mostBase*one)
		x.base, x.curve = units.Seconds(base), tabulate([]sample{{float64(tokens), max(each, one-base)}})
	}
	return nil
}

// worthIt is by how much more a group must hold for recomputation to be offered.
const worthIt = 1.1

// bases finds what a group takes of itself, from groups of short sequences that
// are filled to different degrees: a part f of the full group's P takes
//
//	f P + (1-f) Base
//
// by the prices, and the base is the one whose relative errors have the least
// squares. That of the nearly empty group, which waits for launches and latencies,
// weighs most; the full one is exact with any.
func (g *group) bases(ctx context.Context, m *mechanism, load units.Tokens, of ...*measured) error {
	each := max(g.shortest(m), load/64)
	full := max(2, int(load/each))
	counts := []int{full, max(1, full/2), max(1, full/4), max(1, full/8), 1}
	times := make([]costmodel.Passes, len(counts))
	for i, n := range counts {
		var err error
		if times[i], err = g.passes(ctx, m, costmodel.Documents{Tokens: each, Count: n}); err != nil {
			return err
		}
	}
	for _, x := range of {
		if x == nil {
			continue
		}
		whole := float64(times[0].Time(x.recompute))
		up, down, least := 0.0, 0.0, whole
		for i, n := range counts[1:] {
			f, t := float64(n)/float64(full), float64(times[i+1].Time(x.recompute))
			weight := (1 - f) / t
			up += weight * (1 - f*whole/t)
			down += weight * weight
			least = min(least, t)
		}
		x.base = units.Seconds(min(max(0, up/down), mostBase*least))
	}
	return nil
}

// mostBase bounds a base by the time of the emptiest group, so that every
// sequence adds to it.
const mostBase = 0.95

// lengths are the lengths to simulate: evenly spread in their logarithm up to
// the longest sequence that fits.
func (g *group) lengths(m *mechanism) []units.Tokens {
	lo, hi := g.shortest(m), m.most()
	all := []units.Tokens{lo}
	ratio := math.Pow(float64(hi)/float64(lo), 1/float64(samples-1))
	for i := 1; i < samples; i++ {
		s := units.Tokens(math.Round(float64(lo) * math.Pow(ratio, float64(i))))
		if s > all[len(all)-1] {
			all = append(all, s)
		}
	}
	return all
}

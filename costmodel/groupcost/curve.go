package groupcost

import (
	"math"
	"math/bits"

	"github.com/evenkeel/evenkeel/internal/units"
)

// curve is a sequence's time over its length: by the formula
//
//	square s² + linear s + each
//
// or, where there is a table, by that: values at 2^(first + i/steps), straight
// between them, in proportion to s before the first and to s² behind the last,
// where attention rules.
type curve struct {
	square, linear, each float64
	first                int // power of two of the table's first length
	table                []float64
}

// steps is the number of intervals between a length and its double.
const (
	stepBits = 4
	steps    = 1 << stepBits
)

func (c *curve) at(s units.Tokens) units.Seconds {
	n := len(c.table)
	if n == 0 {
		return units.Seconds((c.square*float64(s)+c.linear)*float64(s) + c.each)
	}
	power := bits.Len64(uint64(s)) - 1
	if power < c.first {
		return units.Seconds(c.table[0] * math.Ldexp(float64(s), -c.first))
	}
	// A length is 2^power (1 + x); x falls into one of the steps of its octave.
	x := math.Ldexp(float64(s), -power) - 1
	i := int(x * steps)
	part := x*steps - float64(i)
	i += (power - c.first) * steps
	if i+1 >= n {
		last := lengthAt(c.first, n-1)
		return units.Seconds(c.table[n-1] * (float64(s) / last) * (float64(s) / last))
	}
	return units.Seconds(c.table[i] + part*(c.table[i+1]-c.table[i]))
}

// lengthAt is the length of value i of a table.
func lengthAt(first, i int) float64 {
	return math.Ldexp(1+float64(i%steps)/steps, first+i/steps)
}

// sample is the time of a sequence of a length.
type sample struct{ tokens, seconds float64 }

// tabulate makes a curve through samples of rising lengths: powers between them,
// so that neither a straight line nor a square is bent. It rises, whatever the
// samples do: a planner must not gain by lengthening a sequence.
func tabulate(samples []sample) curve {
	last := samples[len(samples)-1].tokens
	c := curve{first: int(math.Floor(math.Log2(samples[0].tokens)))}
	at, before := 0, 0.0
	for i := 0; ; i++ {
		s := lengthAt(c.first, i)
		for at+2 < len(samples) && samples[at+1].tokens < s {
			at++
		}
		t := samples[0].seconds * s / samples[0].tokens
		if len(samples) > 1 && s > samples[0].tokens {
			t = power(samples[at], samples[at+1], s)
		}
		before = max(t, before*(1+risesBy))
		c.table = append(c.table, before)
		if s >= last {
			return c
		}
	}
}

// risesBy is by what share a value of a table is at least above the one before.
const risesBy = 1e-9

// power is the power law through two samples.
func power(a, b sample, s float64) float64 {
	if b.tokens == a.tokens {
		return b.seconds
	}
	exponent := math.Log(b.seconds/a.seconds) / math.Log(b.tokens/a.tokens)
	return a.seconds * math.Pow(s/a.tokens, max(0, exponent))
}

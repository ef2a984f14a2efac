package results

import (
	"fmt"
	"io"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
)

// numericRow is all comparisons of one op, variant and way of computing it.
type numericRow struct {
	on, op, kernel string
	dtype          op.DType
	worst          profile.Numeric
	n, bad, left   int // comparisons; those that are off; those that could not be made
}

// Numerics prints how far ops are from their references: the worst of each op,
// kernel and precision, and every comparison that is off.
func Numerics(w io.Writer, all []profile.Numeric) error {
	p, notes := &printer{w: w}, &notes{}
	t := newTable(column{title: "on"}, column{title: "op"}, column{title: "kernel"}, column{title: "dtype"},
		column{title: "compared", number: true}, column{title: "worst", number: true}, column{title: "output"}, column{title: "limit", number: true}, column{title: "verdict"})
	for _, r := range numericRows(all) {
		verdict := "right"
		switch {
		case r.bad > 0:
			verdict = fmt.Sprintf("%d WRONG", r.bad)
		case r.left == r.n:
			verdict = "not offered" + notes.mark(r.worst.Error)
		}
		t.row(r.on, r.op, r.kernel, string(r.dtype), fmt.Sprint(r.n-r.left), fmt.Sprintf("%.1e", r.worst.Worst), r.worst.Output, fmt.Sprintf("%.0e", r.worst.Limit), verdict)
	}
	t.render(p)
	p.para("", "relative errors in the 2-norm against float64; a ring is a causal square put together from the blocks of unequal shards, forward and backward")
	for _, n := range all {
		if n.OK() {
			continue
		}
		why := n.Error
		if why == "" {
			why = fmt.Sprintf("%s is off by %.2g, limit %g", n.Output, n.Worst, n.Limit)
		}
		p.para("", fmt.Sprintf("WRONG: %s on %s at %s: %s", n.Op, n.On, n.Raw, why))
	}
	notes.render(p)
	return p.err
}

// numericRows pools comparisons in the order in which they first appear.
func numericRows(all []profile.Numeric) []*numericRow {
	var rows []*numericRow
	byKey := map[string]*numericRow{}
	for _, n := range all {
		v := n.Shape.Variant()
		kind := string(n.Op)
		if n.Cuts != nil {
			kind = "ring of blocks"
		}
		key := fmt.Sprint(n.On, kind, v.Kernel, v.DType)
		r := byKey[key]
		if r == nil {
			r = &numericRow{on: n.On, op: kind, kernel: v.Kernel, dtype: v.DType, worst: n}
			byKey[key] = r
			rows = append(rows, r)
		}
		r.n++
		switch {
		case n.Skipped:
			r.left++
		case !n.OK():
			r.bad++
		}
		if n.Worst > r.worst.Worst {
			r.worst = n
		}
	}
	return rows
}

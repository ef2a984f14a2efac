package costmodel

import (
	"slices"

	"github.com/evenkeel/evenkeel/internal/units"
)

// foldGroups is from how many groups on members that do the same are looked for.
const foldGroups = 64

// folded is a ring in which one member of a group stands for others. Groups of a long ring
// are often of one size, and members at the same two places of all of them do the same at
// the same times: as much work on as fast devices, over links that take as long to the
// members at the same places of the next group. Then either of the two is simulated for
// both, with the same sums.
type folded struct {
	as    []int // by place in a group, the one among those that are kept that stands for it
	of    []int // by seat that is kept, its place among all
	seats []seatRun
	forms []form
	by    []beside
}

// folding is the ring at hand folded, nil where nothing can be. The forms and the slowing
// are those of all seats.
func (r *layerRun) folding() *folded {
	if r.n < r.sim.foldFrom || r.events != nil || !r.inStep() {
		return nil
	}
	x, size := &folded{seats: r.seats, forms: r.forms, by: r.beside}, r.forms[0].to
	var kept []int
	for p := range size {
		at := slices.IndexFunc(kept, func(q int) bool { return r.doSame(p, q) })
		if at < 0 {
			at, kept = len(kept), append(kept, p)
		}
		x.as = append(x.as, at)
	}
	if len(kept) == size {
		return nil
	}
	for g := range r.forms {
		for _, p := range kept {
			x.of = append(x.of, g*size+p)
		}
	}
	return x
}

// inStep says whether every block goes all the way round, each member's to the member at its
// place in the next group.
func (r *layerRun) inStep() bool {
	size := r.forms[0].to
	for g := range r.forms {
		f := &r.forms[g]
		if f.from != g*size || f.to != f.from+size || len(f.out) != size {
			return false
		}
		for p, h := range f.out {
			if h.from != f.from+p || h.to != (f.to+p)%(r.n*size) {
				return false
			}
		}
	}
	return r.sim.goesRound()
}

// doSame says whether the members at two places of every group do the same: they begin
// together, behind their all-to-all.
func (r *layerRun) doSame(p, q int) bool {
	for g := range r.forms {
		f := &r.forms[g]
		if r.sim.seats[f.from+p].work != r.sim.seats[f.from+q].work || f.out[p].price != f.out[q].price {
			return false
		}
	}
	return true
}

// fold leaves the seats that are kept in the run.
func (r *layerRun) fold(x *folded) {
	r.folded, r.seats, r.beside = x, gather(slices.Clone(x.seats), x.of), gather(slices.Clone(x.by), x.of)
	kept, size := len(x.of)/r.n, x.forms[0].to
	r.forms = slices.Clone(x.forms)
	for g := range r.forms {
		f := &r.forms[g]
		f.from, f.to, f.out = g*kept, (g+1)*kept, nil
		for i := f.from; i < f.to; i++ {
			h := x.forms[g].out[x.of[i]-g*size]
			f.out = append(f.out, hop{from: i, to: (i + kept) % len(x.of), kv: h.kv, price: h.price})
		}
	}
	eachRow(r.tables(), func(row []units.Seconds) []units.Seconds { return gather(row, x.of) })
	eachRow(r.arrivals(), func(row []arrival) []arrival { return gather(row, x.of) })
	r.strip.width, r.strip.begins = len(r.seats)+8, -1
}

// gather leaves the elements at some rising places.
func gather[T any](row []T, at []int) []T {
	for i, from := range at {
		row[i] = row[from]
	}
	return row[:len(at)]
}

// tables and arrivals are what the ring keeps by seat.
func (r *layerRun) tables() [][][]units.Seconds {
	return [][][]units.Seconds{r.computed, r.sent, r.gradSent}
}

func (r *layerRun) arrivals() [][][]arrival {
	return [][][]arrival{r.arrived, r.added, r.gradArrived}
}

// eachRow puts something in the place of every row of some tables.
func eachRow[T any](tables [][][]T, of func([]T) []T) {
	for _, t := range tables {
		for i := range t {
			t[i] = of(t[i])
		}
	}
}

// unfold has each of all seats do what the one does that stands for it.
func (r *layerRun) unfold() {
	x := r.folded
	kept, size := len(x.of)/r.n, x.forms[0].to
	for i := range x.seats {
		x.seats[i] = r.seats[i/size*kept+x.as[i%size]]
	}
	r.folded, r.seats, r.forms, r.beside = nil, x.seats, x.forms, x.by
	eachRow(r.tables(), func(row []units.Seconds) []units.Seconds { return row[:len(x.seats)] })
	eachRow(r.arrivals(), func(row []arrival) []arrival { return row[:len(x.seats)] })
	r.strip.width, r.strip.begins = len(r.seats)+8, -1
}

package evenkeel

import (
	"math/rand/v2"
	"testing"

	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// Where some longest block leaves room and freedom for the whole sequence, fits to
// memory find one, be it between two lengths of their grid. Rooms here shrink in a
// line with what passes, as buffers do, so that a fine scan knows.
func TestCapsAreFoundBetweenTheGrid(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 11))
	p := world.Problem(t, "1x4 fast + 1x4 slow", 1<<20, world.Fast(), world.Slow())
	e, err := newEstimator(p)
	if err != nil {
		t.Fatal(err)
	}
	total, block := float64(p.Job.SeqLen), float64(p.Block)
	feasible, between := 0, 0
	for range 2000 {
		d := &draft{}
		var groups []float64
		for range 1 + r.IntN(4) {
			k := groupKind{groups: make([][]int, 1+r.IntN(4)), class: []int{0}}
			for g := range k.groups {
				d.ring = append(d.ring, slot{len(d.kinds), g})
			}
			d.kinds, groups = append(d.kinds, k), append(groups, float64(len(k.groups)))
		}
		n := float64(len(d.ring))
		if n < 2 {
			continue
		}
		full, slope := make([]float64, len(groups)), make([]float64, len(groups))
		for k := range full {
			full[k], slope[k] = total/n*(0.9+r.Float64()), 0.6*r.Float64()
		}
		roomOf := func(k int, passing float64) float64 { return max(0, full[k]-slope[k]*passing) }
		fits := func(passing, slack float64) bool {
			all := 0.0
			for k := range full {
				all += groups[k] * min(passing+block, roomOf(k, passing))
			}
			return all >= total*(1+slack)
		}
		want := false
		for i := range 400 {
			want = want || fits(total/n*(1+(n-1)*float64(i)/400), 0.01)
		}
		got := false
		room := func(k *groupKind, longest, passing float64, _, _ int) float64 {
			for i := range d.kinds {
				if k == &d.kinds[i] {
					return min(longest, roomOf(i, passing))
				}
			}
			return 0
		}
		e.withCaps(d, room, func(caps []float64, passing float64) {
			got = true
			all := 0.0
			for k, c := range caps {
				all += groups[k] * c
				if c > passing+block || c > roomOf(k, passing) {
					t.Errorf("%v rooms, %v: cap %v of kind %d beside %v tokens", full, slope, c, k, passing)
				}
			}
			if all < total {
				t.Errorf("%v rooms, %v: caps %v are too low", full, slope, caps)
			}
		})
		if want {
			feasible++
			if !got {
				t.Errorf("%v groups with %v rooms, %v: no caps found", groups, full, slope)
			}
		}
		onGrid := false
		for i := range widths {
			onGrid = onGrid || fits(passingOf(total, n, i), 0)
		}
		if want && !onGrid {
			between++
		}
	}
	if feasible < 200 || between < 5 {
		t.Errorf("%d feasible, %d of them between the grid's lengths only", feasible, between)
	}
}

package multitask

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
)

// shuffled is the same modules in another order, and what each comes after, too.
func shuffled(r *rand.Rand, t *multitask.Tasks) *multitask.Tasks {
	out := &multitask.Tasks{Name: t.Name, Modules: slices.Clone(t.Modules)}
	r.Shuffle(len(out.Modules), func(i, j int) { out.Modules[i], out.Modules[j] = out.Modules[j], out.Modules[i] })
	for i := range out.Modules {
		after := slices.Clone(out.Modules[i].After)
		r.Shuffle(len(after), func(i, j int) { after[i], after[j] = after[j], after[i] })
		out.Modules[i].After = after
	}
	return out
}

// In which order a file lists modules changes neither the time of ours nor the bound, to the
// last bit: what was searched in the file's order differed by up to 14 %.
func TestTheOrderOfTheFileChangesNothing(t *testing.T) {
	r := rand.New(rand.NewPCG(8, 1))
	same := func(tasks *multitask.Tasks, problem func(*multitask.Tasks) *Problem) {
		t.Helper()
		p := problem(tasks)
		ours := planOf(t, Evenkeel{}, p)
		for range 2 {
			other := shuffled(r, tasks)
			q := problem(other)
			if again := planOf(t, Evenkeel{}, q); again.Time != ours.Time || Bound(p) != Bound(q) {
				t.Errorf("%v of %v, in another order %v of %v", ours.Time, Bound(p), again.Time, Bound(q))
			}
		}
	}
	same(encoders(), func(tasks *multitask.Tasks) *Problem { return byLaws(t, tasks, "1x4 h100_sxm + 1x4 a100_sxm") })
	for range 6 {
		tasks, n := drawn(r, 9), 1+r.IntN(24)
		same(tasks, func(tasks *multitask.Tasks) *Problem { return published(t, tasks, n) })
	}
}

// What lists its modules in order already is searched as it is.
func TestACanonicalProblemIsItself(t *testing.T) {
	p := published(t, anchors(), 4)
	q := p.canon().Problem
	if again := q.canon(); again.Problem != q || p.canon().Problem != q {
		t.Error("the canonical problem of a canonical one is another")
	}
}

package batch_test

import (
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// Every class that laws make has a layout for the model it was made for, with the
// all-to-alls and the shares of the class.
func TestClassesFromLawsHaveLayouts(t *testing.T) {
	for _, cluster := range []string{"2x8 h100_sxm + 1x8 a100_sxm", "2x(2 h100_sxm + 4 a100_sxm)"} {
		lengths := []units.Tokens{40000, 3, 5001}
		costs := lawCosts(t, cluster)
		for i, c := range costs.Classes { // as costs of one length have it
			costs.Classes[i].OwnLast = len(c.Groups) > 1
		}
		p, err := batch.NewProblem(costs, lengths)
		if err != nil {
			t.Fatal(err)
		}
		unequal, last := 0, 0
		for i, c := range p.Classes {
			d := &batch.Document{Lengths: lengths, Classes: []batch.ClassEntry{batch.ClassEntry(c)}}
			d.Micro = []batch.MicroBatch{{Groups: []batch.Group{{Sequences: []int{0, 1, 2}}}}}
			l, docs, err := batch.GroupLayout(d, 0, 0, 32, 8)
			if err != nil {
				t.Errorf("%s: classes[%d] (%s): %v", cluster, i, c.Name, err)
				continue
			}
			if err := l.Validate(45004, c.Degree(), 32); err != nil || len(docs) != 3 {
				t.Errorf("%s: classes[%d] (%s): %v", cluster, i, c.Name, err)
			}
			if len(l.Groups) != len(c.Groups) {
				t.Errorf("%s: %d all-to-alls, the class has %d", c.Name, len(l.Groups), len(c.Groups))
			}
			if c.OwnLast != costs.Classes[i].OwnLast || l.OwnLast != c.OwnLast {
				t.Errorf("%s: own blocks last %t, of the class %t, of its costs %t", c.Name, l.OwnLast, c.OwnLast, costs.Classes[i].OwnLast)
			}
			if l.OwnLast {
				last++
			}
			if tokens := l.Tokens(); c.Shares != nil && slices.Max(tokens) > slices.Min(tokens)+3 {
				unequal++
			}
		}
		if unequal == 0 || last == 0 {
			t.Errorf("%s: of %d classes %d have unequal shares, %d own blocks last", cluster, len(p.Classes), unequal, last)
		}
	}
}

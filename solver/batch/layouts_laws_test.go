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
		p, err := batch.NewProblem(lawCosts(t, cluster), lengths)
		if err != nil {
			t.Fatal(err)
		}
		unequal := 0
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
			if tokens := l.Tokens(); c.Shares != nil && slices.Max(tokens) > slices.Min(tokens)+3 {
				unequal++
			}
		}
		if unequal == 0 {
			t.Errorf("%s: no class of unequal shares among %d", cluster, len(p.Classes))
		}
	}
}

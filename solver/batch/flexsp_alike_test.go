package batch

import (
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
)

// ringOrAllToAll prices groups of two devices: as a ring, which is the slower for short
// sequences, and as an all-to-all, which is for long ones.
type ringOrAllToAll struct{ ring, allToAll int } // classes

func (c ringOrAllToAll) Time(class int, s units.Tokens) units.Seconds {
	n := units.Seconds(s)
	switch class {
	case c.ring:
		return 2*n + 10
	case c.allToAll:
		return n + n*n/100
	}
	return 3 * n
}

// Of a ring and an all-to-all of the same devices, published strategies have the one that trains
// the batch in less time, whichever comes first among the classes, as the baselines do.
func TestPublishedStrategiesHaveTheFasterOfARingAndAnAllToAll(t *testing.T) {
	for _, c := range []ringOrAllToAll{{1, 2}, {2, 1}} {
		for _, x := range []struct {
			lengths []units.Tokens
			want    int
		}{{[]units.Tokens{40, 30, 20}, c.allToAll}, {[]units.Tokens{300, 200, 100}, c.ring}} {
			p := &Problem{Lengths: x.lengths, Fleet: []Pool{{Device: "x", Ranks: alikeRanks(2, 2)}}, Costs: c}
			p.Classes = []Class{{Name: "1", Uses: []int{1}, Cap: 10}, {Name: "2", Uses: []int{2}, Cap: 1000}, {Name: "2", Uses: []int{2}, Cap: 1000}}
			for _, s := range []Strategy{FCP{}, FlexSP{Limit: time.Second, Single: true, Workers: 1}} {
				plan, err := s.Solve(t.Context(), p)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range plan.Micro {
					for _, g := range m.Groups {
						if g.Class != x.want {
							t.Errorf("%v, %+v: %s has class %d", x.lengths, c, s.Name(), g.Class)
						}
					}
				}
			}
		}
	}
}

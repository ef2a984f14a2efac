package batch

import (
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// quadratic prices a sequence as FCP's and FlexSP's models do: (a s² + b s) over
// the speed of the group.
type quadratic struct {
	a, b  float64
	speed []float64 // by class
}

func (q quadratic) Time(class int, s units.Tokens) units.Seconds {
	x := float64(s)
	return units.Seconds((q.a*x*x + q.b*x) / q.speed[class])
}

// twoNodes is eight devices on two nodes, with groups of one, two and four in a
// node and of eight across both.
func twoNodes(lengths ...units.Tokens) *Problem {
	p := &Problem{
		Lengths: lengths,
		Fleet:   []Pool{{Device: "d", Ranks: [][]int{{0, 1, 2, 3}, {4, 5, 6, 7}}}},
		Costs:   quadratic{1e-9, 1e-5, []float64{1, 1.9, 3.6, 6}},
	}
	for _, d := range []int{1, 2, 4, 8} {
		p.Classes = append(p.Classes, Class{Name: "d", Uses: []int{d}, One: d <= 4, Base: 0.1, Cap: units.Tokens(1000 * d)})
	}
	return p
}

// goodPlan is a legal plan of twoNodes(4000, 900, 900, 1800, 7000).
func goodPlan(t *testing.T, p *Problem) *Plan {
	t.Helper()
	plan := &Plan{Micro: []MicroBatch{
		{Groups: []Group{{Class: 2, Sequences: []int{0}}, {Class: 0, Sequences: []int{1}}, {Class: 0, Sequences: []int{2}}, {Class: 1, Sequences: []int{3}}}},
		{Groups: []Group{{Class: 3, Sequences: []int{4}}}},
	}}
	for i := range plan.Micro {
		if err := Place(p, plan.Micro[i].Groups); err != nil {
			t.Fatal(err)
		}
	}
	Evaluate(p, plan)
	return plan
}

func TestCheckAcceptsWhatEvaluateMade(t *testing.T) {
	p := twoNodes(4000, 900, 900, 1800, 7000)
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	if found := Check(p, goodPlan(t, p)); len(found) > 0 {
		t.Fatal(found)
	}
}

// Each break is one thing wrong with a plan, and what Check must say of it.
func TestCheckNoticesEveryBreak(t *testing.T) {
	breaks := map[string]func(*Plan){
		"is trained 0 times":               func(p *Plan) { p.Micro = p.Micro[:1] },
		"is trained 2 times":               func(p *Plan) { p.Micro[0].Groups[1].Sequences = []int{1, 2} },
		"the batch has 5":                  func(p *Plan) { p.Micro[0].Groups[1].Sequences = []int{5} },
		"holds 1000":                       func(p *Plan) { p.Micro[0].Groups[1].Sequences = []int{3} },
		"length_tokens":                    func(p *Plan) { p.Micro[0].Groups[0].Tokens-- },
		"groups[0].time_s":                 func(p *Plan) { p.Micro[0].Groups[0].Time *= 0.99 },
		"micro_batches[1].time_s":          func(p *Plan) { p.Micro[1].Time *= 0.99 },
		"step_s":                           func(p *Plan) { p.Time *= 0.99 },
		"is also in groups[1]":             func(p *Plan) { p.Micro[0].Groups[2].Ranks = p.Micro[0].Groups[1].Ranks },
		"no such rank":                     func(p *Plan) { p.Micro[0].Groups[1].Ranks = []int{8} },
		"devices by pool":                  func(p *Plan) { p.Micro[0].Groups[0].Ranks = p.Micro[0].Groups[0].Ranks[1:] },
		"on 2 nodes":                       func(p *Plan) { p.Micro[0].Groups[0].Ranks = []int{0, 1, 2, 7} },
		"class: 4":                         func(p *Plan) { p.Micro[0].Groups[0].Class = 4 },
		"micro_batches[2]: no groups":      func(p *Plan) { p.Micro = append(p.Micro, MicroBatch{}) },
		"sequences: -1":                    func(p *Plan) { p.Micro[0].Groups[0].Sequences = []int{-1} },
		"sequence 4 (7000 tokens) is trai": func(p *Plan) { p.Micro[1].Groups[0].Sequences = nil },
	}
	for want, damage := range breaks {
		t.Run(want, func(t *testing.T) {
			p := twoNodes(4000, 900, 900, 1800, 7000)
			plan := goodPlan(t, p)
			damage(plan)
			found := Check(p, plan)
			if !slices.ContainsFunc(found, func(err error) bool { return strings.Contains(err.Error(), want) }) {
				t.Fatalf("want %q among %v", want, found)
			}
		})
	}
}

func TestPlaceKeepsGroupsInNodes(t *testing.T) {
	p := twoNodes(1)
	groups := []Group{{Class: 1}, {Class: 2}, {Class: 1}}
	if err := Place(p, groups); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(groups[1].Ranks, []int{0, 1, 2, 3}) || !slices.Equal(groups[0].Ranks, []int{4, 5}) || !slices.Equal(groups[2].Ranks, []int{6, 7}) {
		t.Fatalf("groups on ranks %v", groups)
	}
	if err := Place(p, []Group{{Class: 2}, {Class: 1}, {Class: 1}, {Class: 0}}); err == nil || !strings.Contains(err.Error(), "no room left") {
		t.Fatalf("nine devices of eight: %v", err)
	}
}

func TestAProblemNamesWhatIsWrong(t *testing.T) {
	breaks := map[string]func(*Problem){
		"lengths_tokens: 0 sequences":             func(p *Problem) { p.Lengths = nil },
		"lengths_tokens[1]: -3":                   func(p *Problem) { p.Lengths[1] = -3 },
		"fleet: no devices":                       func(p *Problem) { p.Fleet = nil },
		"fleet[0] (d): rank 4":                    func(p *Problem) { p.Fleet[0].Ranks[0][0] = 4 },
		"classes: none":                           func(p *Problem) { p.Classes = nil },
		"classes[3] (d).devices[0]: 9":            func(p *Problem) { p.Classes[3].Uses = []int{9} },
		"classes[0] (d).cap_tokens: 0":            func(p *Problem) { p.Classes[0].Cap = 0 },
		"classes[0] (d).base_s: -1":               func(p *Problem) { p.Classes[0].Base = -1 },
		"classes[0] (d).devices: 2 numbers":       func(p *Problem) { p.Classes[0].Uses = []int{1, 1} },
		"classes[3] (d).one_node: 8 devices of d": func(p *Problem) { p.Classes[3].One = true },
		"costs: missing":                          func(p *Problem) { p.Costs = nil },
		"micro_base_s, fixed_s, hidden_s, behind_s: -1 s, 0 s, 0 s, 0 s": func(p *Problem) { p.MicroBase = -1 },
		"behind_s: 0 s, 0 s, 0 s, -1 s":                                  func(p *Problem) { p.Behind = -1 },
		"classes[0] (d).shares: 2 numbers:":                              func(p *Problem) { p.Classes[0].Shares = []float64{1, 1} },
	}
	for want, damage := range breaks {
		t.Run(want, func(t *testing.T) {
			p := twoNodes(10, 20)
			damage(p)
			if err := p.Validate(); err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("want %q, got %v", want, err)
			}
		})
	}
	var long *TooLongError
	if err := twoNodes(10, 8001).Feasible(); err == nil || !strings.Contains(err.Error(), "sequence 1: 8001 tokens") {
		t.Fatalf("%v, not %T", err, long)
	}
}

package batch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// fixed is a strategy that has its plan, or its error, ready.
type fixed struct {
	name     string
	baseline bool
	plan     *Plan
	err      error
}

func (f fixed) Name() string   { return f.name }
func (f fixed) Claims() Claims { return Claims{Baseline: f.baseline, Doc: "what " + f.name + " does"} }

func (f fixed) Solve(context.Context, *Problem) (*Plan, error) {
	return f.plan, f.err
}

func ticks() func() units.Seconds {
	t := units.Seconds(0)
	return func() units.Seconds { t++; return t }
}

// choose runs strategies of which one is the slow plan, one is wrong and one fails.
func choose(t *testing.T) (*Problem, *Document) {
	t.Helper()
	p := twoNodes(4000, 900, 900, 1800, 7000)
	good, same, wrong := goodPlan(t, p), goodPlan(t, p), goodPlan(t, p)
	slow := &Plan{}
	for k, s := range p.Lengths {
		class := 3
		if s <= 1000 {
			class = 0
		}
		slow.Micro = append(slow.Micro, MicroBatch{Groups: []Group{{Class: class, Sequences: []int{k}}}})
		if err := Place(p, slow.Micro[k].Groups); err != nil {
			t.Fatal(err)
		}
	}
	Evaluate(p, slow)
	wrong.Micro[0].Groups[0].Sequences = nil
	var attempts []Attempt
	clock := ticks()
	for _, s := range []Strategy{
		fixed{"slow", true, slow, nil},
		fixed{"wrong", true, wrong, nil},
		fixed{"late", false, nil, context.DeadlineExceeded},
		fixed{"illegal", false, nil, &IllegalError{Why: "not here"}},
		fixed{"good", false, good, nil},
		fixed{"ours", false, same, nil},
	} {
		attempts = append(attempts, Try(t.Context(), s, p, clock))
	}
	d, err := Choose(p, good.Time/2, attempts, "")
	if err != nil {
		t.Fatal(err)
	}
	d.Schema, d.Tool, d.Created = Schema, "test", "2026-01-01T00:00:00Z"
	return p, d
}

func TestChooseTakesTheFastestAndTheLastOfEquals(t *testing.T) {
	_, d := choose(t)
	want := []Verdict{Slower, NotLegal, Late, NotLegal, Equal, Chosen}
	for i, c := range d.Compared {
		if c.Verdict != want[i] || c.Took != 1 {
			t.Errorf("%s: %s after %v, want %s", c.Strategy, c.Verdict, c.Took, want[i])
		}
	}
	if d.Strategy != "ours" || d.Gap != 1 || d.Compared[5].Speedup <= 1 || d.Compared[0].Speedup != 1 {
		t.Errorf("%+v", d.Compared)
	}
	if !strings.Contains(d.Compared[1].Why, "breaks the rules") || !strings.Contains(d.Compared[3].Why, "not here") {
		t.Errorf("%q, %q", d.Compared[1].Why, d.Compared[3].Why)
	}
}

func TestChooseNamesTheSequenceThatNothingHolds(t *testing.T) {
	p := twoNodes(9000)
	_, err := Choose(p, 0, []Attempt{
		Try(t.Context(), Static{Layout{Degree: 2}}, p, ticks()),
		Try(t.Context(), fixed{"a", true, nil, &IllegalError{Why: "not here"}}, p, ticks()), Try(t.Context(), fixed{"b", false, nil, p.Feasible()}, p, ticks()),
	}, "")
	var long *TooLongError
	if !errors.As(err, &long) || long.Tokens != 9000 || long.Most != 8000 || !strings.Contains(err.Error(), "the largest group of this fleet holds 8000;") {
		t.Fatal(err)
	}
}

// A baseline's groups may hold less than the largest of the fleet, and it says so of them.
func TestABaselineSaysThatItsOwnGroupsHoldLess(t *testing.T) {
	p := twoNodes(7000, 900) // which two devices do not hold, and eight do
	a := Try(t.Context(), Static{Layout{Degree: 2}}, p, ticks())
	if a.Plan != nil || a.Err == nil || strings.Contains(a.Err.Error(), "fleet") || !strings.Contains(a.Err.Error(), "sequence 0: 7000 tokens: of groups of one size, each for any sequence, the largest holds ") {
		t.Errorf("%+v: %v", a.Plan, a.Err)
	}
	long := &TooLongError{}
	if !errors.As(a.Err, &long) || long.Most >= 7000 || p.Feasible() != nil {
		t.Errorf("%+v, of the fleet: %v", long, p.Feasible())
	}
}

func TestADocumentComesBack(t *testing.T) {
	_, d := choose(t)
	data, err := doc.Encode(d)
	if err != nil {
		t.Fatal(err)
	}
	var back Document
	if err := doc.Decode("x", data, &back); err != nil {
		t.Fatal(err)
	}
	again, err := doc.Encode(&back)
	if err != nil || string(again) != string(data) {
		t.Fatalf("%v\n%s\n%s", err, data, again)
	}
}

func TestADocumentNamesWhatIsWrong(t *testing.T) {
	breaks := map[string]func(*Document){
		"is trained 0 times":             func(d *Document) { d.Micro = d.Micro[:1] },
		"lower_bound_s":                  func(d *Document) { d.Bound = 2 * d.Time },
		"devices[0]: 8: the fleet has 7": func(d *Document) { d.Fleet[0].Ranks[1] = d.Fleet[0].Ranks[1][:3] },
		"class: 7: the problem":          func(d *Document) { d.Micro[0].Groups[0].Class = 7 },
		"lengths_tokens[0]: 0":           func(d *Document) { d.Lengths[0] = 0 },
		"lengths_rows: 1: want one for":  func(d *Document) { d.Rows = []int{4} },
		"lengths_rows[1]: 4: want risin": func(d *Document) { d.Rows = slices.Repeat([]int{4}, len(d.Lengths)) },
		"lengths_rows[0]: -1: want risi": func(d *Document) { d.Rows = slices.Repeat([]int{-1}, len(d.Lengths)) },
		"of d holds 1":                   func(d *Document) { d.Classes[0].Cap = 1 },
		"devices: [-1]: no devices":      func(d *Document) { d.Classes[0].Uses = []int{-1} },
		"own_last: true, but the group is one all-to-all": func(d *Document) {
			d.Classes[0].OwnLast, d.Classes[0].Groups = true, []costmodel.Group{{{Rank: 0, QHeads: 4}, {Rank: 1, QHeads: 4}}}
		},
		"schedule: more than own_last": func(d *Document) { d.Classes[0].TwoBatch = true },

		"classes[0] (d).head_ranks: -1: want 0 to the group's 4 devices": func(d *Document) { d.Classes[0].Heads = -1 },
		"head_ranks: 5: want 0 to the group's 4 devices":                 func(d *Document) { d.Classes[0].Heads = 5 },
		"head_ranks: 3: want a divisor":                                  func(d *Document) { d.Classes[0].Heads = 3 },
		"classes[0] (d).q_heads[0]: -4: want 0 or more":                  func(d *Document) { d.Classes[0].Heads, d.Classes[0].QHeads = 4, []int{-4} },
		"q_heads: 2 numbers: the fleet has 1 pools":                      func(d *Document) { d.Classes[0].QHeads = []int{4, 4} },
		"classes[2] (d).groups[0]: 8 q_heads in all, and classes[0] (d).groups[0] has 16": func(d *Document) {
			d.Classes[0].Heads, d.Classes[0].QHeads, d.Classes[2].QHeads = 4, []int{4}, []int{8}
		},
		"classes[0] (d).groups: none: want the all-to-alls": func(d *Document) { d.Classes[0].Groups = []costmodel.Group{} },
		"groups[0][1].rank: 7: want each place from 0 to 3": func(d *Document) { ofHeads(d)[1][0].Rank = 7; ofHeads(d)[0][1].Rank = 7 },
		"groups[0][0].rank: -1: want each place from 0":     func(d *Document) { ofHeads(d)[0][0].Rank = -1 },
		"groups[0][0].q_heads: -1: want 0 or more":          func(d *Document) { ofHeads(d)[0][0].QHeads = -1 },
		"groups[1]: 25 q_heads in all, and":                 func(d *Document) { ofHeads(d)[1][0].QHeads = 17 },
		"groups: place 3 is in none of them":                func(d *Document) { g := ofHeads(d); g[1] = g[1][:1]; g[1][0].QHeads = 16 },

		"micro_batches[0].groups[0].time_s: 0 s: want a time above 0 of 1 sequence": func(d *Document) {
			for j := range d.Micro[0].Groups {
				d.Micro[0].Groups[j].Time = 0
			}
		},
		"want a time above 0 of 1 sequence, and no less than base_s, 100 ms": func(d *Document) { d.Micro[0].Groups[1].Time = 0.05 },
		"considered[0].micro_batches: -1":                                    func(d *Document) { d.Compared[0].Micro = -1 },
		"considered[5].micro_batches: 3: the plan has 2":                     func(d *Document) { d.Compared[5].Micro = 3 },
		"considered[1].nodes: -1: the fleet has 2":                           func(d *Document) { d.Compared[1].Nodes = -1 },
		"considered[0].nodes: 3: the fleet has 2":                            func(d *Document) { d.Compared[0].Nodes = 3 },
		"considered[3].planning_s: -1 s: want a time":                        func(d *Document) { d.Compared[3].Took = -1 },
		"considered[2].strategy: empty":                                      func(d *Document) { d.Compared[2].Strategy = "" },

		"micro_batches[0].groups[0].time_s: -1 s: want": func(d *Document) { d.Micro[0].Groups[0].Time = -1 },
		"micro_batches[0].groups[0].time_s: 16.7 min":   func(d *Document) { d.Micro[0].Groups[0].Time = 1000 },
		"micro_batches[0].time_s: -1 s: want":           func(d *Document) { d.Micro[0].Time = -1 },
		"step_s: 0 s: its micro-batches take":           func(d *Document) { d.Time, d.Bound = 0, 0 },
		"considered[0].interval: 2 s to 1 s about": func(d *Document) {
			d.Compared[0].Interval = costmodel.Estimate{Lo: 2, Mid: d.Compared[0].Time, Hi: 1}
		},
		"considered[0].interval.mid_s: 60 s": func(d *Document) { d.Compared[0].Interval = costmodel.Estimate{Lo: 60, Mid: 60, Hi: 60} },
		"considered[0].gain_error_s: -1 s":   func(d *Document) { d.Compared[0].GainError = -1 },

		"left_out_ranks[1]: 0: want ranks that rise":                   func(d *Document) { d.LeftOut = []int{3, 0} },
		"left_out_ranks: [99]: the fleet has 0 of them":                func(d *Document) { d.LeftOut = []int{99} },
		"left_out_ranks: 1 of the 4 ranks of a node: want all or none": func(d *Document) { d.LeftOut = []int{0} },
		"ranks: 0: is left out":                                        func(d *Document) { d.LeftOut = []int{0, 1, 2, 3} },
		"left_out_ranks: they leave 2 nodes: the chosen plan is of 1":  func(d *Document) { d.Compared[5].Nodes = 1 },
		"left_out_ranks: they leave 2 nodes: the chosen plan is of 0":  func(d *Document) { nodeMore(d, 0) },

		"gap: 55: step_s over lower_bound_s - 1 is 1":                    func(d *Document) { d.Gap = 55 },
		"zero: \"zero7\": want zero0":                                    func(d *Document) { d.Zero = "zero7" },
		"considered[5].strategy: \"ours\": is chosen":                    func(d *Document) { d.Strategy = "other" },
		"considered: none of them is chosen":                             func(d *Document) { d.Compared = d.Compared[:5] },
		"considered[5].verdict: considered[4] is chosen already":         func(d *Document) { d.Compared[4].Verdict, d.Compared[4].Strategy = Chosen, "ours" },
		"considered[3].verdict: \"fast\": want chosen, equal, ~, slower": func(d *Document) { d.Compared[3].Verdict = "fast" },
		"considered[0].step_s: 1 ns: less than lower_bound_s, ":          func(d *Document) { d.Compared[0].Time, d.Compared[0].Gap = 1e-9, 0 },
		"less than the plan takes that is chosen":                        func(d *Document) { d.Compared[0].Time, d.Compared[0].Gap = d.Bound, 0 },
		"considered[0].verdict: \"equal\": takes":                        func(d *Document) { d.Compared[0].Verdict = Equal },
		"considered[0].gap: 7: step_s over":                              func(d *Document) { d.Compared[0].Gap = 7 },
		"considered[4].speedup_vs_baseline: 100: the times give":         func(d *Document) { d.Compared[4].Speedup = 100 },
	}
	for want, damage := range breaks {
		_, d := choose(t)
		damage(d)
		if err := d.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// ofHeads has the first class state its all-to-alls, two of two devices that share 16 heads.
func ofHeads(d *Document) []costmodel.Group {
	if d.Classes[0].Groups == nil {
		d.Classes[0].Groups = []costmodel.Group{{{Rank: 0, QHeads: 8}, {Rank: 1, QHeads: 8}}, {{Rank: 2, QHeads: 8}, {Rank: 3, QHeads: 8}}}
	}
	return d.Classes[0].Groups
}

// nodeMore adds a node to the fleet that the plan, stated to be of so many nodes, leaves out.
func nodeMore(d *Document, nodes int) {
	d.Fleet[0].Ranks = append(slices.Clone(d.Fleet[0].Ranks[:1]), []int{50, 51}, d.Fleet[0].Ranks[1])
	d.LeftOut, d.Compared[5].Nodes = []int{50, 51}, nodes
}

// What a document states of heads as solve writes it is sound.
func TestADocumentMayStateHeads(t *testing.T) {
	_, d := choose(t)
	ofHeads(d)
	d.Classes[1].Heads, d.Classes[1].QHeads = 1, []int{16}
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
}

func TestADocumentMayLeaveNodesOut(t *testing.T) {
	_, d := choose(t)
	nodeMore(d, 2)
	if err := d.Validate(); err != nil {
		t.Error(err)
	}
}

// FuzzDocument: a document that is taken can be written and read again.
func FuzzDocument(f *testing.F) {
	f.Add([]byte(`{"schema":"evenkeel.batchplan/v1","tool":"t","created":"2026-01-01T00:00:00Z","inputs":[],"costs":"c","lengths_tokens":[5],"fleet":[{"device":"d","ranks":[[0]]}],"classes":[{"name":"1","devices":[1],"base_s":0.1,"cap_tokens":9}],"strategy":"s","micro_batches":[{"groups":[{"class":0,"sequences":[0],"ranks":[0],"length_tokens":5,"time_s":1}],"time_s":1}],"step_s":1,"lower_bound_s":1,"gap":0,"considered":[],"notes":[]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var d Document
		if doc.Decode("x", data, &d) != nil {
			return
		}
		if _, err := doc.Encode(&d); err != nil {
			t.Fatal(err)
		}
	})
}

// What a plan says of its model goes with what the model has: published costs have no
// exchange, those of laws one among all devices, which may hide.
func TestNotModelledSaysWhoTakesPartInTheExchange(t *testing.T) {
	all := Problem{Fixed: 1, Behind: 1, Fleet: []Pool{{Ranks: [][]int{{0}, {1}, {2}}}}}
	for of, want := range map[int]bool{1: true, 2: false} { // a device by itself exchanges nothing
		notes := strings.Join(NotModelled(&all, []int{1, 2}[:of]), "\n")
		if strings.Contains(notes, "behind the backward pass") != want || !strings.Contains(notes, "left out keep nothing") {
			t.Errorf("%d of 3 left out: %s", of, notes)
		}
	}
	for _, c := range []struct {
		p    Problem
		want []string
	}{
		{Problem{}, nil},
		{Problem{Fixed: 1}, []string{"whether or not it trains"}},
		{Problem{Fixed: 1, Behind: 1}, []string{"whether or not it trains", "behind the backward pass of the last micro-batch"}},
		{Problem{MicroBase: 1, Hidden: 1}, []string{"whether or not it trains", "gradients are taken to travel behind every micro-batch's backward pass, 60 %"}},
		{Problem{MicroBase: 1, Hidden: 1, BothPasses: true}, []string{"whether or not it trains", "parameters and gradients are taken to travel behind both passes of every micro-batch, 90 %"}},
	} {
		notes := NotModelled(&c.p, nil)[len(NotModelled(&Problem{}, nil)):]
		if len(notes) != len(c.want) {
			t.Errorf("%+v: %q", c.p, notes)
			continue
		}
		for i, want := range c.want {
			if !strings.Contains(notes[i], want) {
				t.Errorf("%+v: %q, want %q", c.p, notes[i], want)
			}
		}
	}
}

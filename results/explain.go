package results

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// Explain prints the account of a plan as a tree: the step's time by stage and part, the
// time of every rank, the memory of every rank by component, what crosses every
// link class, the bound, and what the alternatives would take.
func Explain(w io.Writer, d *solver.Plan) error {
	p, n := &printer{w: w}, &notes{}
	planHead(p, d)
	for _, root := range []branch{timeBranch(d), ranksBranch(d), memoryBranch(d), trafficBranch(d), alternatives(d)} {
		if len(root.below) > 0 {
			p.printf("\n")
			root.render(p, "", "")
		}
	}
	n.add(d.Warnings...)
	n.add(d.Step.Warnings...)
	n.render(p)
	leftOut(p, d.Notes)
	return p.err
}

// branch is a line of a tree with what it is made of.
type branch struct {
	text  string
	below []branch
}

// render draws a branch; the prefixes are those of its own line and of the
// lines below it.
func (b branch) render(p *printer, own, under string) {
	// Long text hangs under its own beginning, beside the tree's lines.
	for i, line := range wrap(b.text, Width-len(own)) {
		if i > 0 {
			own = under + "  "
		}
		p.printf("%s%s\n", own, line)
	}
	for i, c := range b.below {
		if i == len(b.below)-1 {
			c.render(p, under+"`-- ", under+"    ")
		} else {
			c.render(p, under+"|-- ", under+"|   ")
		}
	}
}

// timeBranch takes the step apart by stage and part, along the rank that idles
// least: it is the one that the others wait for.
func timeBranch(d *solver.Plan) branch {
	t := d.Step.Time
	root := branch{text: fmt.Sprintf("step time %s (%s), along %s", estimate(t), t.Source, criticalRank(d))}
	root.below = append(root.below, branch{text: passes(d)})
	for _, stage := range stages() {
		var below []branch
		var sum units.Seconds
		for _, part := range d.Step.Parts {
			if stageOf(part.Name) != stage || negligible(part, t) {
				continue
			}
			sum += part.Time.Mid
			below = append(below, branch{text: fmt.Sprintf("%s: %s, %s of the step (%s)", part.Name, estimate(part.Time), shareOf(part.Time.Mid, t.Mid), part.Time.Source)})
		}
		switch len(below) {
		case 0:
		case 1:
			root.below = append(root.below, below...)
		default:
			root.below = append(root.below, branch{fmt.Sprintf("%s: %s, %s of the step", stage, seconds(sum), shareOf(sum, t.Mid)), below})
		}
	}
	if d.Bound > 0 {
		root.below = append(root.below, branch{text: fmt.Sprintf("lower bound: %s by the same laws; this plan is %s above it", seconds(d.Bound), units.Percent(d.Gap))})
	}
	return root
}

// passes says how often the layers are gone through, and what moves meanwhile: of that only
// what nothing hides is in the account.
func passes(d *solver.Plan) string {
	often := plural(max(1, d.Job.Accumulate), "micro-batch") + " through " + plural(d.Job.Model.Layers, "layer")
	return often + ownLast(d) + keptTail(d) + headChunks(d) + twoBatch(d)
}

func shareOf(part, whole units.Seconds) string {
	if !(whole > 0) {
		return none
	}
	return units.Percent(float64(part / whole))
}

// stages are the groups of parts in the order of a step.
func stages() []string {
	return []string{"forward pass", "backward pass", "communication that nothing hides", "waiting for other ranks", "end of the step", "other"}
}

// stageOf is the stage that a part of the simulator's account belongs to.
func stageOf(part string) string {
	switch {
	case strings.HasSuffix(part, "forward") || part == "loss":
		return "forward pass"
	case strings.HasSuffix(part, "backward") || part == "recompute":
		return "backward pass"
	case strings.HasSuffix(part, "(exposed communication)"):
		return "communication that nothing hides"
	case part == "idle":
		return "waiting for other ranks"
	case part == "gradient sync" || part == "optimizer":
		return "end of the step"
	}
	return "other"
}

// criticalRank names the rank with work that idles least.
func criticalRank(d *solver.Plan) string {
	best := -1
	for r, s := range d.Step.Ranks {
		if s.Busy > 0 && (best < 0 || s.Idle < d.Step.Ranks[best].Idle) {
			best = r
		}
	}
	if best < 0 || len(d.Ranks) != len(d.Step.Ranks) {
		return "the rank that idles least"
	}
	return fmt.Sprintf("rank %d (%s on %s), which idles least", best, d.Ranks[best].Device, d.Ranks[best].Node)
}

// alike is ranks of one device type whose branches say the same.
type alike struct {
	device string
	ranks  []int
	nodes  []string
	branch branch
}

// eachRank makes a branch a rank; ranks on like devices whose branches say the
// same share one, or a big cluster's tree would never end.
func eachRank(d *solver.Plan, describe func(costmodel.RankStep) branch) []branch {
	var all []alike
	known := map[string]int{}
	for r := range min(len(d.Ranks), len(d.Step.Ranks)) {
		k, b := d.Ranks[r], describe(d.Step.Ranks[r])
		key := k.Device + "\n" + b.whole()
		i, ok := known[key]
		if !ok {
			i = len(all)
			known[key] = i
			all = append(all, alike{device: k.Device, branch: b})
		}
		all[i].ranks = append(all[i].ranks, r)
		if !slices.Contains(all[i].nodes, k.Node) {
			all[i].nodes = append(all[i].nodes, k.Node)
		}
	}
	var branches []branch
	for i, a := range all {
		if i == mostRows {
			return append(branches, branch{text: fmt.Sprintf("and %s more like these; the file that solve writes with -o has every rank", plural(len(all)-i, "line"))})
		}
		what := "rank"
		if len(a.ranks) > 1 {
			what = "ranks"
		}
		branches = append(branches, branch{fmt.Sprintf("%s %s (%s on %s): %s", what, inShort(a.ranks), a.device, someNodes(a.nodes), a.branch.text), a.branch.below})
	}
	return branches
}

// whole is all text of a branch and of those below it.
func (b branch) whole() string {
	text := b.text
	for _, c := range b.below {
		text += "\n" + c.whole()
	}
	return text
}

func ranksBranch(d *solver.Plan) branch {
	return branch{"time of every rank", eachRank(d, func(s costmodel.RankStep) branch {
		idle := s.Idle
		if idle < 1e-9*s.Busy { // what rounding leaves of none
			idle = 0
		}
		return branch{text: fmt.Sprintf("%s; computing %s, waiting for bytes %s, idle %s", inTokens(s.Tokens), seconds(s.Busy), seconds(s.Exposed), seconds(idle))}
	})}
}

// slope says what activations rest on where that is a measurement.
func slope(m costmodel.Memory) string {
	if m.LayerToken == 0 {
		return ""
	}
	return fmt.Sprintf(" (measured: %d bytes a token and layer)", int64(m.LayerToken))
}

func memoryBranch(d *solver.Plan) branch {
	title := fmt.Sprintf("memory of every rank at its peak, by formula (assumed) unless said; at most %s of the capacity may be used", units.Percent(costmodel.Usable))
	return branch{title, eachRank(d, func(s costmodel.RankStep) branch {
		m := s.Memory
		return branch{peak(m), []branch{
			{text: "parameters, gradients, optimizer: " + m.States.String()},
			{text: "activations kept for the backward pass: " + m.Activations.String() + slope(m)},
			{text: "on top while the last layer goes backward: " + m.Transient.String()},
			{text: "logits of one loss chunk: " + m.Logits.String()},
		}}
	})}
}

func trafficBranch(d *solver.Plan) branch {
	root := branch{text: "bytes a step, all ranks together"}
	for _, x := range d.Step.Traffic {
		root.below = append(root.below, branch{text: fmt.Sprintf("%s: %s", x.Link, x.Bytes)})
	}
	return root
}

func alternatives(d *solver.Plan) branch {
	root := branch{text: "what was considered, today's baselines first"}
	base := d.Baseline()
	for _, c := range baselinesFirst(d.Compared) {
		if c.Verdict == solver.NotLegal {
			root.below = append(root.below, branch{text: fmt.Sprintf("%s (%s): %s", c.Strategy, c.Verdict, c.Why)})
			continue
		}
		b := branch{text: fmt.Sprintf("%s (%s): %s (%s), memory peak %s", c.Strategy, became(d, c), estimate(c.Time), c.Time.Source, peak(candidateMemory(d, c)))}
		if gain := against(c, base); gain != none && c.Strategy != base.Strategy {
			b.text += ", " + gain + " (" + speedup(c) + ") against " + base.Strategy
		}
		if c.Why != "" {
			b.below = append(b.below, branch{text: c.Why})
		}
		root.below = append(root.below, b)
	}
	return root
}

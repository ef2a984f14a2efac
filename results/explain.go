package results

import (
	"fmt"
	"io"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// Explain prints the account of a plan as a tree: the step's time by part, the
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

func timeBranch(d *solver.Plan) branch {
	t := d.Step.Time
	root := branch{text: fmt.Sprintf("step time %s (%s), along the rank that idles least", estimate(t), t.Source)}
	for _, part := range d.Step.Parts {
		share := none
		if t.Mid > 0 {
			share = units.Percent(float64(part.Time.Mid / t.Mid))
		}
		root.below = append(root.below, branch{text: fmt.Sprintf("%s: %s, %s of the step (%s)", part.Name, estimate(part.Time), share, part.Time.Source)})
	}
	if d.Bound > 0 {
		root.below = append(root.below, branch{text: fmt.Sprintf("lower bound: %s by the same laws; this plan is %s above it", seconds(d.Bound), units.Percent(d.Gap))})
	}
	return root
}

// eachRank makes a branch a rank; neighbours on like devices whose branches say
// the same share one, or a big cluster's tree would never end.
func eachRank(d *solver.Plan, describe func(costmodel.RankStep) branch) []branch {
	var all []branch
	var first int
	var before branch
	for r := range min(len(d.Ranks), len(d.Step.Ranks)) {
		where := fmt.Sprintf(" (%s on %s): ", d.Ranks[r].Device, d.Ranks[r].Node)
		b := describe(d.Step.Ranks[r])
		b.text = where + b.text
		if len(all) > 0 && before.equal(b) {
			all[len(all)-1].text = fmt.Sprintf("ranks %d-%d%s", first, r, b.text)
			continue
		}
		first, before = r, b
		all = append(all, branch{fmt.Sprintf("rank %d%s", r, b.text), b.below})
	}
	return all
}

func (b branch) equal(o branch) bool {
	return b.text == o.text && slices.EqualFunc(b.below, o.below, branch.equal)
}

func ranksBranch(d *solver.Plan) branch {
	return branch{"time of every rank", eachRank(d, func(s costmodel.RankStep) branch {
		return branch{text: fmt.Sprintf("%s tokens; computing %s, waiting for bytes %s, idle %s", s.Tokens, seconds(s.Busy), seconds(s.Exposed), seconds(s.Idle))}
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
			{text: "buffers alive at once: " + m.Transient.String()},
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
		b := branch{text: fmt.Sprintf("%s (%s): %s (%s), memory peak %s", c.Strategy, c.Verdict, estimate(c.Time), c.Time.Source, peak(candidateMemory(d, c)))}
		if gain := against(c, base); gain != none && c.Strategy != base.Strategy {
			b.text += ", " + gain + " against " + base.Strategy
		}
		if c.Why != "" {
			b.below = append(b.below, branch{text: c.Why})
		}
		root.below = append(root.below, b)
	}
	return root
}

package results

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// BatchPlan prints a plan of a batch of unequal sequences: what was considered, the
// micro-batches with their groups, and how busy each device is in them.
func BatchPlan(w io.Writer, d *batch.Document) error {
	p := &printer{w: w}
	batchHead(p, d)
	batchConsidered(p, d)
	batchReasons(p, d)
	batchDoubt(p, d)
	batchMicro(p, d)
	batchPicture(p, d)
	for _, n := range d.Notes {
		p.para("note: ", n)
	}
	return p.err
}

// batchHead says what was planned and how good that is: of the plans that its bound is of,
// which have groups of the problem's classes at the prices of these. A layout that solve
// finds for one sequence may take less: it is simulated whole, and need be of no class.
func batchHead(p *printer, d *batch.Document) {
	var total, longest units.Tokens
	for _, s := range d.Lengths {
		total += s
		longest = max(longest, s)
	}
	var fleet []string
	for _, f := range d.Fleet {
		fleet = append(fleet, fmt.Sprintf("%d %s", batch.Pool(f).Count(), f.Device))
	}
	p.para("", fmt.Sprintf("%s plan of %s (%s tokens, the longest %s) on %s%s", stampOf(d.Simulated, chosenOf(d)), plural(len(d.Lengths), "sequence"), total, longest, strings.Join(fleet, " + "), batchLeftOut(d)))
	p.para("", "prices: "+d.Costs)
	planned(p, d.Tool, d.Created, "prices")
	for _, in := range d.Inputs {
		p.para("", "from "+input(in))
	}
	p.para("", fmt.Sprintf("step %s in %s, by %s; no plan of such groups takes less than %v at these prices, so this one is at most %s above the best of them", stepOf(d.Time, chosenOf(d)), microBatches(len(d.Micro)), d.Strategy, d.Bound, units.Percent(d.Gap)))
}

// batchLeftOut says which ranks the plan leaves out, "" where none.
func batchLeftOut(d *batch.Document) string {
	c := d.Chosen()
	if len(d.LeftOut) == 0 || c == nil {
		return ""
	}
	taken := plural(c.Nodes, "node")
	if len(d.Fleet) > 1 { // a node may have several types, of which some are left out
		var of []string
		for _, f := range d.Fleet {
			n := 0
			for _, r := range slices.Concat(f.Ranks...) {
				if !slices.Contains(d.LeftOut, r) {
					n++
				}
			}
			if n > 0 {
				of = append(of, fmt.Sprintf("%d %s", n, f.Device))
			}
		}
		taken = strings.Join(of, " + ") + " in " + taken
	}
	return fmt.Sprintf(", of which it takes %s alone: %s left out", taken, are(d.LeftOut))
}

// are names ranks that rise, neighbours as a range: "ranks 8 to 15 are".
func are(ranks []int) string {
	var runs []string
	for i := 0; i < len(ranks); {
		k := i
		for k+1 < len(ranks) && ranks[k+1] == ranks[k]+1 {
			k++
		}
		if run := fmt.Sprint(ranks[i]); k > i {
			runs = append(runs, fmt.Sprintf("%s to %d", run, ranks[k]))
		} else {
			runs = append(runs, run)
		}
		i = k + 1
	}
	if len(ranks) == 1 {
		return "rank " + runs[0] + " is"
	}
	return "ranks " + strings.Join(runs, ", ") + " are"
}

// chosenOf is the chosen candidate of a batch, as those of other plans are; nil if there is none.
func chosenOf(d *batch.Document) *recommend.Candidate {
	if c := d.Chosen(); c != nil {
		return &c.Candidate
	}
	return nil
}

// batchReasons explains the choice by what was faster: the plans whose gain is in doubt.
func batchReasons(p *printer, d *batch.Document) {
	if c := d.Chosen(); c != nil {
		whyChosen(p, d.Taken, c.Strategy, c.Why)
	}
	for _, c := range d.Compared {
		if c.Verdict == batch.Tie {
			whyNot(p, c.Strategy, string(c.Verdict), c.Why)
		}
	}
}

// batchDoubt says how sure a gain is, and what would settle most of the doubt.
func batchDoubt(p *printer, d *batch.Document) {
	c, base := d.Chosen(), d.Baseline()
	if c == nil || base == nil || c.Doubt == "" {
		return
	}
	p.para("", fmt.Sprintf("against %s, %s: most of what that may be wrong by is %s", base.Strategy, candidateAgainst(c.Candidate, &base.Candidate), c.Doubt))
}

func microBatches(n int) string {
	if n == 1 {
		return "1 micro-batch"
	}
	return fmt.Sprintf("%d micro-batches", n)
}

func batchConsidered(p *printer, d *batch.Document) {
	c := contest{base: candidateOf(d.Baseline()), taken: d.Taken, time: d.Time}
	micro, nodes := own{title: "micro-\nbatches"}, own{title: "nodes"}
	for _, x := range d.Compared {
		c.candidates = append(c.candidates, x.Candidate)
		micro.cells, nodes.cells = append(micro.cells, fmt.Sprint(x.Micro)), append(nodes.cells, onNodes(x))
	}
	c.more = []own{micro}
	if slices.ContainsFunc(d.Compared, func(x batch.Candidate) bool { return x.Nodes > 0 }) {
		c.more = []own{nodes, micro}
	}
	c.show(p)
}

// onNodes is the number of nodes that a candidate's plan is of.
func onNodes(c batch.Candidate) string {
	if c.Nodes == 0 {
		return "all"
	}
	return fmt.Sprint(c.Nodes)
}

// candidateOf is what all kinds of plans say of a candidate; nil of none.
func candidateOf(c *batch.Candidate) *recommend.Candidate {
	if c == nil {
		return nil
	}
	return &c.Candidate
}

// batchMicro is one row a micro-batch: its groups by class, and how much of its
// devices' time they use.
func batchMicro(p *printer, d *batch.Document) {
	p.printf("\nmicro-batches, one after the other; groups of one run side by side\n")
	t := newTable(column{title: "", number: true}, column{title: "time", number: true}, column{title: "sequences", number: true}, column{title: "tokens", number: true},
		column{title: "longest", number: true}, column{title: "busy", number: true}, column{title: "groups: how many x devices of each", most: 60})
	for i, m := range d.Micro {
		if i >= mostRows {
			break
		}
		sequences, tokens, longest := 0, units.Tokens(0), units.Tokens(0)
		for _, g := range m.Groups {
			sequences += len(g.Sequences)
			tokens += g.Tokens
			for _, k := range g.Sequences {
				longest = max(longest, d.Lengths[k])
			}
		}
		t.row(fmt.Sprint(i), m.Time.String(), fmt.Sprint(sequences), tokens.String(), longest.String(), units.Percent(busyShare(d, m)), groupKinds(d, m))
	}
	t.render(p)
	if n := len(d.Micro) - mostRows; n > 0 {
		p.para("", fmt.Sprintf("and %s more; the file that solve writes with -o has all", microBatches(n)))
	}
	if late := ownLastClasses(d); len(late) > 0 {
		p.para("", fmt.Sprintf("groups of %s compute own blocks last in the backward pass, while the gradients of the others' are on their way", strings.Join(late, "; ")))
	}
}

// ownLastClasses names those of the plan's classes that do.
func ownLastClasses(d *batch.Document) []string {
	var late []string
	for _, c := range d.Classes {
		if c.OwnLast && !slices.Contains(late, c.Name) {
			late = append(late, c.Name)
		}
	}
	return late
}

// busyShare is the part of the devices' time in a micro-batch that groups use, without the
// devices that are left out.
func busyShare(d *batch.Document, m batch.MicroBatch) float64 {
	devices, used := -len(d.LeftOut), 0.0
	for _, f := range d.Fleet {
		devices += batch.Pool(f).Count()
	}
	for _, g := range m.Groups {
		used += float64(g.Time) * float64(len(g.Ranks))
	}
	if !(m.Time > 0) {
		return 0
	}
	return used / float64(m.Time) / float64(devices)
}

// groupKinds counts the groups of a micro-batch by class, the largest first: "1 x
// 32, 4 x 8". Classes of like names are told apart by the devices they have.
func groupKinds(d *batch.Document, m batch.MicroBatch) string {
	count := map[string]int{}
	degree := map[string]int{}
	for _, g := range m.Groups {
		name := d.Classes[g.Class].Name
		count[name]++
		degree[name] = len(g.Ranks)
	}
	names := make([]string, 0, len(count))
	for name := range count {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(degree[b], degree[a]), strings.Compare(a, b)) })
	for i, name := range names {
		names[i] = fmt.Sprintf("%d x %s", count[name], name)
	}
	return strings.Join(names, ", ")
}

// batchPicture draws each device's share of each micro-batch: a full block is busy to
// the end, an empty one idle. Groups begin at a bar.
func batchPicture(p *printer, d *batch.Document) {
	ranks := 0
	for _, f := range d.Fleet {
		for _, node := range f.Ranks {
			for _, r := range node {
				ranks = max(ranks, r+1)
			}
		}
	}
	each := (ranks + pictureRanks - 1) / pictureRanks
	p.printf("\nhow long each device works: a line is a micro-batch, a character %s\n", perCell(each))
	for i, m := range d.Micro {
		if i >= mostRows {
			break
		}
		busy := make([]float64, ranks)
		for _, g := range m.Groups {
			for _, r := range g.Ranks {
				if r < ranks && m.Time > 0 {
					busy[r] = float64(g.Time / m.Time)
				}
			}
		}
		p.printf("%4d  %s\n", i, cells(busy, each))
	}
}

// pictureRanks is how many characters stand for all ranks.
const pictureRanks = 96

func perCell(each int) string {
	if each == 1 {
		return "a rank"
	}
	return fmt.Sprintf("the mean of %d ranks", each)
}

// cells draws means of `each` shares as blocks of eighths.
func cells(shares []float64, each int) string {
	levels := []rune(" ▁▂▃▄▅▆▇█")
	var b strings.Builder
	for from := 0; from < len(shares); from += each {
		part := shares[from:min(len(shares), from+each)]
		sum := 0.0
		for _, v := range part {
			sum += v
		}
		mean := min(1, sum/float64(len(part)))
		level := int(mean*8 + 0.5)
		if mean > 0 && level == 0 {
			level = 1
		}
		b.WriteRune(levels[level])
	}
	return "|" + b.String() + "|"
}

package results

import (
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/pipeline"
)

// PipelinePlan prints a plan of a pipeline: what was considered, what every stage has, what
// every chunk holds, and a picture of the step.
func PipelinePlan(w io.Writer, d *pipeline.Document) error {
	p := &printer{w: w}
	pipelineHead(p, d)
	considered := contest{candidates: d.Compared, base: d.Baseline(), taken: d.Taken, time: d.Time}
	considered.show(p)
	considered.reasons(p)
	pipelineStages(p, d)
	pipelineChunks(p, d)
	pipelinePicture(p, d)
	for _, n := range d.Notes {
		p.para("note: ", n)
	}
	return p.err
}

// pipelineHead says what was planned and how good that is.
func pipelineHead(p *printer, d *pipeline.Document) {
	var total, longest units.Tokens
	for _, n := range d.Lengths {
		total, longest = total+n, max(longest, n)
	}
	all := make([]int, len(d.Devices))
	for r := range all {
		all[r] = r
	}
	p.para("", fmt.Sprintf("%s plan of %s as a pipeline: %s (%s tokens, the longest %s) on %s", stampOf(d.Simulated, d.Chosen()), orNone(d.Name), plural(len(d.Lengths), "sequence"), total, longest, devicesOf(d, all)))
	p.para("", "prices: "+d.Prices)
	planned(p, d.Tool, d.Created, "laws")
	for _, in := range d.Inputs {
		p.para("", "from "+input(in))
	}
	bound := "no plan takes less than"
	if d.StagesOf != "" {
		p.para("", fmt.Sprintf("on the stages of %s, as all that was considered: chunks, their order and what is computed again are this batch's own", d.StagesOf))
		bound = "no plan on these stages takes less than"
	}
	how := fmt.Sprintf("step %s in %s through %s, by %s", stepOf(d.Time, d.Chosen()), plural(len(d.Chunks), "chunk"), plural(len(d.Stages), "stage"), d.Strategy)
	if d.Bound > 0 {
		how += fmt.Sprintf("; %s %v at these prices, so this one is at most %s above the best", bound, d.Bound, units.Percent(d.Gap))
	}
	p.para("", fmt.Sprintf("%s; the devices of its stages wait for %s of it", how, units.Percent(waiting(d))))
}

// busy is the share of the step in which a stage computes passes.
func busy(d *pipeline.Document, stage int) float64 {
	used := units.Seconds(0)
	for _, o := range d.Orders[stage] {
		used += o.End - o.Start
	}
	return float64(used / d.Time)
}

// waiting is the share of the time of the stages' devices in which these compute no pass:
// the bubbles, and what ends the step.
func waiting(d *pipeline.Document) float64 {
	used, devices := 0.0, 0
	for s, x := range d.Stages {
		used += busy(d, s) * float64(len(x.Ranks))
		devices += len(x.Ranks)
	}
	return max(0, 1-used/float64(devices))
}

// devicesOf counts ranks by their device types: "4 h100_sxm + 4 a100_sxm".
func devicesOf(d *pipeline.Document, ranks []int) string {
	var types []string
	count := map[string]int{}
	for _, r := range ranks {
		if of := d.Devices[r]; count[of] == 0 {
			types = append(types, of)
		}
		count[d.Devices[r]]++
	}
	for i, of := range types {
		types[i] = fmt.Sprintf("%d %s", count[of], of)
	}
	return strings.Join(types, " + ")
}

// pipelineStages is a row a stage, in the order of the model's layers.
func pipelineStages(p *printer, d *pipeline.Document) {
	p.printf("\nstages, in the order of the model's %s; each computes every chunk forward and backward\n", plural(d.Layers, "layer"))
	t := newTable(column{title: "stage", number: true}, column{title: "ranks", most: 24}, column{title: "devices", most: 36}, column{title: "layers", number: true},
		column{title: "computed again,\nby chunk", number: true}, column{title: "at work", number: true}, column{title: "memory peak of\nwhat plans may fill", number: true})
	used := make([]bool, len(d.Devices))
	for s, x := range d.Stages {
		for _, r := range x.Ranks {
			used[r] = true
		}
		if s >= mostRows {
			continue
		}
		m := d.Memory[s]
		t.row(fmt.Sprint(s), units.Spans(x.Ranks), devicesOf(d, x.Ranks), fmt.Sprint(x.Layers), fromTo(d.Recompute[s]), units.Percent(busy(d, s)),
			peak(costmodel.Memory{States: m.Peak(), Capacity: m.Capacity}))
	}
	t.render(p)
	if n := len(d.Stages) - mostRows; n > 0 {
		p.para("", fmt.Sprintf("and %s more; the file that solve writes with -o has all", plural(n, "stage")))
	}
	var left []int
	for r, is := range used {
		if !is {
			left = append(left, r)
		}
	}
	if len(left) > 0 {
		p.para("", fmt.Sprintf("in no stage: ranks %s (%s)", units.Spans(left), devicesOf(d, left)))
	}
}

// fromTo prints numbers by their least and largest: "0 to 4".
func fromTo(of []int) string {
	least, most := slices.Min(of), slices.Max(of)
	if least == most {
		return fmt.Sprint(least)
	}
	return fmt.Sprintf("%d to %d", least, most)
}

// pipelineChunks is a row a chunk, in the order in which slices follow one another.
func pipelineChunks(p *printer, d *pipeline.Document) {
	p.printf("\nchunks: a slice of a long sequence, behind whose earlier slices it comes, whole sequences, or both\n")
	t := newTable(column{title: "chunk", number: true}, column{title: "tokens", number: true}, column{title: "slice", most: 44},
		column{title: "whole sequences", number: true}, column{title: "their tokens", number: true}, column{title: "layers computed\nagain, by stage", most: 30})
	for k, x := range d.Chunks[:min(len(d.Chunks), mostRows)] {
		whole := wholeTokens(d, x)
		count, tokens := none, none
		if len(x.Whole) > 0 {
			count, tokens = fmt.Sprint(len(x.Whole)), whole.String()
		}
		t.row(fmt.Sprint(k), (x.Slice + whole).String(), slice(d, x), count, tokens, againByStage(d, k))
	}
	t.render(p)
	if n := len(d.Chunks) - mostRows; n > 0 {
		p.para("", fmt.Sprintf("and %s more; the file that solve writes with -o has all", plural(n, "chunk")))
	}
}

// wholeTokens are those of a chunk's whole sequences.
func wholeTokens(d *pipeline.Document, x costs.Chunk) units.Tokens {
	n := units.Tokens(0)
	for _, w := range x.Whole {
		n += d.Lengths[w]
	}
	return n
}

// slice says which tokens of which sequence a chunk's slice is: "0-32k of sequence 3 (96k)".
func slice(d *pipeline.Document, x costs.Chunk) string {
	if x.Slice == 0 {
		return none
	}
	return fmt.Sprintf("%s-%s of sequence %d (%s)", x.Context, x.Context+x.Slice, x.Sequence, d.Lengths[x.Sequence])
}

// againByStage is how many of each stage's layers are computed again for a chunk; of many
// stages, the least and the most.
func againByStage(d *pipeline.Document, k int) string {
	const most = 8
	var by []int
	for s := range d.Stages {
		by = append(by, d.Recompute[s][k])
	}
	switch least := slices.Min(by); {
	case least == slices.Max(by) && least > 0 && len(by) > 1:
		return fmt.Sprintf("%d each", least)
	case least == slices.Max(by) || len(by) > most:
		return fromTo(by)
	}
	return strings.Trim(strings.ReplaceAll(fmt.Sprint(by), " ", ", "), "[]")
}

// pipelineWidth is how many characters a step is wide, and chunkLetters stand for chunks
// in it; after them they begin anew, as neighbours still differ.
const (
	pipelineWidth = 96
	chunkLetters  = "abcdefghijklmnopqrstuvwxyz"
)

// pipelinePicture draws the step: a line is a stage, a character a part of the step, with
// the letter of the chunk that is computed.
func pipelinePicture(p *printer, d *pipeline.Document) {
	p.printf("\nthe step: a line is a stage, a character %v; a to z forward, A to Z backward, a dot where the stage waits\n", d.Time/pipelineWidth)
	shown := min(len(d.Stages), mostLines)
	wide := 0
	for s := range shown {
		wide = max(wide, len(fmt.Sprint(s)))
	}
	for s := range shown {
		p.printf("%*d  |%s|\n", wide, s, pipelineLine(d, s))
	}
	if n := len(d.Stages) - shown; n > 0 {
		p.para("", fmt.Sprintf("and %s more", plural(n, "line")))
	}
	last := min(len(d.Chunks), len(chunkLetters)) - 1
	legend := fmt.Sprintf("%c is chunk 0", chunkLetters[0])
	if last > 0 {
		legend += fmt.Sprintf(", %c is chunk %d", chunkLetters[last], last)
	}
	if len(d.Chunks) > len(chunkLetters) {
		legend += ", after which letters begin anew"
	}
	legend += "; at the end parameters are updated, which is drawn as waiting"
	if hidden(d) {
		legend += "; not every pass shorter than a character shows"
	}
	p.para("", legend)
}

// hidden says that a pass is too short to be sure of a character.
func hidden(d *pipeline.Document) bool {
	for _, order := range d.Orders[:min(len(d.Orders), mostLines)] {
		for _, o := range order {
			if o.End-o.Start < d.Time/pipelineWidth {
				return true
			}
		}
	}
	return false
}

// pipelineLine is what a stage computes at the middle of every character.
func pipelineLine(d *pipeline.Document, stage int) string {
	line := []byte(strings.Repeat(".", pipelineWidth))
	cell := func(at units.Seconds) int {
		return min(max(0, int(math.Ceil(float64(at/d.Time)*pipelineWidth-0.5))), pipelineWidth)
	}
	for _, o := range d.Orders[stage] {
		letter := chunkLetters[o.Chunk%len(chunkLetters)]
		if o.Backward {
			letter -= 'a' - 'A'
		}
		for i := cell(o.Start); i < cell(o.End); i++ {
			line[i] = letter
		}
	}
	return string(line)
}

package results

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

const pipelinePageHead = `# Pipelines: evenkeel beside InfiniPipe and what people run today

Everything here is PREDICTED: nothing of this kind was run. All strategies are judged by the
same simulator (package costmodel/pipeline): stages of devices have consecutive layers, and
unequal sequences go through them in chunks, slices of long ones and packs of short ones.

| name | what it is |
| --- | --- |
| static-sp | no pipeline: chunks of packed whole sequences on all devices at once (DeepSpeed-Ulysses) |
| 1f1b | equal stages, chunks of packed whole sequences, the same recomputation for all |
| seq1f1b | equal stages, slices of a fixed number of tokens, the same recomputation for all (Seq1F1B) |
| infinipipe | InfiniPipe (Wang et al., arXiv 2509.21275) as published: chunks of equal time, groups of sequences, recomputation chunk by chunk by integer programming |
| evenkeel | ours: unequal stages for unequal devices, no wait between groups of sequences, order, recomputation and packing searched |

For all of them several numbers of stages and of slices are tried, with the last stage spared a layer
or two for its loss, and the fastest plan that fits is taken. The bound is one that no plan beats (` + "`solver/pipeline.Bound`" + `); it takes memory as unlimited
and knows nothing of the filling and draining of stages. Lengths have the median 1,000 and a standard
deviation of the logarithm of 1.7, and are cut at the context.

How to redo it: docs/infinipipe.sh (15 to 30 minutes on one core). Planning times were taken beside
other work on the machine. Every row is in comparisons.csv.

`

// today is the fastest of what people run as a pipeline, or without one on all devices.
func (r pipelineRow) today() units.Seconds {
	best := units.Seconds(math.Inf(1))
	for _, s := range []string{"static-sp", "1f1b", "seq1f1b"} {
		if t := r.Time[s]; t > 0 {
			best = min(best, t)
		}
	}
	return best
}

// pipelinePage is the page of results/evidence/pipeline.
func pipelinePage(rows map[string]pipelineRow) []byte {
	var b bytes.Buffer
	b.WriteString(pipelinePageHead)
	ratio := func(of, than func(pipelineRow) units.Seconds) func(pipelineRow) float64 {
		return func(r pipelineRow) float64 { return float64(of(r) / than(r)) }
	}
	by := func(strategy string) func(pipelineRow) units.Seconds {
		return func(r pipelineRow) units.Seconds { return r.Time[strategy] }
	}
	bound, today := func(r pipelineRow) units.Seconds { return r.Bound }, pipelineRow.today
	table := func(first string, cells []comparedCell[pipelineRow], columns []string, of []func(pipelineRow) float64) {
		fmt.Fprintf(&b, "| %s | %s | planning, s: infinipipe, evenkeel |\n| --- |%s ---: |\n", first, strings.Join(columns, " | "), strings.Repeat(" ---: |", len(columns)))
		for _, c := range cells {
			line := []string{c.title}
			for _, f := range of {
				if median, _ := c.spread(f); median == 0 {
					line = append(line, "-")
					continue
				}
				line = append(line, c.ratio(f))
			}
			theirs, _ := c.spread(func(r pipelineRow) float64 { return float64(r.InfiniPipe) })
			mine, _ := c.spread(func(r pipelineRow) float64 { return float64(r.Planning) })
			fmt.Fprintf(&b, "| %s | %.1f, %.1f |\n", strings.Join(line, " | "), theirs, mine)
		}
	}
	problems := pipelineProblems()
	of := func(family string, title func(pipelineProblem) string) []comparedCell[pipelineRow] {
		return cellsOf(problems, rows, func(q pipelineProblem) string {
			if q.family != family {
				return ""
			}
			return title(q)
		})
	}
	fmt.Fprintf(&b, "## Published coefficients, four stages\n\n"+
		"A model of 13 billion parameters on 32 devices by FlexSP's coefficients, with memory by textbook\n"+
		"estimates, as an independent rebuild has it; all-to-alls and what a chunk takes by itself are left out,\n"+
		"so that slices may be as small as one likes. Medians over four batches of 512, and in brackets the highest.\n\n")
	table("context, memory", of("published", func(q pipelineProblem) string {
		return fmt.Sprintf("%dk, %s GB", q.context>>10, strings.Fields(q.cluster)[3])
	}), []string{"1f1b / infinipipe", "seq1f1b / infinipipe", "infinipipe / bound", "evenkeel / bound", "infinipipe / evenkeel"},
		[]func(pipelineRow) float64{
			ratio(by("1f1b"), by("infinipipe")), ratio(by("seq1f1b"), by("infinipipe")), ratio(by("infinipipe"), bound), ratio(by("evenkeel"), bound), ratio(by("infinipipe"), by("evenkeel")),
		})
	groups := []string{"today's best / infinipipe", "infinipipe / bound", "evenkeel / bound", "today's best / evenkeel", "infinipipe / evenkeel", "groups: FlexSP / infinipipe", "groups: ours / evenkeel"}
	columns := []func(pipelineRow) float64{
		ratio(today, by("infinipipe")), ratio(by("infinipipe"), bound), ratio(by("evenkeel"), bound), ratio(today, by("evenkeel")), ratio(by("infinipipe"), by("evenkeel")),
		ratio(func(r pipelineRow) units.Seconds { return r.FlexSP }, by("infinipipe")), ratio(func(r pipelineRow) units.Seconds { return r.Groups }, by("evenkeel")),
	}
	b.WriteString("\n## Reference laws, equal GPUs\n\n" +
		"Models in Llama's sizes, batches of 256 (8B) and 512, contexts of 48k, 96k and 192k: six a row. ZeRO-3 within a\n" +
		"stage, its exchange hidden as far as it can be. The last two columns compare with the same batch in groups of\n" +
		"devices side by side, without a pipeline (solve --lengths): FlexSP with 2 s a programme, and ours.\n\n")
	table("model, cluster", of("equal", func(q pipelineProblem) string { return q.model + ", " + q.cluster }), groups, columns)
	b.WriteString("\n## Reference laws, unequal GPUs\n\n" +
		"Forty clusters drawn of two or three of H100, A100, H200, B200 and RTX PRO 6000, one to three nodes of\n" +
		"four or eight of each, batches of 256. All but evenkeel take the devices that they use for equal, and leave\n" +
		"types out where that is faster.\n\n")
	table("model", of("mixed", func(q pipelineProblem) string { return q.model }), groups, columns)
	b.WriteString("\n" + pipelineSummary(problems, rows))
	return b.Bytes()
}

// pipelineSummary counts who is faster.
func pipelineSummary(problems []pipelineProblem, rows map[string]pipelineRow) string {
	all, slower, faster, taken, behind := 0, 0, 0, 0, 0
	for _, q := range problems {
		r, known := rows[q.key()]
		if !known {
			continue
		}
		all++
		mine := r.Time["evenkeel"]
		for _, s := range pipelineStrategies() {
			if t := r.Time[s]; t > 0 && float64(t) < float64(mine)*(1-1e-6) {
				slower++
			}
		}
		if float64(r.Time["infinipipe"]) > 1.001*float64(mine) {
			faster++
		}
		if r.Taken == "evenkeel" {
			taken++
		}
		if r.Groups > 0 && r.Groups < mine {
			behind++
		}
	}
	return fmt.Sprintf("Over all %d problems evenkeel is slower than another strategy of pipelines %d times, and faster than infinipipe by\n0.1 %% or more %d times. It is what solve recommends %d times. Our own plan in groups side by side, without a\npipeline, is faster %d times: solve says so.\n", all, slower, faster, taken, behind)
}

// The page is what the table says, and the table holds every problem.
func TestPipelinePage(t *testing.T) {
	rows := readPipelines(t, "evidence/pipeline/comparisons.csv")
	for _, q := range pipelineProblems() {
		r, known := rows[q.key()]
		if !known {
			t.Fatalf("no row for %s: run docs/infinipipe.sh", q.key())
		}
		for s, time := range r.Time {
			if time > 0 && float64(time) < float64(r.Bound)*(1-1e-6) {
				t.Errorf("%s: %s takes %v, less than the bound %v", q.key(), s, time, r.Bound)
			}
			if time > 0 && float64(time) < float64(r.Time["evenkeel"])*(1-1e-6) {
				t.Errorf("%s: %s takes %v, evenkeel %v", q.key(), s, time, r.Time["evenkeel"])
			}
		}
	}
	page, err := os.ReadFile("evidence/pipeline/README.md")
	if err != nil {
		t.Fatal(err)
	}
	if got := pipelinePage(rows); !bytes.Equal(got, page) {
		t.Errorf("results/evidence/pipeline/README.md is not what comparisons.csv says; docs/infinipipe.sh writes it again:\n%s", got)
	}
}

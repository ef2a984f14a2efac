package results

import (
	"cmp"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	costs "github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/multitask"
)

// TaskPlan prints a plan of tasks: what was considered, what runs where and when, and a
// picture of it.
func TaskPlan(w io.Writer, d *multitask.Document) error {
	p := &printer{w: w}
	taskHead(p, d)
	considered := contest{candidates: d.Compared, base: d.Baseline(), taken: d.Taken, time: d.Time}
	considered.show(p)
	considered.reasons(p)
	taskRuns(p, d)
	taskPicture(p, d)
	for _, n := range d.Notes {
		p.para("note: ", n)
	}
	return p.err
}

// taskHead says what was planned and how good that is.
func taskHead(p *printer, d *multitask.Document) {
	var tasks, devices []string
	for _, m := range d.Modules {
		if !slices.Contains(tasks, m.Task) {
			tasks = append(tasks, m.Task)
		}
	}
	for _, e := range d.Devices {
		devices = append(devices, fmt.Sprintf("%d %s", ranksIn(e.Ranks), e.Device))
	}
	p.para("", fmt.Sprintf("%s plan of %s: %s of %s on %s", stampOf(d.Simulated, d.Chosen()), orNone(d.Name), plural(len(d.Modules), "module"), plural(len(tasks), "task"), strings.Join(devices, " + ")))
	p.para("", "prices: "+d.Prices)
	by := "laws"
	if d.Options == (costs.Options{}) {
		by = "curves"
	}
	planned(p, d.Tool, d.Created, by)
	for _, in := range d.Inputs {
		p.para("", "from "+input(in))
	}
	p.para("", fmt.Sprintf("step %s, by %s; no plan takes less than %v at these prices, so this one is at most %s above the best; devices are at work for %s of it", stepOf(d.Time, d.Chosen()), d.Strategy, d.Bound, units.Percent(d.Gap), units.Percent(atWork(d))))
}

func ranksIn(nodes [][]int) int {
	n := 0
	for _, node := range nodes {
		n += len(node)
	}
	return n
}

// atWork is the share of the devices' time in a step that runs use.
func atWork(d *multitask.Document) float64 {
	used := 0.0
	for _, r := range d.Runs {
		used += float64(r.End-r.Start) * float64(len(r.Ranks))
	}
	return used / float64(d.Time) / float64(len(d.Memory))
}

// taskRuns is a row a run, as they begin.
func taskRuns(p *printer, d *multitask.Document) {
	p.printf("\nwhat runs when; runs on other devices run side by side\n")
	t := newTable(column{title: "from", number: true}, column{title: "to", number: true}, column{title: ""}, column{title: "module", most: 24}, column{title: "task", most: 24},
		column{title: "layers", number: true}, column{title: "devices", most: 40}, column{title: "samples each", most: 24})
	for i, r := range byStart(d) {
		if i >= mostRows {
			break
		}
		m := d.Modules[r.Module]
		t.row(r.Start.String(), r.End.String(), letter(r.Module), m.Name, m.Task, fmt.Sprintf("%d of %d", r.Layers, m.Layers), taskDevices(d, r), sampleRange(d, r))
	}
	t.render(p)
	if n := len(d.Runs) - mostRows; n > 0 {
		p.para("", fmt.Sprintf("and %s more; the file that solve writes with -o has all", plural(n, "run")))
	}
}

// byStart are the runs as they begin.
func byStart(d *multitask.Document) []costs.Run {
	runs := slices.Clone(d.Runs)
	slices.SortStableFunc(runs, func(a, b costs.Run) int { return cmp.Compare(a.Start, b.Start) })
	return runs
}

// taskDevices names the devices of a run by type, and the node if it is one.
func taskDevices(d *multitask.Document, r costs.Run) string {
	var of []string
	for _, e := range d.Devices {
		n := 0
		for _, node := range e.Ranks {
			for _, rank := range node {
				if _, found := slices.BinarySearch(r.Ranks, rank); found {
					n++
				}
			}
		}
		if n > 0 {
			of = append(of, fmt.Sprintf("%d %s", n, e.Device))
		}
	}
	return strings.Join(of, " + ")
}

// sampleRange is how many samples of the batch the devices of a run have.
func sampleRange(d *multitask.Document, r costs.Run) string {
	var of []string
	for _, e := range d.Devices {
		least, most := 0, 0
		for _, node := range e.Ranks {
			for _, rank := range node {
				at, found := slices.BinarySearch(r.Ranks, rank)
				if !found {
					continue
				}
				if n := r.Samples[at]; most == 0 {
					least, most = n, n
				} else {
					least, most = min(least, n), max(most, n)
				}
			}
		}
		switch {
		case most == 0:
		case least == most:
			of = append(of, fmt.Sprint(most))
		default:
			of = append(of, fmt.Sprintf("%d to %d", least, most))
		}
	}
	return strings.Join(of, " + ")
}

// letters stand for modules in the picture; after them they begin anew.
const letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"

func letter(module int) string { return letters[module%len(letters) : module%len(letters)+1] }

// taskPicture draws the step: a line is a rank, or of many ranks one of several that do the
// same, a character a part of the step, with the letter of the module that runs.
func taskPicture(p *printer, d *multitask.Document) {
	p.printf("\nthe step: a character is %v, a dot where a device waits\n", d.Time/taskWidth)
	var lines []string
	ranks := make([][]int, 0, len(d.Memory))
	for rank := range d.Memory {
		line := taskLine(d, rank)
		if at := slices.Index(lines, line); at >= 0 {
			ranks[at] = append(ranks[at], rank)
			continue
		}
		lines, ranks = append(lines, line), append(ranks, []int{rank})
	}
	wide := 0
	for i := range ranks[:min(len(ranks), mostLines)] {
		wide = min(max(wide, len(units.Spans(ranks[i]))), mostLabel)
	}
	for i, line := range lines {
		if i >= mostLines {
			p.para("", fmt.Sprintf("and %s more", plural(len(lines)-i, "line")))
			break
		}
		label := units.Spans(ranks[i])
		if len(label) > mostLabel {
			label = label[:mostLabel-2] + ".."
		}
		p.printf("%*s  |%s|\n", wide, label, line)
	}
	var legend []string
	for m, x := range d.Modules[:min(len(d.Modules), len(letters))] {
		legend = append(legend, letter(m)+" "+x.Name)
	}
	p.para("", strings.Join(legend, ", "))
}

// taskWidth is how many characters a step is wide, mostLabel the ranks before it at most,
// and mostLines how many lines are drawn.
const (
	taskWidth = 72
	mostLabel = 20
	mostLines = 64
)

// taskLine is what a rank does over the step.
func taskLine(d *multitask.Document, rank int) string {
	line := []byte(strings.Repeat(".", taskWidth))
	for _, r := range d.Runs {
		if _, found := slices.BinarySearch(r.Ranks, rank); !found {
			continue
		}
		from, to := int(math.Round(float64(r.Start/d.Time)*taskWidth)), int(math.Round(float64(r.End/d.Time)*taskWidth))
		for i := from; i < min(to, taskWidth); i++ {
			line[i] = letter(r.Module)[0]
		}
	}
	return string(line)
}

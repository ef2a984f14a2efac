package multitask

import "slices"

// Message is what one rank sends another in a step's forward pass: results of consecutive
// samples. In the backward pass their gradients come back, as many bytes.
type Message struct {
	Source, Target int // runs, by their place in the plan
	From, To       int // ranks
	Samples        int // of the source's module
}

// Messages are those of a plan, in the order of the runs that send them, then of those that
// take them. A sample goes from the rank that had it in a run of a module to the one that has it
// in the next; of a module that another one needs sample a of n goes to whoever has sample
// a*m/n, rounded down, of the other's m. What stays on a rank is no message. The plan must hold
// Validate.
func (p *Plan) Messages(t *Tasks) []Message {
	var all []Message
	needs, last := t.Needs(), map[int]int{} // by module: its last run so far
	for i := range p.Runs {
		module := p.Runs[i].Module
		sources := needs[module]
		if _, begun := last[module]; begun {
			sources = []int{module}
		}
		for _, m := range sources {
			all = p.between(all, last[m], i)
		}
		last[module] = i
	}
	// Within a source they are in the order of targets, and of samples.
	slices.SortStableFunc(all, func(a, b Message) int { return a.Source - b.Source })
	return all
}

// between appends what one run sends another.
func (p *Plan) between(all []Message, source, target int) []Message {
	from, to := p.Runs[source].holders(), p.Runs[target].holders()
	n, m, begin := len(from), len(to), len(all)
	for a, rank := range from {
		b := to[a*m/n]
		if rank == b {
			continue
		}
		// Both sides have consecutive samples, so those of two ranks follow one another.
		if k := len(all) - 1; k >= begin && all[k].From == rank && all[k].To == b {
			all[k].Samples++
			continue
		}
		all = append(all, Message{Source: source, Target: target, From: rank, To: b, Samples: 1})
	}
	return all
}

// holders are, by sample of the batch, the rank that has it.
func (r *Run) holders() []int {
	var all []int
	for i, rank := range r.Ranks {
		all = append(all, slices.Repeat([]int{rank}, r.Samples[i])...)
	}
	return all
}

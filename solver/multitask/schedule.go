package multitask

import (
	"slices"

	"github.com/evenkeel/evenkeel/costmodel/multitask"
	"github.com/evenkeel/evenkeel/internal/units"
)

// phase is so many layers of a module on one of its choices.
type phase struct{ choice, layers int }

// draft is what the search varies: how every module is split over choices, and who gets
// devices first.
type draft struct {
	phases [][]phase // by module, in order
	order  []int     // modules, the most urgent first
}

// copyFrom makes a draft equal to another one.
func (d *draft) copyFrom(o *draft) {
	if d.phases == nil {
		d.phases = make([][]phase, len(o.phases))
	}
	for m := range o.phases {
		d.phases[m] = append(d.phases[m][:0], o.phases[m]...)
	}
	d.order = append(d.order[:0], o.order...)
}

// scheduler makes plans of drafts: whenever devices are free the most urgent module that
// can begin does. It knows no waves.
type scheduler struct {
	p       *Problem
	choices [][]choice // by module
	free    *free
	needs   []int   // by module: of how many modules the end is waited for
	after   [][]int // modules that wait for each
	next    []int   // phase of each module
	runs    []multitask.Run
	ranks   []int // of all runs
	busy    []int // runs that have not ended
	last    []int // run of each module so far; -1
	ends    []units.Seconds
	held    []float64 // by rank: the share of its memory that runs fill
	state   []moduleState
}

type moduleState int8

const (
	waiting moduleState = iota
	ready
	running
	done
)

func newScheduler(p *Problem, choices [][]choice) *scheduler {
	n := len(p.Tasks.Modules)
	s := &scheduler{
		p: p, choices: choices, free: newFree(p), needs: make([]int, n), after: make([][]int, n), next: make([]int, n),
		last: make([]int, n), ends: make([]units.Seconds, n), held: make([]float64, p.Devices()), state: make([]moduleState, n),
	}
	for m, needs := range p.Needs {
		for _, need := range needs {
			s.after[need] = append(s.after[need], m)
		}
	}
	return s
}

// run schedules a draft and returns how long it takes. The runs are s.runs, without shares.
func (s *scheduler) run(d *draft) units.Seconds {
	s.free.reset()
	clear(s.held)
	s.runs, s.busy, s.ranks = s.runs[:0], s.busy[:0], s.ranks[:0]
	for m := range s.next {
		s.next[m], s.last[m], s.ends[m] = 0, -1, 0
		s.needs[m], s.state[m] = len(s.p.Needs[m]), ready
		if s.needs[m] > 0 {
			s.state[m] = waiting
		}
	}
	now := units.Seconds(0)
	for {
		for _, m := range d.order {
			if s.state[m] == ready {
				s.begin(d, m, now)
			}
		}
		if len(s.busy) == 0 {
			return now
		}
		now = s.end(d)
	}
}

// begin starts a module's next phase if its devices are free.
func (s *scheduler) begin(d *draft, m int, now units.Seconds) {
	ph := d.phases[m][s.next[m]]
	c := &s.choices[m][ph.choice]
	if !s.free.has(c.uses) {
		return
	}
	r := multitask.Run{Module: m, Layers: ph.layers, Start: now}
	var wanted []int
	switch {
	case s.last[m] >= 0:
		wanted = s.runs[s.last[m]].Ranks
	case len(s.p.Needs[m]) > 0:
		wanted = s.runs[s.last[s.p.Needs[m][0]]].Ranks
	}
	from := len(s.ranks)
	s.ranks = s.free.take(s.ranks, c.uses, wanted)
	r.Ranks = s.ranks[from:len(s.ranks):len(s.ranks)]
	if s.last[m] >= 0 {
		before := &s.runs[s.last[m]]
		r.Start = max(r.Start, before.End+s.p.Move(m, before, &r, false))
	} else {
		for _, need := range s.p.Needs[m] {
			before := &s.runs[s.last[need]]
			r.Start = max(r.Start, before.End+s.p.Move(need, before, &r, true))
		}
	}
	r.End = r.Start + units.Seconds(ph.layers)*c.on(s.p.Exchange(m, r.Ranks))
	for _, rank := range r.Ranks {
		s.held[rank] += float64(ph.layers) * c.held[s.free.home[rank].pool]
	}
	s.last[m], s.state[m] = len(s.runs), running
	s.busy = append(s.busy, len(s.runs))
	s.runs = append(s.runs, r)
}

// end ends the run that ends next, and all that end with it, and returns when.
func (s *scheduler) end(d *draft) units.Seconds {
	now := forever
	for _, i := range s.busy {
		now = min(now, s.runs[i].End)
	}
	s.busy = slices.DeleteFunc(s.busy, func(i int) bool {
		r := &s.runs[i]
		if r.End > now {
			return false
		}
		s.free.release(r.Ranks)
		m := r.Module
		s.ends[m] = now
		if s.next[m]++; s.next[m] < len(d.phases[m]) {
			s.state[m] = ready
			return true
		}
		s.state[m] = done
		for _, a := range s.after[m] {
			if s.needs[a]--; s.needs[a] == 0 {
				s.state[a] = ready
			}
		}
		return true
	})
	return now
}

// plan is what the last draft became, with shares and times. Runs of a module that follow
// one another on the same devices are one.
func (s *scheduler) plan() (*multitask.Plan, error) {
	plan := &multitask.Plan{}
	last := map[int]int{} // run of each module so far
	for _, r := range s.runs {
		if at, known := last[r.Module]; known {
			if b := &plan.Runs[at]; b.End == r.Start && slices.Equal(b.Ranks, r.Ranks) {
				b.Layers, b.End = b.Layers+r.Layers, r.End
				continue
			}
		}
		last[r.Module] = len(plan.Runs)
		r.Ranks = slices.Clone(r.Ranks)
		r.Samples = s.p.Shares(r.Module, r.Ranks)
		plan.Runs = append(plan.Runs, r)
	}
	return plan, s.p.Simulate(plan)
}

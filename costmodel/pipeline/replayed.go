package pipeline

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Replay is what of a plan is run, and by whose times.
type Replay struct {
	// Loss is true where every chunk's loss is run, on the last stage behind its forward pass.
	Loss bool
	// Took gives computing times as in costmodel.Simulator.Supposing; nil leaves all to the
	// laws. Its keys have ranks of the plan, chunks as micro-batches and layers of the model.
	Took func(costmodel.ReplayKey) (units.Seconds, bool)
}

// Replayed predicts what replay runs of a plan: every layer on every chunk, forward and
// backward, in the plan's orders, if asked the loss, and none of embeddings, exchange of
// gradients and optimizer. Within a pass a stage's ranks go from layer to layer by themselves, each sequence
// in calls of its own (see costmodel.Packer.ReplayedChunk); between passes they wait as in
// Simulate, until all of the stage are done and what the next pass needs is there, which is a
// stretch stage_wait where it takes any time. Of that at most as long as the message takes is
// exposed, the rest is skew, as is waiting for the slowest of the stage at the end of a pass.
//
// The interval is that of the passes of the stage that is at work for longest. As there is no
// meeting after layers, Meeting is the step's time.
//
// Errors: a plan that is none, stages whose orders wait for each other, heads that a stage
// cannot share equally, a missing law, prices that come from no laws.
func (c *Costs) Replayed(p *Plan, of Replay) (*costmodel.Replayed, error) {
	if err := p.Validate(c.Lengths, c.Layers, c.Devices()); err != nil {
		return nil, err
	}
	r := &replaying{c: c, plan: p.Clone(), of: of, known: map[replayKey]*costmodel.Replayed{}}
	if err := r.passesTake(); err != nil {
		return nil, err
	}
	if err := r.prices.simulate(c, r.plan); err != nil {
		return nil, err
	}
	r.out.Ranks = make([]costmodel.ReplayedRank, c.Devices())
	for s := range p.Stages {
		r.follow(s)
	}
	slices.SortStableFunc(r.out.Tasks, func(a, b costmodel.ReplayTask) int { return cmp.Compare(a.Rank, b.Rank) })
	r.finish()
	return &r.out, nil
}

// replaying is a replayed plan under way.
type replaying struct {
	c      *Costs
	plan   *Plan // with the times of the replay
	of     Replay
	known  map[replayKey]*costmodel.Replayed // by the laws: many chunks and stages are alike
	passes [2][][]*costmodel.Replayed        // forward and backward, by stage and chunk
	first  []int                             // layer of the model, by stage
	prices prices
	out    costmodel.Replayed
}

// replayKey is what a pass takes the same time by the laws for.
type replayKey struct {
	passKey
	layers, again int
	back, loss    bool
}

// passesTake predicts all passes, and what is sent.
func (r *replaying) passesTake() error {
	layer := 0
	r.prices.finish = make([]Finish, len(r.plan.Stages))
	for s, x := range r.plan.Stages {
		if err := r.c.Fits(x.Ranks); err != nil {
			return fmt.Errorf("stages[%d]: %w", s, err)
		}
		r.first = append(r.first, layer)
		layer += x.Layers
		var times [2][]units.Seconds
		for dir := range r.passes {
			passes := make([]*costmodel.Replayed, len(r.plan.Chunks))
			for k := range passes {
				var err error
				if passes[k], err = r.pass(s, k, dir == 1); err != nil {
					return fmt.Errorf("stages[%d], chunks[%d]: %w", s, k, err)
				}
				times[dir] = append(times[dir], passes[k].Step.Mid)
			}
			r.passes[dir] = append(r.passes[dir], passes)
		}
		r.prices.forward, r.prices.backward = append(r.prices.forward, times[0]), append(r.prices.backward, times[1])
		r.prices.send = append(r.prices.send, r.c.messages(r.plan, s))
	}
	return nil
}

// pass predicts one.
func (r *replaying) pass(s, k int, back bool) (*costmodel.Replayed, error) {
	of, x := &r.plan.Stages[s], &r.plan.Chunks[k]
	w := costmodel.ChunkReplay{Layers: of.Layers, Back: back, Loss: r.of.Loss && !back && s == len(r.plan.Stages)-1}
	if back {
		w.Again = r.plan.Recompute[s][k]
	}
	if r.of.Took != nil {
		w.Took = func(key costmodel.ReplayKey) (units.Seconds, bool) { return r.of.Took(r.inRun(key, s, k)) }
		return r.c.from.replayed(of.Ranks, r.c.priced(x), w)
	}
	key := replayKey{r.c.key(of.Ranks, x), w.Layers, w.Again, back, w.Loss}
	if known := r.known[key]; known != nil {
		return known, nil
	}
	out, err := r.c.from.replayed(of.Ranks, r.c.priced(x), w)
	r.known[key] = out
	return out, err
}

// inRun is a stage's stretch of a chunk's pass as the run names it.
func (r *replaying) inRun(key costmodel.ReplayKey, s, k int) costmodel.ReplayKey {
	key.Rank, key.Micro, key.Layer = r.plan.Stages[s].Ranks[key.Rank], k, key.Layer+r.first[s]
	return key
}

// follow lists what the ranks of a stage do, pass by pass.
func (r *replaying) follow(s int) {
	at, of := units.Seconds(0), r.plan.Stages[s].Ranks
	for _, o := range r.plan.Orders[s] {
		pass := r.passes[direction(o.Backward)][s][o.Chunk]
		wait := o.Start - at
		for i, rank := range of {
			sum := &r.out.Ranks[rank]
			sum.Compute += pass.Ranks[i].Compute
			sum.Exposed += pass.Ranks[i].Exposed + min(wait, r.sent(s, o))
			if wait > 0 {
				r.out.Tasks = append(r.out.Tasks, costmodel.ReplayTask{ReplayKey: r.waiting(s, i, o), Start: at, Time: wait})
			}
		}
		for _, t := range pass.Tasks {
			t.ReplayKey, t.Start = r.inRun(t.ReplayKey, s, o.Chunk), t.Start+o.Start
			r.out.Tasks = append(r.out.Tasks, t)
		}
		at = o.End
	}
	for _, rank := range of {
		sum := &r.out.Ranks[rank]
		sum.End = at
		sum.Skew = max(0, at-sum.Compute-sum.Exposed) // rounding may leave a hair less than nothing
	}
}

func direction(back bool) int {
	if back {
		return 1
	}
	return 0
}

// sent is what the message takes that a pass of a stage waits for, if it needs one.
func (r *replaying) sent(s int, o Op) units.Seconds {
	if !o.Backward {
		s--
	}
	if s < 0 {
		return 0
	}
	return r.prices.send[s][o.Chunk]
}

// waiting is what a rank of a stage does before a pass whose message is not there yet.
func (r *replaying) waiting(s, place int, o Op) costmodel.ReplayKey {
	key := costmodel.ReplayKey{Rank: place, Dir: costmodel.ForwardPass, Op: costmodel.StageWait}
	if o.Backward {
		key.Dir, key.Layer = costmodel.BackwardPass, r.plan.Stages[s].Layers-1
	}
	return r.inRun(key, s, o.Chunk)
}

// finish makes the interval of the whole.
func (r *replaying) finish() {
	var busiest costmodel.Estimate
	var worst costmodel.Source
	for s := range r.plan.Stages {
		var sum costmodel.Estimate
		for dir := range r.passes {
			for _, pass := range r.passes[dir][s] {
				sum = sum.Plus(pass.Step)
			}
		}
		worst = worst.Worse(sum.Source)
		if sum.Mid > busiest.Mid {
			busiest = sum
		}
	}
	var step costmodel.Estimate
	if busiest.Mid > 0 { // nothing may be supposed to take any time
		step = busiest.Times(float64(r.plan.Time / busiest.Mid))
	}
	step.Mid, step.Source = r.plan.Time, worst
	r.out.Step, r.out.Meeting = step, r.plan.Time
}

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// plannedBatch is a plan of a batch, with its prices.
type plannedBatch struct {
	prices  priceList
	problem *batch.Problem // of all nodes
	doc     *batch.Document
	open    units.Seconds // of a step, in which nothing but the exchange goes on
	others  []string      // what the plans of other ZeRO stages take, where that was left open
}

// planBatch prices and plans a batch in one ZeRO stage.
func (a *app) planBatch(ctx context.Context, o problem, of batchOf) (plannedBatch, error) {
	prices, err := a.prices(ctx, o, of.limit, of.lengths)
	if errors.Is(err, context.DeadlineExceeded) {
		return plannedBatch{}, fmt.Errorf("--deadline %s: the time was up before the groups of the cluster were priced, and there is no plan without prices: give it more, or none", o.deadline)
	}
	if errors.Is(err, context.Canceled) {
		return plannedBatch{}, errors.New("interrupted before the groups of the cluster were priced, and there is no plan without prices; nothing was written")
	}
	if err != nil {
		return plannedBatch{}, err
	}
	p, err := batch.NewProblem(prices.Costs, of.lengths)
	if beyond, ok := errors.AsType[*batch.BeyondModelError](err); ok {
		return plannedBatch{}, o.sequences.beyondModel(beyond.Sequence, beyond.Tokens, beyond.Most, prices.beyond)
	}
	if err != nil {
		return plannedBatch{}, usageError{err}
	}
	if err := p.Validate(); err != nil {
		return plannedBatch{}, usageError{err}
	}
	return a.planPriced(ctx, o, of, plannedBatch{prices: prices, problem: p})
}

// planPriced plans a batch that is priced.
func (a *app) planPriced(ctx context.Context, o problem, of batchOf, x plannedBatch) (plannedBatch, error) {
	d, on, err := a.contest(ctx, o, x.problem, max(of.limit, of.longest))
	var long *batch.TooLongError
	if errors.As(err, &long) && long.Groups == "" { // of the fleet: flags are ways out
		return plannedBatch{}, tooLong{long, o, o.lessFreeHelps(ctx, a.holds(slices.Max(of.lengths)))}
	}
	if err != nil {
		return plannedBatch{}, err
	}
	x.doc, x.open = d, on.Open(&d.Plan)
	return x, nil
}

// inStages plans a batch in the ZeRO stage that is asked for or, with --zero auto, in each, and
// takes the plan of the shortest step. Which stage that is, the fast strategies say: the others
// plan in that one alone.
//
// The stage that needs the least memory goes first: where it has no room none has.
func (a *app) inStages(ctx context.Context, o problem, of batchOf) (plannedBatch, error) {
	if o.zero != auto {
		return a.planBatch(ctx, o, of)
	}
	var all []stagePlan
	best := 0
	for _, set := range slices.Backward(o.stages()) {
		a.note("%s ...", set.zero)
		if len(all) > 0 && ctx.Err() != nil {
			all = append(all, stagePlan{zero: set.zero, posed: set, err: errNoTime})
			continue
		}
		quick := set
		quick.sequences.fast = true
		if quick.take == (batch.FlexSP{}).Name() { // which is asked in one stage alone
			quick.take = ""
		}
		tells := a
		if len(all) > 0 {
			tells = a.silent() // what is assumed was told
		}
		x, err := tells.planBatch(ctx, quick, of)
		switch {
		case err == nil:
		case len(all) == 0 || !ofStage(err) && ctx.Err() == nil:
			return plannedBatch{}, err
		case ctx.Err() != nil && !ofStage(err):
			err = errNoTime
		}
		all = append(all, stagePlan{zero: set.zero, posed: set, plannedBatch: x, err: err})
		if at := len(all) - 1; err == nil && x.doc.Time < all[best].doc.Time*(1-hardlyShorter) {
			best = at
		}
	}
	chosen := all[best].plannedBatch
	if !o.sequences.fast && ctx.Err() == nil {
		a.note("%s, with every strategy ...", all[best].zero)
		switch x, err := a.planPriced(ctx, all[best].posed, of, chosen); {
		case err == nil && (ctx.Err() == nil || x.doc.Time <= chosen.doc.Time):
			chosen = x
		case err != nil && ctx.Err() == nil:
			return plannedBatch{}, err
		}
	}
	for i, x := range all {
		if i != best {
			chosen.others = append(chosen.others, x.against(all[best].doc.Time))
		}
	}
	return chosen, nil
}

// hardlyShorter is by how much a step must be shorter for a stage that needs more memory.
const hardlyShorter = 0.005

var errNoTime = errors.New("the time was up")

// stagePlan is a problem in one ZeRO stage, with its plan or why there is none.
type stagePlan struct {
	zero  string
	posed problem
	plannedBatch
	err error
}

// against says what the plan of a stage takes, against the chosen one's time.
func (x stagePlan) against(chosen units.Seconds) string {
	var room *groupcost.NoRoomError
	var long *batch.TooLongError
	if errors.As(x.err, &room) || errors.As(x.err, &long) {
		return x.zero + " does not fit"
	}
	if x.err != nil {
		return fmt.Sprintf("%s has no plan: %v", x.zero, x.err)
	}
	change := float64(x.doc.Time/chosen) - 1
	sign := ""
	if change >= 0 {
		sign = "+"
	}
	return fmt.Sprintf("%s takes %v (%s%s)", x.zero, x.doc.Time, sign, units.Percent(change))
}

// ofStage says that an error is of one ZeRO stage, others of which may have a plan.
func ofStage(err error) bool {
	var room *groupcost.NoRoomError
	var long *batch.TooLongError
	var no *recommend.NotTakenError
	var lacks usageError // a law of its exchange
	return errors.As(err, &room) || errors.As(err, &long) || errors.As(err, &no) || errors.As(err, &lacks)
}

// Of a batch's time: from which part on the exchange that nothing hides is worth a word, and from
// which part on a pipeline, whose stages exchange nothing of the others' layers, is too.
const (
	muchExchanged = 0.1
	pipelineHelps = 0.2
)

// ofZero are the notes on the ZeRO stage of a plan.
func (x plannedBatch) ofZero(o problem) (notes []string) {
	if len(x.others) > 0 {
		by := ""
		if !o.sequences.fast {
			by = ", as planned with --fast"
		}
		notes = append(notes, fmt.Sprintf("--zero auto takes %s%s: %s. Of steps within half a percent of each other it takes the one that needs the least memory", x.prices.zero, by, strings.Join(x.others, "; ")))
	}
	share := float64(x.open / x.doc.Time)
	if x.prices.zero == "" || share < muchExchanged {
		return notes
	}
	var ways []string
	if o.zero != auto && x.prices.zero != costmodel.Zero0 {
		ways = append(ways, "--zero auto takes the ZeRO stage that fits and makes the shortest step")
	}
	if share >= pipelineHelps {
		ways = append(ways, "--pipeline plans the batch on stages of consecutive layers, which may exchange less")
	}
	if len(ways) > 0 {
		notes = append(notes, fmt.Sprintf("%s of the step is exchange of parameters and gradients that nothing hides; %s", units.Percent(share), strings.Join(ways, "; ")))
	}
	return notes
}

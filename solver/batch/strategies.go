package batch

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// Settings are the options of all strategies.
type Settings struct {
	// Longest is the length of the longest sequence of any batch, which the groups of the
	// strategy static must hold.
	Longest units.Tokens
	// ProgramTime is the processor time that flexsp's solver may take for one mixed-integer
	// program (on systems other than Linux, time on the wall); 0 is as published.
	ProgramTime time.Duration
	Fast        bool    // leave out the strategies that claim to be slow
	Search      Options // of evenkeel
}

// Strategies lists all strategies in the order in which they are shown: baselines, then
// published algorithms, then ours.
func Strategies(s Settings) []Strategy {
	all := []Strategy{
		sized{s.Longest},
		Adaptive{},
		BFD{},
		MegatronDynamicCP{},
		FCP{},
		FlexSP{Limit: s.ProgramTime, Single: true},
		Evenkeel{s.Search},
	}
	return slices.DeleteFunc(all, func(x Strategy) bool { return s.Fast && x.Claims().Slow })
}

// Named returns an error if no strategy has the name, which may be empty: neither one of
// Strategies nor Sure. The error lists all names and suggests the nearest.
func Named(name string) error {
	return recommend.Known(name, append(Strategies(Settings{}), evenSure{}))
}

// sized is static with the smallest groups that hold the longest sequence of any batch, as a job
// script must be written before the batches are known: of those that keep their activations if any
// of them do. It is no choice of the best: a batch of few sequences may leave most devices without
// work.
type sized struct{ longest units.Tokens }

// Name is "static".
func (sized) Name() string { return Static{}.Name() }

// Claims are those of Static.
func (sized) Claims() Claims { return Static{}.Claims() }

// Solve packs the batch into groups of the smallest degree that holds the longest
// sequence.
//
// Errors: as of Static, and *TooLongError.
func (s sized) Solve(ctx context.Context, p *Problem) (*Plan, error) {
	if err := p.Feasible(); err != nil {
		return nil, err
	}
	line := lineUp(p)
	for _, y := range line.layouts() {
		if e, err := line.equal(y); err == nil && e.cap >= s.longest {
			return Static{y}.Solve(ctx, p)
		}
	}
	return nil, &IllegalError{Why: "no layout of equal groups holds the longest sequence"}
}

// sumsOff says how far that is from what a group takes that trains its sequences packed.
func sumsOff(p *Problem) string {
	if of, _ := p.laws(); of == nil {
		return "as those take it who published the prices; how far that is from what a group takes, they do not say"
	}
	return fmt.Sprintf("which is within %v %% of a simulation of the group in half of all groups, and within %v %% in nine of ten; one or two short sequences by themselves are priced too dear. No interval or error includes that", 100*groupcost.HalfOff, 100*groupcost.PricesOff)
}

// ofTypes says which parts there are of a fleet of several types besides whole nodes.
func (p *Problem) ofTypes() string {
	if len(p.Fleet) < 2 {
		return ""
	}
	return "; of nodes that have several types of devices, those of one type and all but those of one"
}

// NotModelled lists, for the user, what the prices of a problem leave out or assume, where a
// plan leaves out some ranks or none.
func NotModelled(p *Problem, leftOut []int) []string {
	notes := []string{
		"the time of a group is taken as the sum of its sequences' times and a base, " + sumsOff(p),
		"groups of a micro-batch do not slow each other, and changing groups from one micro-batch to the next takes no time",
	}
	switch {
	case len(leftOut) > 0:
		notes = append(notes, "the devices that are left out keep nothing of the model's states and take no part in their exchange, as if they were not there; all other devices do, whether or not they train. Which devices have the states is chosen for a job, not for a batch: to train so, leave these out of --cluster, here and in serve")
	case p.divides():
		notes = append(notes, "every device of the cluster keeps a share of the model's states and takes part in their exchange, whether or not it trains; where it could beat the strongest baseline, a part of the cluster was planned for, too: 1, 2, 4 and so on or all nodes of one kind and, of 2 to 4 kinds, all nodes but one or all of a kind"+p.ofTypes())
	case p.MicroBase+p.Fixed > 0:
		notes = append(notes, "every device of the cluster keeps a share of the model's states and takes part in their exchange, whether or not it trains; a layout of one sequence (--seq-len) may leave devices out of it")
	}
	if len(leftOut) > 0 && p.Devices()-len(leftOut) < 2 {
		return notes // nothing is exchanged
	}
	if p.Behind > 0 {
		notes = append(notes, "gradients that are added up once a step are taken to travel behind the backward pass of the last micro-batch, 60 % of its time for all layers but one, for which the longest comes last; where they take longer than that, the step is longer by the rest. In a simulated step its loss and the messages of its own groups hide nothing of them")
	}
	if p.Hidden > 0 {
		beside := "gradients are taken to travel behind every micro-batch's backward pass, 60 %"
		if p.BothPasses {
			beside = "parameters and gradients are taken to travel behind both passes of every micro-batch, 90 %"
		}
		notes = append(notes, beside+" of its time for all layers but one; where they take longer than that, the micro-batch is longer by the rest. In a simulated step the messages of its own groups hide nothing of them")
	}
	return notes
}

package milp

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/tetratelabs/wazero/api"
)

// Options limit and help a Solve.
type Options struct {
	// CPULimit is the processor time that the search may have, of its one thread, so
	// that other work on the machine takes none of it. None if 0. It is Linux that
	// counts it; on other systems it is time on the wall. For a limit on the wall
	// everywhere give the context a deadline.
	CPULimit time.Duration
	Gap      float64 // relative, between solution and bound, that suffices; 1e-4 if 0
	// Enough is a cost below which a solution ends the search as the best there is:
	// the caller knows that none costs less, or not so much less that it matters. 0 if
	// it knows of none.
	Enough float64
	// Start is a solution to begin with: the result is no worse. One that violates
	// the model is an error.
	Start []float64
}

// Status says how a search ended.
type Status int

// The ways a search ends. Zero is none of them.
const (
	Optimal    Status = iota + 1 // X is the best there is, within Options.Gap
	Infeasible                   // no solution exists
	Unbounded                    // solutions of any low cost exist
	Feasible                     // a limit was reached; X is the best so far
	Unknown                      // a limit was reached before any solution was found
)

// Solution is the outcome of a Solve.
type Solution struct {
	Status    Status
	X         []float64 // by column; nil unless Optimal or Feasible; integers exactly
	Objective float64   // cost of X
	Bound     float64   // no solution costs less; -Inf if nothing was proved
}

// grace is what the engine gets after ctx has ended, to hand over the best
// solution so far, before it is given up.
const grace = time.Second

// Feasibility that the engine keeps (its own default), and that a start needs.
const tolerance = 1e-6

const defaultGap = 1e-4

// Solve minimises the model. When the limit of processor time or ctx ends the search,
// the best solution so far is returned, with status Feasible or Unknown; nothing is
// an error but a model or start that is none, or a failure of the engine. The engine
// gets a second after ctx has ended, and twice the limit, to stop by itself; then it
// is given up, and the start, if any, is all there is.
//
// The first Solve of a process also compiles the engine, which takes seconds.
func Solve(ctx context.Context, m *Model, o Options) (Solution, error) {
	if err := m.Validate(); err != nil {
		return Solution{}, err
	}
	if o.Start != nil && !m.Feasible(o.Start, tolerance) {
		return Solution{}, errors.New("start: violates the model")
	}
	if ctx.Err() != nil {
		return ended(m, o), nil
	}
	hard, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer context.AfterFunc(ctx, func() { time.AfterFunc(grace, giveUp) })()
	done := make(chan outcome, 1)
	go func() {
		defer giveUp()
		done <- limited(ctx, hard, giveUp, m, o)
	}()
	<-hard.Done()
	select {
	case out := <-done:
		return out.Solution, out.err
	default:
		return ended(m, o), nil
	}
}

// outcome is what a search leads to.
type outcome struct {
	Solution
	err error
}

// limited solves until ctx or the limit ends, which begins when the engine has been
// compiled, or until it is given up, as it is by twice the limit.
func limited(ctx, hard context.Context, giveUp func(), m *Model, o Options) outcome {
	e, err := compiled()
	if err != nil {
		return outcome{err: err}
	}
	if o.CPULimit > 0 {
		spent, release := threadSpent()
		defer release()
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		defer after(spent, o.CPULimit, cancel)()
		defer after(spent, 2*o.CPULimit+grace, giveUp)()
	}
	s, err := e.solve(clock{ctx, hard}, m, o)
	return outcome{s, err}
}

// leastLook is between two looks at a clock that another thread's work moves.
const leastLook = time.Millisecond

// after calls f when so much has been spent. It looks again after what is left, for
// a thread spends no more than the time that passes. stop ends the watch: when it
// has returned, nobody looks any more.
func after(spent func() time.Duration, most time.Duration, f func()) (stop func()) {
	over, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for left := most - spent(); left > 0; left = most - spent() {
			select {
			case <-time.After(max(left, leastLook)):
			case <-over:
				return
			}
		}
		f()
	}()
	return func() { close(over); <-done }
}

// wallSpent is the time since now.
func wallSpent() func() time.Duration {
	begin := time.Now()
	return func() time.Duration { return time.Since(begin) }
}

// solve runs one instance, which is not used again.
func (e *engine) solve(c clock, m *Model, o Options) (Solution, error) {
	in, err := e.start(context.WithValue(context.Background(), clockKey{}, c))
	if err != nil {
		return Solution{}, err
	}
	defer in.module.Close(context.Background())
	in.load(m)
	in.limit(o)
	in.call("Highs_run", in.model)
	s := in.solution(m, o)
	if in.err != nil {
		return Solution{}, fmt.Errorf("solving %d columns and %d rows: %w", len(m.Columns), len(m.Rows), in.err)
	}
	return s, nil
}

// ended is what is known without the engine.
func ended(m *Model, o Options) Solution {
	if o.Start == nil {
		return Solution{Status: Unknown, Objective: math.Inf(1), Bound: math.Inf(-1)}
	}
	return Solution{Status: Feasible, X: o.Start, Objective: m.Value(o.Start), Bound: math.Inf(-1)}
}

// HiGHS' numbers (its interfaces/highs_c_api.h).
const (
	rowWise          = 2
	minimise         = 1
	statusOptimal    = 7
	statusInfeasible = 8
	statusNoneOrAll  = 9 // unbounded or infeasible
	statusUnbounded  = 10
	statusEnough     = 12 // the target is reached
	statusTimeLimit  = 13
	pointFeasible    = 2
)

// load hands the model over, through arrays of its rows.
func (in *instance) load(m *Model) {
	in.model = in.call("Highs_create")
	var cost, lower, upper, rowLower, rowUpper, value []byte
	var integer, start, index []byte
	for _, c := range m.Columns {
		cost, lower, upper = appendReal(cost, c.Cost), appendReal(lower, c.Lower), appendReal(upper, c.Upper)
		kind := 0
		if c.Integer {
			kind = 1
		}
		integer = appendWhole(integer, kind)
	}
	terms := 0
	for _, r := range m.Rows {
		rowLower, rowUpper = appendReal(rowLower, r.Lower), appendReal(rowUpper, r.Upper)
		start = appendWhole(start, terms)
		terms += len(r.Terms)
		for _, t := range r.Terms {
			index, value = appendWhole(index, t.Column), appendReal(value, t.Value)
		}
	}
	in.bool("output_flag", false)
	in.do("Highs_passMip", in.model, uint64(len(m.Columns)), uint64(len(m.Rows)), uint64(terms), rowWise, minimise, api.EncodeF64(0),
		in.put(cost), in.put(lower), in.put(upper), in.put(rowLower), in.put(rowUpper), in.put(start), in.put(index), in.put(value), in.put(integer))
}

func appendReal(b []byte, x float64) []byte {
	return binary.LittleEndian.AppendUint64(b, math.Float64bits(x))
}

func appendWhole(b []byte, i int) []byte {
	return binary.LittleEndian.AppendUint32(b, uint32(int32(i)))
}

// limit sets the options. The module has no threads.
func (in *instance) limit(o Options) {
	in.do("Highs_setIntOptionValue", in.model, in.text("threads"), 1)
	in.do("Highs_setStringOptionValue", in.model, in.text("parallel"), in.text("off"))
	gap := o.Gap
	if gap == 0 {
		gap = defaultGap
	}
	in.double("mip_rel_gap", gap)
	in.double("time_limit", engineLimit.Seconds())
	if o.Enough != 0 {
		in.double("objective_target", o.Enough)
	}
	if o.Start != nil {
		var x []byte
		for _, v := range o.Start {
			x = appendReal(x, v)
		}
		in.do("Highs_setSolution", in.model, in.put(x), 0, 0, 0)
	}
}

func (in *instance) double(option string, v float64) {
	in.do("Highs_setDoubleOptionValue", in.model, in.text(option), api.EncodeF64(v))
}

func (in *instance) bool(option string, v bool) {
	n := uint64(0)
	if v {
		n = 1
	}
	in.do("Highs_setBoolOptionValue", in.model, in.text(option), n)
}

// solution reads the outcome.
func (in *instance) solution(m *Model, o Options) Solution {
	status := api.DecodeI32(in.call("Highs_getModelStatus", in.model))
	s := ended(m, o)
	s.Bound = in.info("mip_dual_bound")
	if math.IsNaN(s.Bound) {
		s.Bound = math.Inf(-1)
	}
	if x := in.point(m); x != nil && m.Value(x) <= s.Objective {
		s.X, s.Objective = x, m.Value(x)
		s.Status = Feasible
	}
	switch {
	case status == statusOptimal && s.X != nil:
		s.Status = Optimal
	case status == statusNoneOrAll:
		return in.noneOrAll(m, o)
	case status == statusInfeasible:
		return Solution{Status: Infeasible, Objective: math.Inf(1), Bound: math.Inf(1)}
	case status == statusUnbounded:
		return Solution{Status: Unbounded, Objective: math.Inf(-1), Bound: math.Inf(-1)}
	case status == statusEnough && s.X != nil:
		s.Status = Optimal
	case status != statusTimeLimit && in.err == nil:
		in.err = fmt.Errorf("the engine ended with status %d", status)
	}
	return s
}

// noneOrAll tells a model without solutions from one with solutions of any low cost,
// which the engine's presolve need not: with no costs the latter is solved.
func (in *instance) noneOrAll(m *Model, o Options) Solution {
	if !slices.ContainsFunc(m.Columns, func(c Column) bool { return c.Cost != 0 }) {
		return Solution{Status: Infeasible, Objective: math.Inf(1), Bound: math.Inf(1)}
	}
	free := &Model{Columns: slices.Clone(m.Columns), Rows: m.Rows}
	for i := range free.Columns {
		free.Columns[i].Cost = 0
	}
	in.load(free)
	in.limit(o)
	in.call("Highs_run", in.model)
	s := in.solution(free, o)
	if s.X != nil {
		return Solution{Status: Unbounded, Objective: math.Inf(-1), Bound: math.Inf(-1)}
	}
	return s
}

// point is the solution the engine has, with its integers made whole; nil if none.
func (in *instance) point(m *Model) []float64 {
	p := in.alloc(4)
	in.do("Highs_getIntInfoValue", in.model, in.text("primal_solution_status"), p)
	if binary.LittleEndian.Uint32(in.read(p, 4)) != pointFeasible {
		return nil
	}
	p = in.alloc(8 * len(m.Columns))
	in.do("Highs_getSolution", in.model, p, 0, 0, 0)
	data := in.read(p, 8*len(m.Columns))
	x := make([]float64, len(m.Columns))
	for i := range x {
		x[i] = math.Float64frombits(binary.LittleEndian.Uint64(data[8*i:]))
		if m.Columns[i].Integer {
			x[i] = math.Round(x[i])
		}
	}
	return x
}

func (in *instance) info(name string) float64 {
	p := in.alloc(8)
	in.do("Highs_getDoubleInfoValue", in.model, in.text(name), p)
	return math.Float64frombits(binary.LittleEndian.Uint64(in.read(p, 8)))
}

package batch

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/recommend"
)

// doubted are the attempts of choose: a slow baseline and, twice, a faster plan, which may
// take longer by so many times what it gains.
func doubted(t *testing.T, times ...float64) (*Problem, []Attempt) {
	t.Helper()
	p, d := choose(t)
	slow, good := d.Baseline().Time, goodPlan(t, p)
	base := &Plan{Time: slow, Micro: []MicroBatch{{Groups: []Group{{Class: 3, Sequences: []int{0, 1, 2, 3, 4}}}}}}
	attempts := []Attempt{{Strategy: fixed{name: "slow", baseline: true}, Plan: base, Account: within10(slow, 0)}}
	for i, x := range times {
		plan := *good
		attempts = append(attempts, Attempt{
			Strategy: fixed{name: []string{"ours", sureName}[i]}, Plan: &plan,
			Account: within10(good.Time, units.Seconds(x)*(slow-good.Time)),
		})
	}
	return p, attempts
}

// within10 is an account that is off by a tenth either way, but for what its gain may be less.
func within10(t, less units.Seconds) *costmodel.Step {
	return &costmodel.Step{Time: costmodel.Estimate{Lo: 0.9 * t, Mid: t, Hi: 1.1 * t, Source: costmodel.Measured}, Contention: less}
}

func verdicts(d *Document) string {
	var all []string
	for _, c := range d.Compared {
		all = append(all, c.Strategy+" "+string(c.Verdict))
	}
	return strings.Join(all, ", ")
}

func TestABatchesGainInDoubtIsNotRecommended(t *testing.T) {
	for _, c := range []struct {
		times    []float64
		take     string
		taken    bool
		verdicts string
	}{
		{[]float64{0.5}, "", false, "slow slower, ours chosen"},
		{[]float64{1.5}, "", false, "slow chosen, ours ~"},
		{[]float64{1.5, 0.5}, "", false, "slow slower, ours equal, evenkeel-sure chosen"},
		{[]float64{1.5}, "ours", true, "slow slower, ours chosen"},
		{[]float64{0.5}, "slow", true, "slow chosen, ours slower"},
		{[]float64{0.5}, "ours", false, "slow slower, ours chosen"},
	} {
		p, attempts := doubted(t, c.times...)
		d, err := Choose(p, attempts[1].Plan.Time/2, attempts, c.take)
		if err != nil {
			t.Fatal(err)
		}
		if got := verdicts(d); got != c.verdicts || d.Taken != c.taken || d.Strategy != d.Chosen().Strategy {
			t.Errorf("%v, take %q: %s, of %s, taken %t", c.times, c.take, got, d.Strategy, d.Taken)
		}
		if err := d.compared(); err != nil {
			t.Errorf("%v, take %q: %v", c.times, c.take, err)
		}
	}
}

func TestABatchesGainInDoubtSaysWhy(t *testing.T) {
	p, attempts := doubted(t, 1.5)
	d, err := Choose(p, 0, attempts, "")
	if err != nil {
		t.Fatal(err)
	}
	c := d.Compared[1]
	for _, want := range []string{"what ours does; gains ", " over slow, which the cost model cannot tell from nothing", "most of the doubt is how much messages", "--take ours"} {
		if !strings.Contains(c.Why, want) {
			t.Errorf("%q: want %q", c.Why, want)
		}
	}
	if c.GainError == 0 || c.Doubt == "" || d.Compared[0].Why != "what slow does" {
		t.Errorf("%+v", d.Compared)
	}
}

// What is written of a choice follows from the numbers beside it.
func TestADocumentNamesAChoiceThatIsNone(t *testing.T) {
	breaks := map[string]func(*Document){
		"considered[1].verdict: \"equal\": takes":    func(d *Document) { d.Compared[1].Verdict = Equal },
		"considered[1].step_s: ":                     func(d *Document) { d.Compared[1].GainError = 0 },
		"taken: true: the numbers recommend":         func(d *Document) { d.Taken = true },
		"considered[0].step_s: 100 s: the plan, whi": func(d *Document) { d.Compared[0].Time, d.Compared[0].Gap = 100, 0 },
		"considered[1].step_s: 0 s: want":            func(d *Document) { d.Compared[1].Time = 0 },
	}
	for want, damage := range breaks {
		p, attempts := doubted(t, 1.5)
		d, err := Choose(p, 0, attempts, "")
		if err != nil {
			t.Fatal(err)
		}
		damage(d)
		if err := d.compared(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}

// A document from before there was a word for a gain in doubt calls the fastest chosen,
// whatever its gain, and one that is between it and the baseline slower.
func TestDocumentsWithoutTiesAreRead(t *testing.T) {
	p, attempts := doubted(t, 1.5, 1.5)
	attempts[2].Plan.Time *= 1.001
	d, err := Choose(p, 0, attempts, "")
	if err != nil {
		t.Fatal(err)
	}
	d.Plan, d.Strategy = *attempts[1].Plan, "ours"
	for i, v := range []Verdict{Slower, Chosen, Slower} {
		d.Compared[i].Verdict, d.Compared[i].Interval = v, costmodel.Estimate{}
	}
	if err := d.compared(); err != nil {
		t.Error(err)
	}
}

func TestAPlanThatIsAskedForMustBeThere(t *testing.T) {
	p, attempts := doubted(t, 0.5)
	none := Attempt{Strategy: fixed{name: sureName}, Err: &IllegalError{Why: "nothing is surer"}}
	late := Attempt{Strategy: fixed{name: "late"}, Err: context.DeadlineExceeded}
	attempts = append(attempts, late, none)
	d, err := Choose(p, 0, attempts, "")
	if err != nil || len(d.Compared) != 3 {
		t.Errorf("%v: %s: that nothing is surer is told without being asked for", err, verdicts(d))
	}
	var missing *recommend.NotTakenError
	if _, err := Choose(p, 0, attempts, sureName); !errors.As(err, &missing) || !strings.Contains(err.Error(), "the plan of evenkeel-sure was asked for: nothing is surer; take another") {
		t.Error(err)
	}
	if _, err := Choose(p, 0, attempts, "late"); err == nil || errors.As(err, &missing) || !strings.Contains(err.Error(), "give it more") {
		t.Error(err)
	}
	if _, err := Choose(p, 0, attempts, "flexsp"); err == nil || errors.As(err, &missing) || !strings.Contains(err.Error(), "flexsp was asked for, and it was not solved") {
		t.Error(err)
	}
}

// ending ends its time while it plans.
type ending struct {
	fixed
	end context.CancelFunc
}

func (e ending) Solve(ctx context.Context, p *Problem) (*Plan, error) {
	e.end()
	return e.fixed.Solve(ctx, p)
}

// A plan of a search that was cut off is told from one of a search that was done: what a
// published algorithm reached until Ctrl-C is not what it reaches. A rule does not search.
func TestAStrategyThatWasStoppedIsNamed(t *testing.T) {
	p, d := choose(t)
	good := goodPlan(t, p)
	base := &Plan{Time: d.Baseline().Time, Micro: []MicroBatch{{Groups: []Group{{Class: 3, Sequences: []int{0, 1, 2, 3, 4}}}}}}
	ctx, cancel := context.WithCancel(t.Context())
	attempts := []Attempt{Try(ctx, fixed{name: "done", plan: good}, p, ticks())}
	attempts = append(attempts,
		Try(ctx, ending{fixed{name: "cut", plan: good}, cancel}, p, ticks()),
		Try(ctx, fixed{name: "rule", baseline: true, plan: base}, p, ticks()))
	got, err := Choose(p, 0, attempts, "")
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"cut was stopped before it was done, and its plan is the best until then: it was interrupted"}; !slices.Equal(got.Notes, want) {
		t.Errorf("%q, want %q", got.Notes, want)
	}
}

func TestStrategiesOfBatchesHaveNames(t *testing.T) {
	for _, s := range Strategies(Settings{}) {
		if err := Named(s.Name()); err != nil {
			t.Error(err)
		}
	}
	if err := Named(sureName); err != nil {
		t.Error(err)
	}
	if err := Named("evenkel-sure"); err == nil || !strings.Contains(err.Error(), `(did you mean "evenkeel-sure"?); the strategies are static, adaptive`) {
		t.Error(err)
	}
}

// A bound that a plan beats is wrong, and no number of the document would show it if it were
// lowered to the plan: of any plan, also of one that is not chosen, but for rounding.
func TestABoundThatAPlanBeatsIsNoBound(t *testing.T) {
	p, attempts := doubted(t, 1.5)
	chosen, fastest := attempts[0].Plan.Time, attempts[1].Plan.Time
	for _, bound := range []units.Seconds{2 * chosen, (chosen + fastest) / 2, fastest * (1 + 1e-6)} {
		if d, err := Choose(p, bound, attempts, ""); err == nil || !strings.Contains(err.Error(), "one of the two is wrong") {
			t.Errorf("bound %v, plans of %v and %v: %+v, %v", bound, chosen, fastest, d, err)
		}
	}
	d, err := Choose(p, fastest*(1+1e-10), attempts, "ours")
	if err != nil || d.Bound != fastest || d.Gap != 0 {
		t.Fatalf("rounded: %v, bound %v of %v", err, d.Bound, fastest)
	}
	d.Bound = fastest * 1.01
	if err := d.Validate(); err == nil || !strings.Contains(err.Error(), "lower_bound_s") {
		t.Errorf("a document whose plan beats its bound: %v", err)
	}
	d, err = Choose(p, fastest/2, attempts, "slow")
	if err != nil {
		t.Fatal(err)
	}
	d.Bound = (chosen + fastest) / 2
	d.Gap = recommend.Gap(d.Time, d.Bound)
	d.Compared[0].Gap, d.Compared[1].Gap = recommend.Gap(chosen, d.Bound), recommend.Gap(fastest, d.Bound)
	if err := d.compared(); err == nil || !strings.Contains(err.Error(), "less than lower_bound_s") {
		t.Errorf("a document with another's plan below its bound: %v", err)
	}
}

package results

import (
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// settings prints the settings that were left open, with what each takes, or says of a plan
// for which none was that another may be faster.
func settings(p *printer, n *notes, d *solver.Plan) {
	if len(d.Settings) == 0 {
		openSettings(n, d)
		return
	}
	t := newTable(column{title: "setting"}, column{title: "plan"}, column{title: "step time", number: true}, column{title: "against chosen", number: true},
		column{title: "today's best", number: true}, column{title: "memory peak", number: true}, column{title: "verdict"})
	for _, s := range d.Settings {
		t.row(settingCells(d, s)...)
	}
	p.printf("\n")
	t.render(p)
	unplanned(p, d)
	n.add("settings: each is planned whose lower bound leaves room for a shorter step than the shortest that was found; of steps within half a percent of each other (equal) the one with the lowest memory peak is chosen")
}

// unplanned says why settings have no plan, those of one reason together.
func unplanned(p *printer, d *solver.Plan) {
	var whys []string
	names := map[string][]string{}
	for _, s := range d.Settings {
		if s.Verdict != solver.Infeasible && (s.Verdict != solver.Untried || slowerByBound(d, s)) {
			continue
		}
		why := fmt.Sprintf("%s: %s", s.Verdict, s.Why)
		if names[why] == nil {
			whys = append(whys, why)
		}
		names[why] = append(names[why], settingName(s))
	}
	for _, why := range whys {
		p.para("  ", strings.Join(names[why], "; ")+": "+why)
	}
}

func settingCells(d *solver.Plan, s solver.Setting) []string {
	name := settingName(s)
	switch {
	case s.Verdict == solver.Infeasible:
		return []string{name, none, none, none, none, none, string(s.Verdict)}
	case s.Verdict == solver.Untried && slowerByBound(d, s):
		return []string{name, none, seconds(s.Bound) + " or more", signed(float64(s.Bound/d.Step.Time.Mid)-1) + " or more", none, none, string(solver.Slower)}
	case s.Verdict == solver.Untried:
		return []string{name, none, none, none, none, none, string(s.Verdict)}
	}
	change, today := none, none
	if s.Verdict != solver.Chosen {
		change = changed(float64(d.Step.Time.Mid/s.Time.Mid), float64(s.GainError/d.Step.Time.Mid), s.Verdict == solver.Tie)
	}
	if s.Baseline > 0 {
		today = seconds(s.Baseline)
	}
	return []string{name, s.Strategy, estimate(s.Time), change, today, s.Peak.String(), string(s.Verdict)}
}

// slowerByBound says that the lower bound alone shows that a setting is slower.
func slowerByBound(d *solver.Plan, s solver.Setting) bool { return s.Bound >= d.Step.Time.Mid }

func settingName(s solver.Setting) string {
	return fmt.Sprintf("%s, recompute %s", s.Zero, s.Recompute)
}

// openSettings says what a setting that was not left open costs, where that is much.
func openSettings(n *notes, d *solver.Plan) {
	var sync, again units.Seconds
	for _, x := range d.Step.Parts {
		switch x.Name {
		case "gradient sync":
			sync = x.Time.Mid
		case "recompute":
			again = x.Time.Mid
		}
	}
	share := func(t units.Seconds) string { return units.Percent(float64(t / d.Step.Time.Mid)) }
	idle := 0
	for _, r := range d.Ranks {
		if r.Group < 0 {
			idle++
		}
	}
	const takes = "--zero auto takes the ZeRO stage that fits and makes the shortest step"
	switch {
	case d.Job.Zero == costmodel.Zero0:
	case sync > much*d.Step.Time.Mid:
		n.add(fmt.Sprintf("%s of the step is gradient sync that nothing hides; %s", share(sync), takes))
	case idle > 0: // among more ranks the exchange takes longer
		n.add(fmt.Sprintf("%d of %s are left out; under a ZeRO stage that exchanges less they may be worth their place: %s", idle, plural(len(d.Ranks), "rank"), takes))
	}
	if again > 0 {
		n.add(fmt.Sprintf("%s of the step is computing again; --recompute auto leaves it out if memory allows", share(again)))
	}
}

// much is the part of a step from which on what a setting costs is worth a word.
const much = 0.05

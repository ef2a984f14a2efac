package results

import (
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
)

// driftTables prints how a recording compares with an earlier one: a line a
// device or group, what moved most there, and what is another environment.
func driftTables(p *printer, d *fit.DriftReport) {
	if d == nil {
		return
	}
	p.printf("\n")
	p.para("", fmt.Sprintf("drift from %s to %s (%s)", d.From, d.To, plural(len(d.Runs), "recording")))
	t := newTable(column{title: "on", most: 18}, column{title: "shared"}, column{title: "moved\n(alarm at)", number: true},
		column{title: "shift", number: true}, column{title: "99 % interval", number: true},
		column{title: "EWMA", number: true}, column{title: "cause", most: 10}, column{title: "verdict"})
	for _, x := range d.Places {
		t.row(x.On, sharedText(x), fmt.Sprintf("%d (%d)", x.Moved, x.Needed), shift(x.Shift), shift(x.Lo)+".."+shift(x.Hi),
			ewma(x), orNone(strings.ReplaceAll(string(x.Cause), "_", " ")), string(x.Verdict))
	}
	t.render(p)
	p.para("", "a shift is the median of now / before, less 1")
	for _, x := range d.Places {
		driftDetail(p, x)
	}
	for _, e := range d.Environment {
		p.para("environment: ", fmt.Sprintf("%s was %s, is %s", e.Field, orNone(e.Was), orNone(e.Is)))
	}
}

func sharedText(x fit.DriftPlace) string {
	if !x.Canaries {
		return plural(x.Shared, "point")
	}
	if x.Shared == 1 {
		return "1 canary"
	}
	return fmt.Sprintf("%d canaries", x.Shared)
}

func ewma(x fit.DriftPlace) string {
	if x.Series == nil {
		return none
	}
	return shift(x.Series.EWMA)
}

// mostMoved is how many of a place's points are named.
const mostMoved = 5

// driftDetail says why a place is not the same, what to do, and which points
// moved most.
func driftDetail(p *printer, x fit.DriftPlace) {
	if x.Verdict == fit.Same {
		return
	}
	p.para(string(x.Verdict)+": ", fmt.Sprintf("%s: %s%s", x.On, x.Why, remedy(x.Cause)))
	for i, q := range x.Points {
		if i == mostMoved {
			also := ""
			if more := x.Moved - mostMoved; more > 0 {
				also = plural(more, "point") + " more moved; "
			}
			p.para("  ", fmt.Sprintf("%sall %d: evenkeel check --json", also, len(x.Points)))
			return
		}
		text := fmt.Sprintf("%s %s: %s, expected noise %s", q.Op, q.Shape, shift(q.Shift), units.Percent(q.Noise))
		if q.Cycles != nil {
			text += ", cycles " + shift(*q.Cycles)
		}
		p.para("  ", text)
	}
}

// remedy is what a cause asks for.
func remedy(c fit.DriftCause) string {
	switch c {
	case fit.CauseClock:
		return "; cycles stayed, so clocks moved (heat or power): cool the device or lift its cap, a new fit would not help"
	case fit.CauseSoftware:
		return "; cycles moved, so the software or its work did: calibrate and fit again"
	case fit.CauseUnknown:
		return "; no clocks were recorded, so heat cannot be told from software"
	}
	return ""
}

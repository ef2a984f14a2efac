package batch_test

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// Among all strategies static is what it says: it has the smallest groups that hold the longest
// sequence, though one sequence leaves most devices without work so.
func TestStaticHasTheSmallestGroupsThatHoldTheLongest(t *testing.T) {
	p, err := batch.NewProblem(overNetwork(t, "1x8 h100_sxm", fastNet, costmodel.Zero3), []units.Tokens{32768})
	if err != nil {
		t.Fatal(err)
	}
	for longest, recompute := range map[units.Tokens]bool{32768: false, 500_000: true} {
		static := batch.Strategies(batch.Settings{Longest: longest})[0]
		plan := batch.Try(t.Context(), static, p, stopped).Plan
		best := batch.Try(t.Context(), batch.Adaptive{}, p, stopped).Plan
		of := p.Classes[plan.Micro[0].Groups[0].Class]
		if of.Recompute != recompute || of.Cap < longest || plan.Time < 1.5*best.Time {
			t.Errorf("the longest is %v: groups of %s that hold %v and take %v, adaptive's %v", longest, of.Name, of.Cap, plan.Time, best.Time)
		}
		for _, c := range p.Classes {
			if c.Cap >= longest && c.Degree() < of.Degree() && p.Devices()%c.Degree() == 0 && c.Recompute == recompute || c.Cap >= longest && recompute && !c.Recompute {
				t.Errorf("the longest is %v, and static has groups of %s: %s holds it", longest, of.Name, c.Name)
			}
		}
		if doc := static.Claims().Doc; static.Name() != "static" || !strings.Contains(doc, "the smallest that hold the longest sequence") {
			t.Errorf("%s: %s", static.Name(), doc)
		}
	}
}

package results

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/fit"
)

// TestBorrowedFamiliesHaveNoPointsToJudge: a family whose points are all predicted by others'
// laws is not said to have too few.
func TestBorrowedFamiliesHaveNoPointsToJudge(t *testing.T) {
	row := fit.Row{Family: fit.FamilyGEMM, On: "gpu", Verdict: fit.Insufficient}
	row.Outside = 3987
	c := familyCase(row, &fit.Report{})
	if c.Skipped == nil || !strings.HasPrefix(c.Skipped.Message, "no limit applies: 3987 points outside the fitted range, or of laws that were borrowed") {
		t.Errorf("JUnit: %+v", c.Skipped)
	}
	n := &notes{}
	if s := rowVerdict(n, row, row.Outside, true); s != "- (1)" || len(n.texts) != 1 || !strings.Contains(n.texts[0], "borrowed or assumed") {
		t.Errorf("table: %q %q", s, n.texts)
	}
}

package fit

import (
	"math/rand/v2"
	"testing"
	"time"
)

// A dense sweep of thousands of sizes is fitted in seconds: the simpler forms
// that it is compared with take no more cuts and knots than sizes can tell apart.
func TestDenseSweepsAreFittedInSeconds(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	points := sized(1700, 0.02, rand.New(rand.NewPCG(7, 8)), ring(2))
	start := time.Now()
	law := fitCurve(t, points)
	fitted, _, err := curveLaws(switched, [][]Point{points})
	if err != nil {
		t.Fatal(err)
	}
	fitted[0].prefer(&law, points)
	if took := time.Since(start); took > 60*time.Second {
		t.Errorf("took %v", took)
	} else {
		t.Logf("%d points in %v: %s", len(points), took.Round(time.Millisecond), law.Form())
	}
}

package solver

import (
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// A plan on GPUs of several makers says that no library joins them, in the same words whichever
// node is listed first; one of one maker does not.
func TestPlansAcrossMakersAreWarnedOf(t *testing.T) {
	warned := func(cluster, slow string) []string {
		p := world.Problem(t, cluster, 4096, world.Fast(), world.Slow())
		for i, arch := range []string{"sm90", slow} {
			p.Profile.Devices[i].Sheet = op.Sheet{BF16PerS: 1e14, Arch: arch}
		}
		plan := solvePlan(t, toSolve(t, p))
		if err := Check(plan, p.Profile); err != nil {
			t.Error(err)
		}
		return slices.DeleteFunc(plan.Warnings, func(w string) bool { return !strings.Contains(w, "another maker") })
	}
	a, b := warned("1x2 fast + 1x2 slow", "gfx942"), warned("1x2 slow + 1x2 fast", "gfx942")
	if len(a) != 1 || !slices.Equal(a, b) || !strings.Contains(a[0], "GPUs of AMD (slow) and NVIDIA (fast) together") {
		t.Errorf("%q, and %q", a, b)
	}
	if w := warned("1x2 fast + 1x2 slow", "sm80"); len(w) > 0 {
		t.Errorf("of one maker: %q", w)
	}
}

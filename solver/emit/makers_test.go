package emit

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// No framework trains on GPUs of two makers together: what is emitted is on those of one, and
// says why not on all. Who made a GPU without an architecture, as Intel's B60, nobody knows.
func TestNothingIsEmittedAcrossMakers(t *testing.T) {
	for arch, who := range map[string]string{
		"gfx942": "AMD (slow) and NVIDIA (fast)",
		"":       "NVIDIA (fast) and a maker that the profile does not tell (slow)",
	} {
		p := world.Problem(t, "1x2 fast + 1x2 slow", 4096, world.Fast(), world.Slow())
		for i, arch := range []string{"sm90", arch} {
			p.Profile.Devices[i].Sheet = op.Sheet{BF16PerS: 1e14, Arch: arch}
		}
		plan := solved(t, p.Profile, p.Job, "")
		for _, f := range Frameworks() {
			e, err := f.Plan(context.Background(), plan, p.Profile)
			if err != nil {
				t.Errorf("%s: %v", f.Name, err)
				continue
			}
			types := []string{}
			for _, r := range e.Ranks {
				types = append(types, plan.Ranks[r].Device)
			}
			slices.Sort(types)
			said := slices.ContainsFunc(e.Notes, func(n string) bool {
				return strings.Contains(n, "not on all ranks: 4 ranks: GPUs of "+who+" form no communicator")
			})
			if len(slices.Compact(types)) != 1 || !said || e.Exact() {
				t.Errorf("%s: on %v, %q", f.Name, types, e.Notes)
			}
		}
	}
}

// Nor is a pipeline, whose stages send to each other.
func TestNoPipelineIsEmittedAcrossMakers(t *testing.T) {
	profile, job := world.GPUJob(t, "1x2 h100_sxm + 1x2 a100_sxm", 1)
	d := piped(t, profile, job, "1f1b", 16<<10, 8<<10)
	f, _ := Lookup("megatron")
	if _, err := stagedEmission(t, f, d, profile); err != nil {
		t.Fatal(err)
	}
	types := d.Types()
	of := *profile
	of.Devices = slices.Clone(of.Devices)
	for i := range of.Devices {
		if of.Devices[i].Name == types[0] {
			of.Devices[i].Sheet.Arch = "gfx942"
		}
	}
	var no *NotRunError
	if _, err := f.Pipeline(context.Background(), d, &of); !errors.As(err, &no) || !strings.Contains(err.Error(), "4 ranks: GPUs of AMD (") {
		t.Errorf("stages on %v: %v", types, err)
	}
}

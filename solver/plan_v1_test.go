package solver

import (
	"os"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/results/profiles"
)

const planV1 = "testdata/ring.v1.plan.json"

func readV1(t testing.TB) *PlanV1 {
	t.Helper()
	v := new(PlanV1)
	if err := doc.Load(planV1, v); err != nil {
		t.Fatal(err)
	}
	return v
}

// A plan from before groups becomes one of today: each rank of its ring a group
// with all heads, its numbers kept, and Check says whose they are.
func TestPlanV1BecomesOneOfToday(t *testing.T) {
	v := readV1(t)
	p := v.Plan()
	heads := p.Job.Model.QHeads
	if err := p.Layout().Validate(p.Job.SeqLen, len(p.Ranks), heads); err != nil {
		t.Error(err)
	}
	for i, r := range v.Ring {
		if g := p.Groups[i]; len(g) != 1 || g[0].Rank != r || g[0].QHeads != heads || p.Ranks[r].Group != i {
			t.Errorf("ring[%d] is rank %d, group %d is %v", i, r, i, g)
		}
	}
	if p.Step.Time != v.Step.Time || p.Bound != v.Bound || len(p.Compared) != len(v.Compared) || p.Compared[0].Layout == nil || len(p.Compared[0].Layout.Groups) != 3 {
		t.Errorf("%+v", p)
	}
	if len(p.Warnings) != len(v.Warnings)+1 || !strings.Contains(p.Warnings[0], "older simulator") {
		t.Errorf("warnings: %q", p.Warnings)
	}
	err := Check(p, profiles.Merge(profiles.All()))
	if err == nil || !strings.Contains(err.Error(), "schema: "+PlanSchemaV1+": its times and memory are those of an older simulator") {
		t.Error(err)
	}
}

func TestPlanV1WithoutWork(t *testing.T) {
	v := readV1(t)
	v.Ranks[1].Segments, v.Ranks[1].Tokens, v.Ranks[1].QHeads, v.Ranks[1].KVHeads = nil, 0, 0, 0
	v.Ring = []int{0, 2}
	if p := v.Plan(); p.Ranks[1].Group != -1 || p.Ranks[2].Group != 1 {
		t.Errorf("%+v", p.Ranks)
	}
}

func TestPlanV1Refuses(t *testing.T) {
	for name, tc := range map[string]struct {
		spoil func(*PlanV1)
		want  string
	}{
		"ring short":       {func(v *PlanV1) { v.Ring = v.Ring[1:] }, "has tokens and is in none"},
		"ring twice":       {func(v *PlanV1) { v.Ring[1] = v.Ring[0] }, "ranks[0].group: 1: by groups[0][0].q_heads it is 0"},
		"ring unknown":     {func(v *PlanV1) { v.Ring[0] = 9 }, "no rank of this plan"},
		"hole":             {func(v *PlanV1) { v.Ranks[0].Segments[0].End--; v.Ranks[0].Tokens-- }, "nobody has tokens"},
		"rank lost":        {func(v *PlanV1) { v.Ranks = v.Ranks[:2] }, "layout.shards: 3 of them"},
		"bad job":          {func(v *PlanV1) { v.Job.SeqLen = 0 }, "job.seq_len_tokens: 0"},
		"candidate broken": {func(v *PlanV1) { v.Compared[0].Layout.Ring = nil }, "considered[0].layout.groups: rank 0 has"},
		"heads wrong":      {func(v *PlanV1) { v.Ranks[0].QHeads-- }, "ranks[0].q_heads: 15"},
	} {
		v := readV1(t)
		tc.spoil(v)
		if err := v.Validate(); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v: want %q", name, err, tc.want)
		}
	}
}

// Whatever old plan is accepted has a layout of today.
func FuzzPlanV1(f *testing.F) {
	data, err := os.ReadFile(planV1)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"schema":"evenkeel.plan/v1","ranks":[],"ring":[0]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var v PlanV1
		if doc.Decode("x", data, &v) != nil {
			return
		}
		p := v.Plan()
		if err := p.Layout().Validate(p.Job.SeqLen, len(p.Ranks), p.Job.Model.QHeads); err != nil {
			t.Errorf("accepted, but %v", err)
		}
	})
}

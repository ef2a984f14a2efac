package results

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/costmodel/workload"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results/profiles"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// flexSetting is a fleet, its prices and where its batches come from.
type flexSetting struct {
	family  string // "published", "burst", "mixed" or "few"
	name    string // of the fleet or cost model
	lengths string // a distribution of costmodel/workload
	context units.Tokens
	size    int // sequences of a batch
	batches int
	devices int
	cluster string // of families mixed and few
	model   string
}

func (s flexSetting) key(i int) string {
	return fmt.Sprintf("%s|%s|%s|%d", s.family, s.name, s.lengths, i)
}

// flexSettings are the comparisons: the published coefficients on the two length
// distributions at both contexts, the published form with bursts, and clusters of
// two to four types with the laws of the reference profiles.
func flexSettings() []flexSetting {
	var all []flexSetting
	for _, context := range []units.Tokens{192000, 384000} {
		for _, of := range []string{"flexsp-wikipedia", "flexsp-standin"} {
			spec := fmt.Sprintf("%s:context=%d,gpus=64", of, int64(context))
			all = append(all, flexSetting{"published", "flexsp-gpt-7b", spec, context, 512, 40, 64, "", ""})
		}
	}
	all = append(all,
		flexSetting{"burst", "fcp", "burst:b=64", 131072, 64, 40, 64, "", ""},
		flexSetting{"burst", "fcp", "burst:b=128", 131072, 512, 40, 64, "", ""},
	)
	for _, c := range []string{
		"4x8 h100_sxm + 4x8 a100_sxm", "2x8 h100_sxm + 6x8 a100_sxm", "4x8 b200_sxm + 4x8 a100_sxm", "4x8 b200_sxm + 4x8 h100_sxm",
		"2x8 b200_sxm + 2x8 h100_sxm + 4x8 a100_sxm", "2x8 b200_sxm + 2x8 h100_sxm + 2x8 a100_sxm + 2x8 rtx_pro_6000_server",
		"8x8 h100_sxm + 8x8 a100_sxm", "4x8 b200_sxm + 4x8 h100_sxm + 8x8 a100_sxm", "4x8 b200_sxm + 4x8 h100_sxm + 4x8 a100_sxm + 4x8 rtx_pro_6000_server",
	} {
		for _, m := range []string{"llama-7b", "llama-13b"} {
			all = append(all, flexSetting{"mixed", c + ", " + m, "flexsp-standin:context=192000,gpus=64", 192000, 512, 3, 0, c, m})
		}
	}
	return append(all, fewSettings()...)
}

// fewSettings are batches of 8 to 128 sequences on 4 to 32 GPUs, as gradient accumulation on
// a few unequal nodes has them.
func fewSettings() []flexSetting {
	var all []flexSetting
	for _, c := range []string{
		"1x2 h100_sxm + 1x2 a100_sxm", "2x2 h100_sxm + 4x2 a100_sxm", "2x4 h100_sxm + 2x4 a100_sxm", "1x8 h100_sxm + 1x8 a100_sxm", "2x8 b200_sxm + 2x8 a100_sxm",
		"1x4 b200_sxm + 1x8 h100_sxm + 1x8 a100_sxm", "1x8 b200_sxm + 1x8 h100_sxm + 1x8 a100_sxm + 1x8 rtx_pro_6000_server",
	} {
		for lengths, size := range map[string]int{
			"uniform:100,131072,seed=1": 8, "lognormal:median=1000,sd=1.7,seed=7": 16, "lognormal:median=30000,sd=0.5,seed=2": 24, "lognormal:median=8000,sd=1,seed=5": 32,
			"lognormal:median=2000,sd=1.5,seed=3": 64, "lognormal:median=4000,sd=2,seed=11": 128,
		} {
			all = append(all, flexSetting{"few", c + ", llama-7b", lengths, 32768, size, 2, 0, c, "llama-7b"})
		}
	}
	slices.SortStableFunc(all, func(a, b flexSetting) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.size, b.size)) })
	return all
}

func flexModel(name string) costmodel.Model {
	m := costmodel.Model{Name: "llama-7b", Layers: 32, Hidden: 4096, FFN: 11008, QHeads: 32, KVHeads: 32, HeadDim: 128, Vocab: 32000, GatedMLP: true}
	if name == "llama-13b" {
		m.Name, m.Layers, m.Hidden, m.FFN, m.QHeads, m.KVHeads = name, 40, 5120, 13824, 40, 40
	}
	return m
}

// flexCosts are a setting's prices, and for a mixed cluster those of planners who
// take its devices as equal.
func flexCosts(t testing.TB, s flexSetting) *groupcost.Costs {
	t.Helper()
	if s.cluster != "" {
		return mixedCosts(t, s)
	}
	g, err := profiles.LookupGroupCost(s.name)
	if err != nil {
		t.Fatal(err)
	}
	c, err := g.Model.Costs(groupcost.Parameters{Devices: s.devices, PerNode: 8, Memory: 30 << 30, Context: s.context})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mixedCosts(t testing.TB, s flexSetting) *groupcost.Costs {
	t.Helper()
	cluster, err := costmodel.ParseCluster(s.cluster)
	if err != nil {
		t.Fatal(err)
	}
	var refs []profiles.Reference
	for _, n := range cluster.Nodes {
		for _, m := range n.Devices {
			r, err := profiles.Lookup(m.Device)
			if err != nil {
				t.Fatal(err)
			}
			if !slices.ContainsFunc(refs, func(have profiles.Reference) bool { return have.Name == r.Name }) {
				refs = append(refs, r)
			}
		}
	}
	p := profiles.Merge(refs)
	if cluster, err = cluster.Named(p); err != nil {
		t.Fatal(err)
	}
	if cluster, err = fit.AssumeLinks(p, &costmodel.Profile{}, cluster); err != nil {
		t.Fatal(err)
	}
	if cluster, err = cluster.Resolve(p, "", ""); err != nil {
		t.Fatal(err)
	}
	job := costmodel.Job{
		Model: flexModel(s.model), Cluster: cluster, SeqLen: 1024, DType: op.BF16, Recompute: costmodel.RecomputeNone, RingBuffers: 2, LossChunk: 1024, OverlapZero: true,
	}
	c, err := groupcost.FromLaws(t.Context(), costmodel.NewPredictor(costmodel.AssumeLinks(p, cluster)), job, groupcost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// flexRow is one batch. Times are predicted, Planning is measured.
type flexRow struct {
	Tokens, Longest units.Tokens
	Micro           int
	Time            map[string]units.Seconds
	Bound           units.Seconds
	Planning        map[string]time.Duration
}

// flexStrategies are the columns, in order. "static-padded" is static whose groups always
// compute all tokens that they have room for; "apart" is each device type planned by
// itself, by us; "thorough" is evenkeel as solve runs it, of few sequences, and "evenkeel"
// as serve does. flexsp has a table of its own.
func flexStrategies() []string {
	return []string{"static", "static-padded", "adaptive", "bfd", "megatron-dynamic-cp", "fcp", "apart", "evenkeel", "thorough"}
}

// flexPlanners are the strategies whose planning is timed.
func flexPlanners() []string { return []string{"fcp", "evenkeel", "thorough"} }

// flexBatch is batch i of a setting.
func flexBatch(t testing.TB, s flexSetting, i int) []units.Tokens {
	t.Helper()
	d, err := workload.ParseDistribution(s.lengths)
	if err != nil {
		t.Fatal(err)
	}
	b, err := workload.Batch(d.Lengths(s.size*(i+1)), s.size, i)
	if err != nil {
		t.Fatal(err)
	}
	if s.family == "few" {
		b = workload.Shape{Multiple: 128, Limit: s.context, Truncate: true}.Apply(b).Lengths
	}
	return b
}

// planBatch plans one batch with all strategies but flexsp. The row has no bound.
func planBatch(t testing.TB, s flexSetting, c *groupcost.Costs, planner *batch.Planner, i int) flexRow {
	t.Helper()
	lengths := flexBatch(t, s, i)
	p := flexProblem(t, c, lengths)
	row := flexRow{Longest: slices.Max(lengths), Time: map[string]units.Seconds{}, Planning: map[string]time.Duration{}}
	for _, n := range lengths {
		row.Tokens += n
	}
	all := batch.Strategies(batch.Settings{Longest: s.context, Fast: true})
	for _, strategy := range all[:len(all)-1] {
		begin := time.Now()
		plan, err := strategy.Solve(t.Context(), p)
		if err != nil {
			continue // not legal on these devices; its column stays empty
		}
		row.keep(t, strategy.Name(), p, plan, time.Since(begin))
		if s.family == "burst" && strategy.Name() == "static" {
			row.Time["static-padded"] = withFullBuffers(p, plan)
		}
	}
	begin := time.Now()
	plan, err := planner.Plan(t.Context(), p)
	if err != nil {
		t.Fatal(err)
	}
	row.keep(t, "evenkeel", p, plan, time.Since(begin))
	row.Micro = len(plan.Micro)
	if s.family == "few" {
		begin = time.Now()
		if plan, err = batch.NewPlanner(batch.Options{Effort: batch.Thorough}).Plan(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		row.keep(t, "thorough", p, plan, time.Since(begin))
	}
	if len(c.Pools) > 1 {
		if apart := plannedApart(t, c, lengths); apart > 0 {
			row.Time["apart"] = apart
		}
	}
	return row
}

// withFullBuffers is what a plan takes whose groups fill their tokens up to what they have room for, by
// one more sequence, as FCP's static baseline runs buffers of a fixed length.
func withFullBuffers(p *batch.Problem, plan *batch.Plan) units.Seconds {
	full, filled := *p, batch.Plan{Micro: slices.Clone(plan.Micro)}
	full.Lengths = slices.Clone(p.Lengths)
	for i := range filled.Micro {
		groups := slices.Clone(filled.Micro[i].Groups)
		for j := range groups {
			g := &groups[j]
			if tail := p.Classes[g.Class].Cap - g.Tokens; tail > 0 {
				g.Sequences = append(slices.Clone(g.Sequences), len(full.Lengths))
				full.Lengths = append(full.Lengths, tail)
			}
		}
		filled.Micro[i].Groups = groups
	}
	batch.Evaluate(&full, &filled)
	return filled.Time
}

// bound is what no plan of batch i beats.
func (s flexSetting) bound(t testing.TB, c *groupcost.Costs, i int) units.Seconds {
	t.Helper()
	b, err := batch.LowerBound(t.Context(), flexProblem(t, c, flexBatch(t, s, i)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func (r *flexRow) keep(t testing.TB, name string, p *batch.Problem, plan *batch.Plan, took time.Duration) {
	t.Helper()
	if found := batch.Check(p, plan); len(found) > 0 {
		t.Fatalf("%s: %v", name, found[0])
	}
	r.Time[name], r.Planning[name] = plan.Time, took
}

// plannedApart gives every device type its share of the batch and plans it by
// itself: sequences, longest first, go to the type that has the least work so far
// for its devices. The step takes as long as the slowest type; 0 if a share does
// not fit its type.
func plannedApart(t testing.TB, c *groupcost.Costs, lengths []units.Tokens) units.Seconds {
	t.Helper()
	shares := make([][]units.Tokens, len(c.Pools))
	work := make([]float64, len(c.Pools))
	sorted := slices.Clone(lengths)
	slices.SortFunc(sorted, func(a, b units.Tokens) int { return cmp.Compare(b, a) })
	for _, n := range sorted {
		best, least := -1, 0.0
		for pool := range c.Pools {
			if w, ok := leastWork(c, pool, n); ok && (best < 0 || work[pool]+w < least) {
				best, least = pool, work[pool]+w
			}
		}
		if best < 0 {
			return 0
		}
		shares[best], work[best] = append(shares[best], n), least
	}
	var slowest units.Seconds
	for pool, share := range shares {
		if len(share) == 0 {
			continue
		}
		p := ofPool(t, c, pool, share)
		plan, err := batch.NewPlanner(batch.Options{}).Plan(context.Background(), p)
		if err != nil {
			return 0
		}
		slowest = max(slowest, plan.Time)
	}
	return slowest
}

// leastWork is the least share of a type's time that a sequence takes.
func leastWork(c *groupcost.Costs, pool int, n units.Tokens) (float64, bool) {
	least, ok := 0.0, false
	for i, k := range c.Classes {
		if k.Cap < n || k.Uses[pool] != k.Degree() {
			continue
		}
		w := float64(c.Time(i, n)) * float64(k.Degree()) / float64(c.Pools[pool].Count())
		if !ok || w < least {
			least, ok = w, true
		}
	}
	return least, ok
}

// ofPool is the problem of a share on the devices of one type alone.
func ofPool(t testing.TB, c *groupcost.Costs, pool int, share []units.Tokens) *batch.Problem {
	t.Helper()
	whole, err := batch.NewProblem(c, share)
	if err != nil {
		t.Fatal(err)
	}
	p := *whole
	p.Fleet = whole.Fleet[pool : pool+1]
	own := ownPrices{costs: c}
	p.Classes = nil
	for i, k := range whole.Classes {
		if k.Uses[pool] == k.Degree() {
			k.Uses = k.Uses[pool : pool+1]
			if k.Shares != nil {
				k.Shares = k.Shares[pool : pool+1]
			}
			p.Classes, own.of = append(p.Classes, k), append(own.of, i)
		}
	}
	p.Costs = own
	return &p
}

// ownPrices are the prices of some classes.
type ownPrices struct {
	costs *groupcost.Costs
	of    []int
}

func (o ownPrices) Time(class int, s units.Tokens) units.Seconds {
	return o.costs.Time(o.of[class], s)
}

// fields writes a row out.
func (l flexLine) fields() []string {
	number := func(v float64) string {
		if v == 0 {
			return ""
		}
		return strconv.FormatFloat(v, 'g', 9, 64)
	}
	f := []string{l.family, l.setting, l.lengths, strconv.Itoa(l.batch), strconv.Itoa(int(l.Tokens)), strconv.Itoa(int(l.Longest)), strconv.Itoa(l.Micro)}
	for _, name := range flexStrategies() {
		f = append(f, number(float64(l.Time[name])))
	}
	f = append(f, number(float64(l.Bound)))
	for _, name := range flexPlanners() {
		f = append(f, number(l.Planning[name].Seconds()))
	}
	return f
}

func flexHeader() []string {
	f := []string{"family", "setting", "lengths", "batch", "length_tokens", "longest_tokens", "micro_batches"}
	for _, name := range flexStrategies() {
		f = append(f, name+"_s")
	}
	f = append(f, "lower_bound_s")
	for _, name := range flexPlanners() {
		f = append(f, name+"_planning_s")
	}
	return f
}

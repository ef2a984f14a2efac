package results

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile/importer"
	"github.com/evenkeel/evenkeel/results/profiles"
	"github.com/evenkeel/evenkeel/solver"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// nodesOf is count nodes of size devices of a GPU model.
type nodesOf struct {
	count, size int
	device      string
}

// mixedSetting is a cluster of unequal GPUs on which strategies are compared.
// None of it is measured: times are the simulator's.
type mixedSetting struct {
	name  string
	nodes []nodesOf
}

// mixedSettings are those of the HexiSeq paper (arXiv 2605.07569, section 5) as
// far as it states them: numbers and types of GPUs; which of them share a node,
// and in the first three simulations the counts by type, are our proposals.
func mixedSettings() []mixedSetting {
	return []mixedSetting{
		{"phys-8: 4 H100, 4 A100", []nodesOf{{1, 4, "h100_sxm"}, {1, 4, "a100_sxm"}}},
		{"phys-16: 8 H100, 8 A100", []nodesOf{{1, 8, "h100_sxm"}, {1, 8, "a100_sxm"}}},
		{"sim-1: 8 H100, 16 A100, 8 L40S", []nodesOf{{1, 8, "h100_sxm"}, {2, 8, "a100_sxm"}, {1, 8, "l40s"}}},
		{"sim-2: 16 each of H100, A100, A800, L40S", []nodesOf{{2, 8, "h100_sxm"}, {2, 8, "a100_sxm"}, {2, 8, "a800_sxm"}, {2, 8, "l40s"}}},
		{"sim-3: 16 H100, 32 A100, 40 A800, 40 L40S", []nodesOf{{2, 8, "h100_sxm"}, {4, 8, "a100_sxm"}, {5, 8, "a800_sxm"}, {5, 8, "l40s"}}},
	}
}

// flopPairs are the paper's simulations 4 and 5: a mixed cluster beside one of
// A100 with as many FLOP/s, one H100 counted as three A100.
func flopPairs() [][2]mixedSetting {
	return [][2]mixedSetting{
		{{"sim-4: 48 H100, 8 A100", []nodesOf{{6, 8, "h100_sxm"}, {1, 8, "a100_sxm"}}}, {"152 A100", []nodesOf{{19, 8, "a100_sxm"}}}},
		{{"sim-5: 52 H100, 4 A100, 8 A800", []nodesOf{{6, 8, "h100_sxm"}, {1, 4, "h100_sxm"}, {1, 4, "a100_sxm"}, {1, 8, "a800_sxm"}}}, {"168 A100", []nodesOf{{21, 8, "a100_sxm"}}}},
	}
}

// gptLike are the paper's model sizes; 70B also with eight key-value heads, as
// models of that size have had since 2023.
func gptLike() []costmodel.Model {
	gpt := func(name string, layers, hidden, heads, kv int) costmodel.Model {
		return costmodel.Model{Name: name, Layers: layers, Hidden: hidden, FFN: 4 * hidden, QHeads: heads, KVHeads: kv, HeadDim: hidden / heads, Vocab: 50304, TiedEmbeddings: true}
	}
	return []costmodel.Model{
		gpt("gpt-3b", 32, 2560, 32, 32), gpt("gpt-7b", 32, 4096, 32, 32), gpt("gpt-13b", 40, 5120, 40, 40), gpt("gpt-70b", 80, 8192, 64, 64),
		{Name: "llama-70b", Layers: 80, Hidden: 8192, FFN: 28672, QHeads: 64, KVHeads: 8, HeadDim: 128, Vocab: 128256, GatedMLP: true},
	}
}

// mixedLinks are one-directional datasheet rates (bytes/s) of what no reference
// has measured: the A800's cut NVLink, PCIe 4, and RDMA between nodes.
func mixedLinks() []costmodel.Link {
	return []costmodel.Link{{Name: "nvlink_a800", Rate: 200e9}, {Name: "pcie4", Rate: 26e9}, {Name: "rdma", Rate: 25e9}, {Name: "rdma_fast", Rate: 50e9}}
}

// insideLink is the link class inside a node of a GPU model.
func insideLink(device string) string {
	switch device {
	case "a800_sxm":
		return "nvlink_a800"
	case "l40s":
		return "pcie4"
	}
	return "nvlink"
}

// cluster writes a setting out; nics is the network cards of a node, 0 for one
// a device.
func (s mixedSetting) cluster(nics int, network string) costmodel.Cluster {
	c := costmodel.Cluster{Network: network, Links: mixedLinks()}
	for _, n := range s.nodes {
		for range n.count {
			node := costmodel.Node{Name: fmt.Sprintf("n%d", len(c.Nodes)), Devices: []op.Member{{Device: n.device, Count: n.size}}, NICs: min(nics, n.size)}
			if n.size > 1 {
				node.Link = insideLink(n.device)
			}
			c.Nodes = append(c.Nodes, node)
		}
	}
	if len(c.Nodes) == 1 {
		c.Network = ""
	}
	return c
}

// mixedProfile has the references of H100 and A100, and A800 and L40S carried
// over from them by the ratios of the datasheets.
func mixedProfile(t testing.TB) *costmodel.Profile {
	t.Helper()
	var refs []profiles.Reference
	var lenders []*costmodel.Profile
	for _, name := range []string{"h100_sxm", "a100_sxm"} {
		r, err := profiles.Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		refs, lenders = append(refs, r), append(lenders, r.Profile)
	}
	p := profiles.Merge(refs)
	for _, m := range importer.Models() {
		if m.Name != "a800_sxm" && m.Name != "l40s" {
			continue
		}
		b, err := fit.Borrowed(m.Of("borrowed"), fit.Donors(lenders...))
		if err != nil {
			t.Fatal(err)
		}
		fit.Assume(b)
		p.Devices, p.Laws = append(p.Devices, b.Devices...), append(p.Laws, b.Laws...)
	}
	return p
}

// mixedJob is a training step of eight sequences, as the paper's global batch.
func mixedJob(m costmodel.Model, c costmodel.Cluster, seq units.Tokens) costmodel.Job {
	return costmodel.Job{
		Model: m, Cluster: c, SeqLen: seq, DType: op.BF16, Recompute: costmodel.RecomputeFull, RingBuffers: 2, LossChunk: min(4096, seq),
		OverlapZero: true, Accumulate: 8,
	}
}

// mixedRow is one comparison. Times are simulated, Planning is measured.
type mixedRow struct {
	Setting, Model string
	SeqLen         units.Tokens
	NICs, Ranks    int
	Time           map[string]units.Seconds // by strategy, of what fits
	Bound          units.Seconds
	Recommended    string        // the strategy whose plan solve recommends
	Taken          units.Seconds // and its time
	Planning       time.Duration // all strategies, the bound and the account
	Infeasible     string
	Why            string // of ours
	// InTwos is the time of the other strategies' layouts with micro-batches in twos, where
	// they fit and gain by it, else as they are.
	InTwos map[string]units.Seconds
	// SideBySide is what the eight sequences take at the same time, each in a group of its
	// own, as plans of a batch: by us and by the best of today's; 0 where no group holds one.
	SideBySide, TodaySideBySide units.Seconds
}

// compare solves one problem with every strategy.
func compare(t testing.TB, p *costmodel.Profile, name string, m costmodel.Model, c costmodel.Cluster, seq units.Tokens, nics int) mixedRow {
	t.Helper()
	row := mixedRow{Setting: name, Model: m.Name, SeqLen: seq, NICs: nics, Ranks: len(c.Ranks()), Time: map[string]units.Seconds{}, InTwos: map[string]units.Seconds{}}
	c, err := c.Resolve(p, "", "")
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	start := time.Now()
	q, err := solver.NewProblem(costmodel.AssumeLinks(p, c), mixedJob(m, c, seq))
	if err != nil {
		row.Infeasible = err.Error()
		return row
	}
	plan, err := solver.Solve(t.Context(), q, nil, nil)
	row.Planning = time.Since(start)
	if err != nil {
		row.Infeasible = err.Error()
		return row
	}
	row.Bound, row.Recommended, row.Taken = plan.Bound, plan.Strategy, plan.Step.Time.Mid
	row.SideBySide, row.TodaySideBySide = besideEachOther(t, q)
	sim, err := costmodel.NewSimulator(q.Predictor, q.Job)
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range plan.Compared {
		if k.Verdict == solver.Infeasible || k.Time.Mid <= 0 || !slices.Contains(mixedStrategies(), k.Strategy) {
			continue
		}
		row.Time[k.Strategy] = k.Time.Mid
		if k.Strategy == solver.Default {
			row.Why = k.Why
			continue
		}
		l := plan.Layout()
		if k.Layout != nil {
			l = *k.Layout
		}
		row.InTwos[k.Strategy] = min(k.Time.Mid, inTwos(t, sim, l))
	}
	return row
}

// besideEachOther is what the sequences of a job take side by side by our plan and by the
// best of today's; 0 where there is none.
func besideEachOther(t testing.TB, q *solver.Problem) (ours, todays units.Seconds) {
	t.Helper()
	p, err := batch.SameLengths(t.Context(), q.Predictor, q.Job)
	if err != nil {
		return 0, 0
	}
	for _, s := range batch.Strategies(batch.Settings{Longest: q.Job.SeqLen, Fast: true}) {
		plan, err := s.Solve(t.Context(), p)
		switch {
		case err != nil:
		case s.Name() == (batch.Evenkeel{}).Name():
			ours = plan.Time
		case s.Claims().Baseline && (todays == 0 || plan.Time < todays):
			todays = plan.Time
		}
	}
	return ours, todays
}

// inTwos is what a layout takes with micro-batches in twos, their rings in turn where that is
// faster; +Inf where memory is too small.
func inTwos(t testing.TB, sim *costmodel.Simulator, l costmodel.Layout) units.Seconds {
	t.Helper()
	l.TwoBatch = true
	best := inTwosAs(t, sim, l)
	for way := 1; way < 4 && len(l.Groups) > 1; way++ {
		l.WeaveForward, l.WeaveBackward = way&1 > 0, way&2 > 0
		best = min(best, inTwosAs(t, sim, l))
	}
	return best
}

func inTwosAs(t testing.TB, sim *costmodel.Simulator, l costmodel.Layout) units.Seconds {
	t.Helper()
	if slices.ContainsFunc(sim.Memory(l), func(m costmodel.Memory) bool { return !m.Fits() }) {
		return units.Seconds(math.Inf(1))
	}
	at, err := sim.Time(l)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// ratio is the time of the fastest of the named strategies over ours; NaN where
// none of them fits.
func (r mixedRow) ratio(names ...string) float64 { return r.ratioOf(r.Time, names...) }

func (r mixedRow) ratioOf(times map[string]units.Seconds, names ...string) float64 {
	best := math.Inf(1)
	for _, n := range names {
		if t, ok := times[n]; ok {
			best = min(best, float64(t))
		}
	}
	if math.IsInf(best, 1) {
		return math.NaN()
	}
	return best / float64(r.Time[solver.Default])
}

// randomSetting draws a cluster of 2 to 32 GPUs of 1 to 4 types.
func randomSetting(r *rand.Rand, n int) mixedSetting {
	types := []string{"h100_sxm", "a100_sxm", "a800_sxm", "l40s"}
	r.Shuffle(len(types), func(i, j int) { types[i], types[j] = types[j], types[i] })
	types = types[:1+r.IntN(4)]
	var s mixedSetting
	left := 2 + r.IntN(31)
	for left > 0 {
		size := min(left, 1<<r.IntN(4))
		s.nodes = append(s.nodes, nodesOf{1, size, types[r.IntN(len(types))]})
		left -= size
	}
	var words []string
	for _, k := range s.nodes {
		words = append(words, fmt.Sprintf("%d %s", k.size, k.device))
	}
	s.name = fmt.Sprintf("random-%03d: %s", n, strings.Join(words, " + "))
	return s
}

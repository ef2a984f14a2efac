package groupcost_test

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/reference"
	"github.com/evenkeel/evenkeel/internal/units"
)

// referenceJob is a job on real GPUs' laws, the profile changed by some.
func referenceJob(t testing.TB, cluster string, change func(*costmodel.Profile)) (*costmodel.Predictor, costmodel.Job) {
	t.Helper()
	profile, job := reference.Job(t, reference.Llama(32), cluster, 1)
	if change != nil {
		change(profile)
	}
	return costmodel.NewPredictor(profile), job
}

func fromLaws(t testing.TB, q *costmodel.Predictor, j costmodel.Job) *groupcost.Costs {
	t.Helper()
	c, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// pooled lists the classes of one pool alone that keep activations or recompute,
// by degree: of several of a degree the fastest at a length.
func pooled(c *groupcost.Costs, pool int, recompute bool, s units.Tokens) map[int]int {
	best := map[int]int{}
	for i, k := range c.Classes {
		if k.Recompute != recompute || k.Uses[pool] != k.Degree() {
			continue
		}
		if b, ok := best[k.Degree()]; !ok || c.Time(i, s) < c.Time(b, s) {
			best[k.Degree()] = i
		}
	}
	return best
}

// A B200 is never slower than an H100, nor that than an A100, at any degree and
// length.
func TestFasterTypesPriceFaster(t *testing.T) {
	q, j := referenceJob(t, "2x8 b200_sxm + 2x8 h100_sxm + 2x8 a100_sxm", nil)
	c := fromLaws(t, q, j)
	for _, s := range lengths() {
		for pool := 1; pool < 3; pool++ {
			fast, slow := pooled(c, pool-1, false, s), pooled(c, pool, false, s)
			if len(fast) != 9 || len(slow) != 9 {
				t.Fatalf("%d and %d degrees, want 1 to 8 and 16", len(fast), len(slow))
			}
			for d, i := range fast {
				if a, b := c.Time(i, s), c.Time(slow[d], s); a >= b {
					t.Errorf("%d of %s: %v for %d tokens, of %s %v", d, c.Pools[pool-1].Device, a, s, c.Pools[pool].Device, b)
				}
			}
		}
	}
}

func lengths() []units.Tokens {
	return []units.Tokens{100, 1000, 4096, 16384, 65536, 262144, 1 << 20}
}

// Over powers of two devices a sequence's time falls, or falls and then rises, but
// never falls again; memory rises with every device; and recomputing holds more
// and takes longer.
func TestDegreeCurves(t *testing.T) {
	for _, cluster := range []string{"8x8 a100_sxm", "8x8 h100_sxm", "4x8 rtx_pro_6000_server"} {
		q, j := referenceJob(t, cluster, nil)
		c := fromLaws(t, q, j)
		for _, s := range lengths() {
			at := pooled(c, 0, false, s)
			rising := false
			for d := 2; d <= 32; d *= 2 {
				now, before := c.Time(at[d], s), c.Time(at[d/2], s)
				if rising && now < 0.98*before {
					t.Errorf("%s, %d tokens: %v on %d devices after it rose to %v", cluster, s, now, d, before)
				}
				rising = rising || now > before
			}
		}
		kept, again := pooled(c, 0, false, 4096), pooled(c, 0, true, 4096)
		before := units.Tokens(0)
		for d := 1; d <= 64; d++ {
			i, ok := kept[d]
			if !ok {
				continue
			}
			if c.Classes[i].Cap <= before {
				t.Errorf("%s: %d devices hold %d tokens, fewer hold %d", cluster, d, c.Classes[i].Cap, before)
			}
			before = c.Classes[i].Cap
			if r := again[d]; c.Classes[r].Cap <= before || c.Time(r, 4096) <= c.Time(i, 4096) {
				t.Errorf("%s: recomputing on %d: %+v takes %v, keeping %+v takes %v", cluster, d, c.Classes[r], c.Time(r, 4096), c.Classes[i], c.Time(i, 4096))
			}
		}
	}
}

// With links that take no time, d devices take a dth of one device's time but for
// what kernels lose on smaller pieces, and even the exchange of parameters is free.
func TestFreeLinks(t *testing.T) {
	q, j := referenceJob(t, "2x8 h100_sxm", func(p *costmodel.Profile) {
		for i := range p.Laws {
			if p.Laws[i].Group != "" {
				p.Laws[i] = p.Laws[i].Slowed(1e-9)
			}
		}
		p.Steps = nil
	})
	c := fromLaws(t, q, j)
	if c.MicroBase > 1e-6 {
		t.Errorf("exchange of parameters over free links: %v", c.MicroBase)
	}
	for _, s := range []units.Tokens{16384, 65536, 262144} {
		at := pooled(c, 0, false, s)
		one := c.Time(at[1], s)
		for _, d := range []int{2, 4, 8, 16} {
			ratio := float64(c.Time(at[d], s)) * float64(d) / float64(one)
			if ratio < 0.9 || ratio > 1.15 {
				t.Errorf("%d tokens on %d devices: %.2f of one device's work", s, d, ratio)
			}
		}
	}
}

// The groups of clusters of 64 and 128 GPUs of two to four types are sound: shares
// add up to one, groups are those of a layout, prices rise, and the largest group
// has all devices. How long pricing takes is for BenchmarkFromLaws.
func TestMixedClusters(t *testing.T) {
	if testing.Short() {
		t.Skip("prices clusters of up to 128 GPUs, some 10 s on a busy machine")
	}
	for _, cluster := range []string{
		"4x8 h100_sxm + 4x8 a100_sxm",
		"8x8 h100_sxm + 8x8 a100_sxm",
		"2x8 b200_sxm + 2x8 h100_sxm + 4x8 a100_sxm",
		"4x8 b200_sxm + 4x8 h100_sxm + 4x8 a100_sxm + 4x8 rtx_pro_6000_server",
		"8x(4 h100_sxm + 4 a100_sxm)",
	} {
		q, j := referenceJob(t, cluster, nil)
		begin := time.Now()
		c := fromLaws(t, q, j)
		t.Logf("%s: %d classes in %v", cluster, len(c.Classes), time.Since(begin))
		devices, largest := len(j.Cluster.Ranks()), 0
		for i, k := range c.Classes {
			checkClass(t, c, i)
			largest = max(largest, k.Degree())
		}
		if largest != devices {
			t.Errorf("%s: the largest group has %d of %d devices", cluster, largest, devices)
		}
	}
}

// checkClass checks one class of a mixed cluster.
func checkClass(t *testing.T, c *groupcost.Costs, i int) {
	t.Helper()
	k := c.Classes[i]
	sum, pools := 0.0, 0
	for p, u := range k.Uses {
		if u > 0 {
			pools++
		}
		if k.Shares != nil {
			sum += float64(u) * k.Shares[p]
		}
	}
	switch {
	case pools > 1 && math.Abs(sum-1) > 1e-9, pools == 1 && k.Shares != nil:
		t.Errorf("%s: shares %v of %v devices", k.Name, k.Shares, k.Uses)
	case k.One && pools > 1, k.Cap < 1, k.Base < 0, k.Heads < 1, k.Degree()%k.Heads != 0, k.OwnLast:
		t.Errorf("%+v", k)
	}
	// The groups are those of a layout of the class's devices.
	shares := make([]float64, 0, k.Degree())
	for p, u := range k.Uses {
		for range u {
			if k.Shares == nil {
				shares = append(shares, 1/float64(k.Degree()))
			} else {
				shares = append(shares, k.Shares[p])
			}
		}
	}
	l := costmodel.ZigZag(costmodel.SplitByShares(1<<20, shares), k.Groups)
	if err := l.Validate(1<<20, k.Degree(), reference.Llama(1).QHeads); err != nil {
		t.Errorf("%s: %v", k.Name, err)
	}
	if len(k.Groups)*k.Heads != k.Degree() {
		t.Errorf("%s: %d groups of %d", k.Name, len(k.Groups), k.Heads)
	}
	before := units.Seconds(0)
	for s := units.Tokens(1); s < 1<<22; s += s/7 + 1 {
		now := c.Time(i, s)
		if !(now > before) || math.IsInf(float64(now), 0) {
			t.Errorf("%s: %d tokens take %v, fewer %v", k.Name, s, now, before)
		}
		before = now
	}
}

// A node of either type together beats two nodes of the slower type, and holds
// what its tightest member allows.
func TestMixedGroupsUseTheFasterType(t *testing.T) {
	q, j := referenceJob(t, "2x8 h100_sxm + 2x8 a100_sxm", nil)
	c := fromLaws(t, q, j)
	find := func(h, a int) int {
		for i, k := range c.Classes {
			if k.Uses[0] == h && k.Uses[1] == a && !k.Recompute {
				return i
			}
		}
		t.Fatalf("no class of %d and %d", h, a)
		return -1
	}
	slow, mixed, fast := find(0, 16), find(8, 8), find(16, 0)
	if k := c.Classes[mixed]; k.Shares[0] <= k.Shares[1] {
		t.Errorf("H100 holds %v, A100 %v", k.Shares[0], k.Shares[1])
	}
	if c.Classes[mixed].Cap >= c.Classes[slow].Cap {
		t.Errorf("a mix whose H100 hold more tokens each holds %d in all, equal shares %d", c.Classes[mixed].Cap, c.Classes[slow].Cap)
	}
	for _, s := range []units.Tokens{4096, 32768, 131072} {
		a, m, h := c.Time(slow, s), c.Time(mixed, s), c.Time(fast, s)
		if !(h < m && m < a) {
			t.Errorf("%d tokens: %v on 16 H100, %v on 8 and 8, %v on 16 A100", s, h, m, a)
		}
		// Rates add: the mix is within a fifth of what both give together.
		if both := 2 / (1/float64(a) + 1/float64(h)); float64(m) > 1.2*both {
			t.Errorf("%d tokens: %v on the mix, the rates of both give %v", s, m, units.Seconds(both))
		}
	}
}

// Where types share a node without a fast link between them, heads are dealt by
// speed, and the devices' heads make up the model's.
func TestUnequalHeads(t *testing.T) {
	q, j := referenceJob(t, "2x(4 h100_sxm + 4 a100_sxm)", nil)
	c := fromLaws(t, q, j)
	found := 0
	for _, k := range c.Classes {
		if k.QHeads == nil {
			continue
		}
		found++
		sum := 0
		for p, u := range k.Uses {
			sum += u * k.QHeads[p]
		}
		if sum != reference.Llama(1).QHeads || k.Heads != k.Degree() || k.QHeads[0] < k.QHeads[1] {
			t.Errorf("%s: heads %v", k.Name, k.QHeads)
		}
	}
	if found == 0 {
		t.Error("no group deals heads by speed")
	}
}

func TestLawsErrors(t *testing.T) {
	q, j := referenceJob(t, "1x2 a100_sxm", nil)
	j.Zero = costmodel.Zero0 // 8 billion parameters of 16 bytes
	if _, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{}); err == nil || !strings.Contains(err.Error(), "zero3") {
		t.Errorf("states beyond memory: %v", err)
	}
	q, j = referenceJob(t, "1x2 a100_sxm", func(p *costmodel.Profile) {
		for i := range p.Laws {
			if p.Laws[i].Op == op.KindSwiGLU {
				p.Laws[i].Device = p.Devices[0].Name
				p.Laws = append(p.Laws[:i], p.Laws[i+1:]...)
				return
			}
		}
	})
	var missing *costmodel.MissingLawError
	if _, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{}); !errors.As(err, &missing) || missing.Op != op.KindSwiGLU {
		t.Errorf("no law of swiglu: %v", err)
	}
	j.Model.Layers = 0
	if _, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{}); err == nil || !strings.Contains(err.Error(), "layers") {
		t.Errorf("a model without layers: %v", err)
	}
}

func TestOptions(t *testing.T) {
	q, j := referenceJob(t, "1x4 h100_sxm + 1x4 a100_sxm", nil)
	count := func(o groupcost.Options) (mixed, again, kept int) {
		c, err := groupcost.FromLaws(t.Context(), q, j, o)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range c.Classes {
			if k.Shares != nil {
				mixed++
			}
			if k.Recompute {
				again++
			} else {
				kept++
			}
		}
		return mixed, again, kept
	}
	if mixed, again, kept := count(groupcost.Options{}); mixed == 0 || again == 0 || kept == 0 {
		t.Errorf("all: %d mixed, %d recompute, %d keep", mixed, again, kept)
	}
	if mixed, again, _ := count(groupcost.Options{SameType: true, NoRecompute: true}); mixed+again != 0 {
		t.Errorf("equal types without recomputation: %d mixed, %d recompute", mixed, again)
	}
	if _, _, kept := count(groupcost.Options{Recompute: true}); kept != 0 {
		t.Errorf("only recomputation: %d keep", kept)
	}
}

// Of sequences that are all as long, a group of one and one of all it may have take what
// they are simulated to take, or hardly more where several take more than so many times
// one; and classes that do not hold one are left out.
func TestPricesOfOneLength(t *testing.T) {
	const count = 6
	q, j := referenceJob(t, "1x4 h100_sxm + 1x4 a100_sxm", nil)
	for _, s := range []units.Tokens{4096, 40000, 170000} {
		c, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{Of: costmodel.Documents{Tokens: s, Count: count}})
		if err != nil {
			t.Fatal(err)
		}
		several := 0
		for i, k := range c.Classes {
			if k.Cap < s {
				t.Errorf("%s holds %d tokens, not one of %d", k.Name, k.Cap, s)
			}
			if k.Uses[0]+k.Uses[1] != 4 || k.Uses[0]%4 != 0 {
				continue
			}
			of := j
			of.Cluster.Nodes = j.Cluster.Nodes[:1]
			if k.Uses[0] == 0 {
				of.Cluster.Nodes = j.Cluster.Nodes[1:]
			}
			packer, err := costmodel.NewPacker(q, of)
			if err != nil {
				t.Fatal(err)
			}
			n := int(min(count, k.Cap/s))
			if n > 1 {
				several++
			}
			for _, n := range []int{1, n} {
				x, err := packer.Passes(k.Groups, slices.Repeat([]float64{0.25}, 4), []costmodel.Documents{{Tokens: s, Count: n}})
				if err == nil && k.OwnLast {
					x, err = packer.OwnLast()
				}
				if err != nil {
					t.Fatal(err)
				}
				if got, want := k.Base+units.Seconds(n)*c.Time(i, s), x.Time(k.Recompute); got < want*(1-1e-9) || got > want*1.007 {
					t.Errorf("%s: %d of %d tokens: %v by the prices, %v by simulation (%.4f)", k.Name, n, s, got, want, got/want)
				}
			}
		}
		if several == 0 && s < 100000 {
			t.Errorf("no group of four has several of %d tokens", s)
		}
	}
	if _, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{NoRecompute: true, Of: costmodel.Documents{Tokens: 4 << 20, Count: 2}}); err == nil || !strings.Contains(err.Error(), "a sequence of 4194304 tokens") {
		t.Errorf("a sequence that fits nowhere: %v", err)
	}
}

// Where not even the states fit, the way out is one that makes them less: more devices do
// not while every device holds them whole.
func TestStatesThatFitNowhere(t *testing.T) {
	for zero, want := range map[costmodel.ZeRO]string{
		costmodel.Zero0: "no group of the cluster has memory for the model's states, which every device holds whole (zero0); shard more of them (zero3), and take more devices where that is not enough",
		costmodel.Zero2: "no group of the cluster has memory for its share of the model's states over 1 device; shard more of them (zero3), and take more devices where that is not enough",
		costmodel.Zero3: "no group of the cluster has memory for its share of the model's states over 1 device; take more devices, or a smaller model",
	} {
		q, j := referenceJob(t, "1x1 h100_sxm", nil)
		j.Zero = zero
		if _, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{}); err == nil || err.Error() != want {
			t.Errorf("%s: %v\nwant %s", zero, err, want)
		}
		_, err := groupcost.FromLaws(t.Context(), q, j, groupcost.Options{Of: costmodel.Documents{Tokens: 4096, Count: 2}})
		if way := want[strings.LastIndex(want, "; ")+2:]; err == nil || !strings.HasSuffix(err.Error(), "recompute activations, or "+way) {
			t.Errorf("%s, of one length: %v", zero, err)
		}
	}
}

// The same cluster gives the same classes and prices, whatever runs beside.
func TestDeterministic(t *testing.T) {
	q, j := referenceJob(t, "1x4 h100_sxm + 1x4 a100_sxm", nil)
	a, b := fromLaws(t, q, j), fromLaws(t, q, j)
	for i := range a.Classes {
		if a.Classes[i].Name != b.Classes[i].Name || a.Classes[i].Cap != b.Classes[i].Cap || a.Time(i, 12345) != b.Time(i, 12345) {
			t.Errorf("%+v, %+v", a.Classes[i], b.Classes[i])
		}
	}
}

func BenchmarkFromLaws(b *testing.B) {
	q, j := referenceJob(b, "4x8 b200_sxm + 4x8 h100_sxm + 4x8 a100_sxm + 4x8 rtx_pro_6000_server", nil)
	for b.Loop() {
		fromLaws(b, q, j)
	}
}

func BenchmarkTime(b *testing.B) {
	q, j := referenceJob(b, "1x8 h100_sxm", nil)
	c := fromLaws(b, q, j)
	s := units.Tokens(1)
	for b.Loop() {
		s = s*1103515245%200000 + 1
		c.Time(int(s)%len(c.Classes), s)
	}
}

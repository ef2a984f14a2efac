package solver

import (
	"context"
	"errors"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/strategy"
	"github.com/evenkeel/evenkeel/solver/internal/world"
)

// fits says whether a layout fits devices whose memory the test has changed.
func (d *room) fits(l costmodel.Layout) bool {
	return !slices.ContainsFunc(d.job.MemoryWith(l, func(r int) costmodel.DeviceMemory { return d.memory[r] }), func(m costmodel.Memory) bool { return !m.Fits() })
}

// tighten gives every rank a memory of its own around what it needs in a layout,
// some with a measured slope.
func (d *room) tighten(r *rand.Rand, l costmodel.Layout, least, span float64) {
	for i := range d.memory {
		if r.IntN(3) == 0 {
			d.memory[i].LayerToken = units.Bytes((0.7 + r.Float64()) * float64(d.job.LayerActivations()))
		}
	}
	for i, m := range d.job.MemoryWith(l, func(r int) costmodel.DeviceMemory { return d.memory[r] }) {
		d.memory[i].Capacity = units.Bytes((least + span*r.Float64()) * float64(max(m.Peak(), 1000)))
	}
}

// A proof must not be given where a layout fits, whatever its groups; and where
// memory is just what a layout needs, it must come soon below.
func TestProofOfInfeasibilityHolds(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	r := rand.New(rand.NewPCG(10, 1))
	proofs, fitting := 0, 0
	for range 300 {
		p := randomWorld(t, r)
		d := p.room()
		d.job.LossChunk = units.Tokens(1 + r.IntN(2000))
		if r.IntN(2) == 0 {
			d.job.Model.Layers = 40 // activations before buffers
		}
		l := world.RandomGrouped(r, p.posed)
		d.tighten(r, l, 0.4, 0.9)
		proven := d.proveInfeasible() != nil
		if proven {
			proofs++
		}
		for range 40 {
			if d.fits(l) {
				fitting++
				if proven {
					t.Fatalf("proven infeasible, but %+v fits", l)
				}
			}
			l = world.RandomGrouped(r, p.posed)
		}
	}
	if proofs < 20 || fitting < 20 {
		t.Errorf("only %d proofs and %d layouts that fit", proofs, fitting)
	}
	t.Logf("%d proofs, %d layouts that fit", proofs, fitting)
}

// The proof misses little where activations are what fills the memory: an even
// split over equal devices needs hardly more than it counts.
func TestProofIsTightForActivations(t *testing.T) {
	p := testProblem(t, "1x4 fast", 65536)
	d := p.room()
	d.job.Model.Layers = 40
	need := d.job.MemoryWith(p.posed.EqualRing(), func(r int) costmodel.DeviceMemory { return d.memory[r] })[0].Peak()
	for share, want := range map[float64]bool{0.90: true, 1.04: false} {
		for i := range d.memory {
			d.memory[i].Capacity = units.Bytes(share * float64(need))
		}
		if got := d.proveInfeasible() != nil; got != want {
			t.Errorf("with %.2f of what ring attention needs: proven %v, want %v", share, got, want)
		}
	}
}

func TestInfeasibleNamesTheTightestConstraint(t *testing.T) {
	with := func(memory units.Bytes) world.Device {
		d := world.Fast()
		d.Memory = memory
		return d
	}
	for _, tc := range []struct {
		dev  world.Device
		zero costmodel.ZeRO
		want []string
	}{
		{with(40 * units.MiB), "", []string{"no plan fits: ", "of weights, gradients and optimizer states already exceed the usable", "of rank 0 (fast on n0)", "way out: more devices, up to ", " times as many, or a smaller model; not enough: --recompute full --loss-chunk 256"}},
		{with(300 * units.MiB), "", []string{"no plan fits: ", "no layout over all ranks holds more than ", " of 65536 tokens", "activations", "a --seq-len of 11856 or less", "either with --recompute full"}},
		{with(900 * units.MiB), "", []string{"no plan fits: ", "activations", "way out: more devices, up to 2 times as many, or a --seq-len of 57196 or less (perhaps more, none above 59549), either with --recompute full --loss-chunk 256"}},
		{with(240 * units.MiB), costmodel.Zero0, []string{"states already exceed", "a --seq-len of 7322 or less", "either with --zero zero3 --recompute full --loss-chunk 256"}},
		{with(60 * units.MiB), costmodel.Zero0, []string{"states already exceed", " times as many, with --zero zero3 --recompute full --loss-chunk 256, or a smaller model"}},
	} {
		p := testProblem(t, "1x2 fast", 65536, tc.dev)
		p.Job.Zero = tc.zero
		_, err := Solve(context.Background(), p, nil, nil)
		var no *InfeasibleError
		if !errors.As(err, &no) || !no.Proven {
			t.Errorf("%v: %v", tc.dev.Memory, err)
			continue
		}
		for _, w := range tc.want {
			if !strings.Contains(err.Error(), w) {
				t.Errorf("%v: %q lacks %q", tc.dev.Memory, err, w)
			}
		}
	}
}

// What does not fit for what is kept free alone says so, and fits with nothing kept free; where
// a flag helps that is no risk, that is said alone.
func TestInfeasibleForWhatIsKeptFree(t *testing.T) {
	for _, tc := range []struct {
		share     float64 // of the memory that a ring of all devices needs
		recompute costmodel.Recompute
		fits      bool // with nothing kept free
		want      bool
	}{{1.02, costmodel.RecomputeFull, true, true}, {0.8, costmodel.RecomputeFull, false, false}, {1.02, costmodel.RecomputeNone, true, false}} {
		p := testProblem(t, "1x2 fast", 65536)
		p.Job.Recompute, p.Job.LossChunk = tc.recompute, 256
		p = problemOf(t, p.Profile, p.Job)
		need := p.posed.Sim.Memory(p.posed.EqualRing())[0].Peak()
		d := world.Fast()
		d.Memory = units.BytesOf(tc.share * float64(need) / costmodel.Usable)
		p = testProblem(t, "1x2 fast", 65536, d)
		p.Job.Recompute, p.Job.LossChunk, p.Job.MemoryReserve = tc.recompute, 256, 0.25
		p = problemOf(t, p.Profile, p.Job)
		_, err := Solve(context.Background(), p, nil, nil)
		var no *InfeasibleError
		if !errors.As(err, &no) {
			t.Fatal(err)
		}
		said := strings.HasPrefix(no.WayOut, "--memory-reserve 0% (which leaves nothing to communicators and fragmentation), or ")
		if said != tc.want {
			t.Errorf("with %v of what is needed: %q", tc.share, no.WayOut)
		}
		p.Job.MemoryReserve = 0
		if _, err := Solve(context.Background(), problemOf(t, p.Profile, p.Job), nil, nil); (err == nil) != tc.fits {
			t.Errorf("with %v of what is needed and nothing kept free: %v", tc.share, err)
		}
	}
}

// Of unequal devices the sequence that is said to fit does, and one beyond the most that may fit has
// no plan. A ring of all by the ledger's shares would hold 26,965 tokens of the first.
func TestTheLongestSequenceIsSaidTruly(t *testing.T) {
	said := regexp.MustCompile(`a --seq-len of (\d+) or less \(perhaps more, none above (\d+)\)`)
	for cluster, least := range map[string]units.Tokens{"1x(3 fast + 1 slow)": 48000, "1x(1 fast + 3 slow)": 150000} {
		small, large := world.Fast(), world.Slow()
		small.Memory, large.Memory = 240*units.MiB, 1500*units.MiB
		p := testProblem(t, cluster, 1<<20, small, large)
		m := said.FindStringSubmatch(p.room().wayOut())
		if m == nil {
			t.Fatalf("%s: %q", cluster, p.room().wayOut())
		}
		for _, w := range p.room().ways() {
			w.change(&p.Job)
		}
		of := func(digits string) units.Tokens {
			n, err := strconv.Atoi(digits)
			if err != nil {
				t.Fatal(err)
			}
			return units.Tokens(n)
		}
		if p.Job.SeqLen = of(m[1]); p.Job.SeqLen < least {
			t.Errorf("%s: %d tokens, want %d at least", cluster, int64(p.Job.SeqLen), int64(least))
		}
		if _, err := Solve(t.Context(), problemOf(t, p.Profile, p.Job), nil, nil); err != nil {
			t.Errorf("%s: %v", cluster, err)
		}
		p.Job.SeqLen = of(m[2]) + 8
		if problemOf(t, p.Profile, p.Job).room().proveInfeasible() == nil {
			t.Errorf("%s: %d tokens are not ruled out", cluster, int64(p.Job.SeqLen))
		}
	}
}

// Who follows a way out to the letter has a plan.
func TestWaysOutHold(t *testing.T) {
	if testing.Short() {
		t.Skip("plans dozens of times what other tests plan once")
	}
	times, length := regexp.MustCompile(`^more devices, up to (\d+) times as many`), regexp.MustCompile(`a --seq-len of (\d+) or less`)
	flags := map[string]int{}
	for i, memory := range []units.Bytes{180, 240, 300, 600, 900, 1500} {
		node := []string{"x3 fast", "x(2 fast + 1 slow)"}[i%2]
		for _, zero := range []costmodel.ZeRO{costmodel.Zero0, costmodel.Zero3} {
			for _, tokens := range []units.Tokens{8192, 65536, 1 << 20} {
				d := world.Fast()
				d.Memory = memory * units.MiB
				problem := func(devices string, tokens units.Tokens, changed bool) *Problem {
					p := testProblem(t, devices, tokens, d, world.Slow())
					p.Job.Zero, p.Job.LossChunk = zero, 1024
					for _, w := range p.room().ways() {
						if changed {
							w.change(&p.Job)
						}
					}
					q, err := NewProblem(p.Profile, p.Job)
					if err != nil {
						t.Fatal(err)
					}
					return q
				}
				no := problem("1"+node, tokens, false).room().proveInfeasible()
				if no == nil {
					continue
				}
				solve := func(of string, p *Problem) {
					flags[of]++
					if _, err := Solve(t.Context(), p, nil, nil); err != nil {
						t.Errorf("%d MiB, %s, %d tokens: %q: %s: %v", int64(memory), zero, int64(tokens), no.WayOut, of, err)
					}
				}
				with := strings.Contains(no.WayOut, "with --")
				if m := times.FindStringSubmatch(no.WayOut); m != nil && len(m[1]) < 3 {
					solve("more devices", problem(m[1]+node, tokens, with))
				}
				if m := length.FindStringSubmatch(no.WayOut); m != nil {
					n, err := strconv.Atoi(m[1])
					if err != nil {
						t.Fatal(err)
					}
					solve("shorter", problem("1"+node, units.Tokens(n), with))
				}
				if strings.HasPrefix(no.WayOut, "--") {
					solve("flags", problem("1"+node, tokens, true))
				}
			}
		}
	}
	if flags["more devices"] < 5 || flags["shorter"] < 5 || flags["flags"] < 2 {
		t.Errorf("too few ways out: %v", flags)
	}
}

// fullRings are jobs of the longest sequence that a ring of unequal devices holds, by a job
// of a longer one.
func fullRings(t *testing.T, try func(p *Problem, tokens units.Tokens)) {
	r := rand.New(rand.NewPCG(1, 1))
	for i := range 60 {
		fast, slow := world.Fast(), world.Slow()
		fast.Memory, slow.Memory = units.Bytes(400+r.IntN(1500))*units.MiB, units.Bytes(400+r.IntN(1500))*units.MiB
		p := testProblem(t, []string{"1x(2 fast + 1 slow)", "2x2 fast + 1x2 slow", "4x4 fast + 1x4 slow"}[i%3], 1<<22, fast, slow)
		p.Job.Recompute, p.Job.LossChunk = costmodel.RecomputeFull, 256
		tokens := p.room().ringHolds()
		if tokens < units.Tokens(len(p.posed.Ranks)) {
			continue
		}
		job := p.Job
		job.SeqLen = tokens
		try(problemOf(t, p.Profile, job), tokens)
	}
}

// Of so long a sequence a job has a ring that fits, and not only a longer one's share of it.
func TestRingHoldsWhatItSays(t *testing.T) {
	fullRings(t, func(p *Problem, tokens units.Tokens) {
		if !p.room().ringFits(tokens) {
			t.Errorf("%v: no ring of %d tokens fits, though a longer sequence's devices hold that many", p.Job.Cluster, int64(tokens))
		}
	})
}

// Where a ring fits there is a plan, even if the search, which moves whole blocks of tokens,
// ends a hair above the memory: of 12 of these jobs it found nothing that fits. So it is where
// there is no time for any search.
func TestRingsThatFitArePlans(t *testing.T) {
	if testing.Short() {
		t.Skip("long; other tests start its goroutines")
	}
	late, cancel := context.WithDeadline(t.Context(), time.Unix(0, 0))
	defer cancel()
	fullRings(t, func(p *Problem, tokens units.Tokens) {
		for name, ctx := range map[string]context.Context{"": t.Context(), ", the time is up": late} {
			plan, err := Solve(ctx, p, nil, nil)
			if err == nil {
				err = Check(plan, p.Profile)
			}
			if err != nil {
				t.Errorf("%v, %d tokens%s: %v", p.Job.Cluster, int64(tokens), name, err)
				continue
			}
			for _, w := range plan.Warnings {
				if strings.HasPrefix(w, "strategy "+plan.Strategy+": ") {
					t.Errorf("%v, %d tokens%s: chosen is %s, and it is told: %s", p.Job.Cluster, int64(tokens), name, plan.Strategy, w)
				}
			}
		}
	})
}

// A ring that is lent where evenkeel had no time for a layout is evenkeel's plan: nothing more
// tells that its search was skipped. Where something was found that fits, none is lent.
func TestALentRingIsNotToldAsSkipped(t *testing.T) {
	fast, slow := world.Fast(), world.Slow()
	fast.Memory, slow.Memory = 900*units.MiB, 600*units.MiB
	p := testProblem(t, "1x(2 fast + 1 slow)", 1<<13, fast, slow)
	in, err := p.inOrder()
	if err != nil {
		t.Fatal(err)
	}
	of := func(name string) string { return "strategy " + name + ": the time that it was given was up" }
	skipped := []string{of("ring"), of("evenkeel"), of("evenkeel-sure")}
	found, told, lent := p.lendRing(t.Context(), in, strategies(), nil, slices.Clone(skipped))
	if !lent || len(found) != 1 || found[0].Strategy.Name() != "evenkeel" || !slices.Equal(told, []string{skipped[0], skipped[2]}) {
		t.Fatalf("lent %v, found %d, told %q", lent, len(found), told)
	}
	if again, told, lent := p.lendRing(t.Context(), in, strategies(), found, slices.Clone(skipped)); lent || len(again) != 1 || !slices.Equal(told, skipped) {
		t.Errorf("of a plan: lent %v, found %d, told %q", lent, len(again), told)
	}
}

// Of what was found and does not fit the layout that exceeds memory least is told of.
func TestTheNearestMissIsTold(t *testing.T) {
	p := testProblem(t, "1x2 fast", 65536)
	over := func(place string, states units.Bytes) strategy.Attempt {
		return strategy.Attempt{MemErr: &strategy.MemoryError{Place: place, Memory: costmodel.Memory{States: states, Capacity: 10}}}
	}
	near, far := over("rank 0", 12), over("rank 1", 15)
	for _, found := range [][]strategy.Attempt{{near, far}, {far, near}, {{}, far, near}} {
		if got := p.noneFits(found).Reason; got != near.MemErr.Error() {
			t.Errorf("of %d attempts: %s", len(found), got)
		}
	}
}

// States that nobody shares overflow every device, however many there are: more of them
// are no way out. What shares them is one, and so are more devices beside it.
func TestMoreDevicesAreNamedWhereTheyHelpOnly(t *testing.T) {
	for _, tc := range []struct {
		memory units.Bytes
		tokens units.Tokens
		zero   costmodel.ZeRO
		want   string
	}{
		{240 * units.MiB, 1024, costmodel.Zero0, "--zero zero3"},
		{240 * units.MiB, 7322, costmodel.Zero0, "--zero zero3 --recompute full --loss-chunk 256"},
		{240 * units.MiB, 65536, costmodel.Zero0, "more devices, "},
		{300 * units.MiB, 65536, costmodel.Zero3, "more devices, "},
	} {
		d := world.Fast()
		d.Memory = tc.memory
		p := testProblem(t, "1x2 fast", tc.tokens, d)
		p.Job.Zero = tc.zero
		no := p.room().proveInfeasible()
		if no == nil {
			t.Errorf("%v: not proven", tc)
			continue
		}
		if tc.want != no.WayOut && !(strings.HasSuffix(tc.want, " ") && strings.HasPrefix(no.WayOut, tc.want)) {
			t.Errorf("%v, %v, %s: way out %q, want %q", tc.memory, tc.tokens, tc.zero, no.WayOut, tc.want)
		}
	}
}

// Between what is proven too little and what suffices the search says so, and
// whose memory came nearest; more memory never takes a plan away.
func TestBetweenProofAndPlan(t *testing.T) {
	p := testProblem(t, "1x2 fast", 65536)
	need := float64(p.posed.Sim.Memory(p.posed.EqualRing())[0].Peak())
	var seen []string
	for share := 0.5; share < 1.3; share += 0.05 {
		d := world.Fast()
		d.Memory = units.Bytes(share * need)
		_, err := Solve(context.Background(), testProblem(t, "1x2 fast", 65536, d), nil, nil)
		var no *InfeasibleError
		now := "plan"
		switch {
		case errors.As(err, &no) && no.Proven:
			now = "proof"
		case errors.As(err, &no):
			now = "none found"
			if !strings.Contains(err.Error(), "no plan was found that fits: rank ") || !strings.Contains(err.Error(), "is the largest part; way out: --recompute full") {
				t.Error(err)
			}
		case err != nil:
			t.Fatal(err)
		}
		if len(seen) == 0 || seen[len(seen)-1] != now {
			seen = append(seen, now)
		}
	}
	if got := strings.Join(seen, ", "); got != "proof, none found, plan" {
		t.Errorf("with growing memory: %s", got)
	}
}

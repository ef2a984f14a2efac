package costmodel

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

func packerOf(t testing.TB, p *Profile, j Job) *Packer {
	t.Helper()
	k, err := NewPacker(NewPredictor(p), j)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sharesOf(tokens []units.Tokens) []float64 {
	sum := units.Tokens(0)
	for _, n := range tokens {
		sum += n
	}
	shares := make([]float64, len(tokens))
	for r, n := range tokens {
		shares[r] = float64(n) / float64(sum)
	}
	return shares
}

// One document is a sequence: its passes are the simulator's step without the
// exchange of parameters and the optimizer, which Overheads has.
func TestOneDocumentIsASequence(t *testing.T) {
	p := usual(t)
	for _, tokens := range [][]units.Tokens{{4096}, {4096, 4096}, {1024, 3072, 2048, 2048}} {
		for _, of := range []Recompute{RecomputeNone, RecomputeFull} {
			for _, zero := range []ZeRO{Zero0, Zero1, Zero2, Zero3} {
				j := testJob(cluster(t, "1x"+string(rune('0'+len(tokens)))+" fast", p, "bus", ""), tokens)
				j.Recompute, j.Zero = of, zero
				l := ringOf(tokens)
				step := mustSimulate(t, p, j, l)
				q := NewPredictor(p)
				over, err := q.Overheads(j)
				if err != nil {
					t.Fatal(err)
				}
				x, err := packerOf(t, p, j).Passes(l.Groups, sharesOf(tokens), []Documents{{Tokens: j.SeqLen, Count: 1}})
				if err != nil {
					t.Fatal(err)
				}
				if got := x.Time(of == RecomputeFull) + over.MicroBatch + over.Step; !near(got, step.Time.Mid, 1e-9) {
					t.Errorf("%v, %s, %s: %v, a simulated step takes %v", tokens, of, zero, got, step.Time.Mid)
				}
			}
		}
	}
}

// The account of one document with that of what is exchanged beside it is the step's: its
// time, its error, and that of its gain over another layout.
func TestBriefOfOneDocumentIsASequences(t *testing.T) {
	p := usual(t)
	contended := 0
	for _, x := range []struct {
		cluster string
		tokens  []units.Tokens
	}{{"1x1 fast", []units.Tokens{4096}}, {"1x2 fast", []units.Tokens{4096, 4096}}, {"1x4 fast", []units.Tokens{1024, 3072, 2048, 2048}}, {"1x(2 fast + 2 slow)", []units.Tokens{3072, 3072, 1024, 1024}}} {
		for _, of := range []Recompute{RecomputeNone, RecomputeFull} {
			for _, late := range []bool{false, true} {
				j := testJob(cluster(t, x.cluster, p, "bus", ""), x.tokens)
				j.Recompute = of
				l := ringOf(x.tokens)
				if len(x.tokens) == 4 && x.tokens[0] == 1024 {
					l = ZigZag(x.tokens, []Group{{{0, 1}, {1, 3}}, {{2, 2}, {3, 2}}})
				}
				l.OwnLast = late && len(x.tokens) > 1
				want := mustSimulate(t, p, j, l)
				over, err := NewPredictor(p).Overheads(j)
				if err != nil {
					t.Fatal(err)
				}
				k := packerOf(t, p, j)
				if _, err := k.Passes(l.Groups, sharesOf(x.tokens), []Documents{{Tokens: j.SeqLen, Count: 1}}); err != nil {
					t.Fatal(err)
				}
				brief, err := k.Brief(of == RecomputeFull, l.OwnLast)
				if err != nil {
					t.Fatal(err)
				}
				got := InTurn(brief, over.Accounts.MicroBatch, over.Accounts.Step)
				for i, pair := range [][2]units.Seconds{{got.Time.Lo, want.Time.Lo}, {got.Time.Mid, want.Time.Mid}, {got.Time.Hi, want.Time.Hi}, {got.Contention, want.Contention}} {
					exact := 1e-9
					if i != 1 { // what idling is like in the whole is added up in another order
						exact = 1e-3
					}
					if !near(pair[0], pair[1], exact) {
						t.Errorf("%s, %s, own last %t: figure %d is %v, of the step %v", x.cluster, of, l.OwnLast, i, pair[0], pair[1])
					}
				}
				if got.Time.Source != want.Time.Source {
					t.Errorf("%s: source %s, want %s", x.cluster, got.Time.Source, want.Time.Source)
				}
				other := mustSimulate(t, p, j, ringOf(slices.Repeat([]units.Tokens{j.SeqLen / units.Tokens(len(x.tokens))}, len(x.tokens))))
				half, by := GainError(other, got)
				if again, same := GainError(other, want); math.Abs(float64(half-again)) > 1e-4*float64(want.Time.Mid) || again > 1e-4*want.Time.Mid && by != same {
					t.Errorf("%s: gain's error %v by %q, want %v by %q", x.cluster, half, by, again, same)
				}
				if want.Contention > 0 {
					contended++
				}
			}
		}
	}
	if contended == 0 {
		t.Error("no step with contention")
	}
}

// The accounts of overheads are of their times.
func TestOverheadsAccountsAreOfTheirTimes(t *testing.T) {
	p := usual(t)
	for _, zero := range []ZeRO{Zero0, Zero1, Zero2, Zero3} {
		for _, overlap := range []bool{false, true} {
			j := testJob(cluster(t, "1x(2 fast + 2 slow)", p, "bus", ""), []units.Tokens{2048, 2048, 2048, 2048})
			j.Zero, j.OverlapZero = zero, overlap
			over, err := NewPredictor(p).Overheads(j)
			if err != nil {
				t.Fatal(err)
			}
			a := over.Accounts
			for i, pair := range [][2]units.Seconds{{a.MicroBatch.Time.Mid, over.MicroBatch}, {a.Step.Time.Mid, over.Step}, {a.Hidden.Time.Mid, over.Hidden}, {a.Behind.Time.Mid, over.Behind}} {
				if !near(pair[0], pair[1], 1e-12) {
					t.Errorf("%s, overlap %t, %d: %v, want %v", zero, overlap, i, pair[0], pair[1])
				}
			}
			if a.Step.Time.Lo >= a.Step.Time.Mid || a.Step.Time.Hi <= a.Step.Time.Mid {
				t.Errorf("%s: %v without an interval", zero, a.Step.Time)
			}
		}
	}
}

// Own blocks last, one document is still a sequence: of members with equal and unequal
// heads, and asked for after another order of the same documents.
func TestOwnBlocksLastOfDocuments(t *testing.T) {
	p := usual(t)
	differ := 0
	for _, tokens := range [][]units.Tokens{{4096, 4096}, {1024, 3072, 2048, 2048}} {
		for _, pairs := range []bool{false, true} {
			j := testJob(cluster(t, "1x"+string(rune('0'+len(tokens)))+" fast", p, "bus", ""), tokens)
			l := ringOf(tokens)
			if pairs && len(tokens) == 4 {
				l = ZigZag(tokens, []Group{{{0, 1}, {1, 3}}, {{2, 2}, {3, 2}}})
			}
			k, docs := packerOf(t, p, j), []Documents{{Tokens: j.SeqLen, Count: 1}}
			first, err := k.Passes(l.Groups, sharesOf(tokens), docs)
			if err != nil {
				t.Fatal(err)
			}
			last, err := k.OwnLast()
			if err != nil {
				t.Fatal(err)
			}
			over, err := NewPredictor(p).Overheads(j)
			if err != nil {
				t.Fatal(err)
			}
			l.OwnLast = true
			if got, want := last.Time(false)+over.MicroBatch+over.Step, mustSimulate(t, p, j, l).Time.Mid; !near(got, want, 1e-9) {
				t.Errorf("%v, pairs %t: %v, a simulated step takes %v", tokens, pairs, got, want)
			}
			if last.Backward != first.Backward {
				differ++
			}
			if again, err := k.Passes(l.Groups, sharesOf(tokens), docs); err != nil || again.Time(false) != first.Time(false) {
				t.Errorf("%v, pairs %t: %v after own blocks were last, %v before, %v", tokens, pairs, again.Time(false), first.Time(false), err)
			}
		}
	}
	if differ == 0 {
		t.Error("the order of blocks makes no difference anywhere")
	}
}

// Micro-batches add what Overheads says of each.
func TestOverheadsOfMicroBatches(t *testing.T) {
	p := usual(t)
	tokens := []units.Tokens{2048, 2048, 2048, 2048}
	for _, zero := range []ZeRO{Zero0, Zero1, Zero2, Zero3} {
		for _, overlap := range []bool{false, true} {
			j := testJob(cluster(t, "1x4 fast", p, "bus", ""), tokens)
			j.Zero, j.OverlapZero = zero, overlap
			over, err := NewPredictor(p).Overheads(j)
			if err != nil {
				t.Fatal(err)
			}
			x, err := packerOf(t, p, j).Passes(ringOf(tokens).Groups, sharesOf(tokens), []Documents{{Tokens: j.SeqLen, Count: 1}})
			if err != nil {
				t.Fatal(err)
			}
			for _, n := range []int{1, 3} {
				j.Accumulate = n
				least := units.Seconds(n)*(x.Time(false)+over.MicroBatch) + over.Step
				got := mustSimulate(t, p, j, ringOf(tokens)).Time.Mid
				if most := least + units.Seconds(n)*over.Hidden + over.Behind; got < least*(1-1e-9) || got > most*(1+1e-9) {
					t.Errorf("%s, overlap %v, %d micro-batches: %v, want %v to %v", zero, overlap, n, got, least, most)
				}
			}
			if !overlap && over.Hidden+over.Behind != 0 {
				t.Errorf("%s: %v and %v hidden without overlap", zero, over.Hidden, over.Behind)
			}
		}
	}
}

// What is reduced once a step is open as far as the last micro-batch's backward pass is too
// short for it, all of its layers but one, where messages leave it the ports: each of the
// layers' is as long as a layer or longer, or shorter.
func TestExchangeBehindTheLastMicroBatch(t *testing.T) {
	tokens := []units.Tokens{2048, 2048, 2048, 2048}
	for _, zero := range []ZeRO{Zero0, Zero1} {
		for _, of := range []Recompute{RecomputeNone, RecomputeFull} {
			open := map[bool]int{}
			for _, rate := range []float64{1e8, 1e9, 1e10, 1e11} {
				p := madeUp(t, map[string]speeds{"fast": {3e12, 4e12, 2e12}}, map[string]wire{"bus": {}})
				for i := range p.Laws {
					if k := p.Laws[i].Op; k == op.KindAllReduce || k == op.KindReduceScatter || k == op.KindAllGather {
						p.Laws[i].Curve = line(0, rate)
					}
				}
				j := testJob(cluster(t, "1x4 fast", p, "bus", ""), tokens)
				j.Zero, j.OverlapZero, j.Recompute = zero, true, of
				over, err := NewPredictor(p).Overheads(j)
				if err != nil {
					t.Fatal(err)
				}
				x, err := packerOf(t, p, j).Passes(ringOf(tokens).Groups, sharesOf(tokens), []Documents{{Tokens: j.SeqLen, Count: 1}})
				if err != nil {
					t.Fatal(err)
				}
				backward := x.Backward
				if of == RecomputeFull {
					backward += x.Forward
				}
				layers := units.Seconds(j.Model.Layers)
				beyond := max(0, over.Behind-(layers-1)/layers*backward)
				open[beyond > 0]++
				for _, n := range []int{1, 3} {
					j.Accumulate = n
					want := units.Seconds(n)*(x.Time(of == RecomputeFull)+over.MicroBatch) + over.Step + beyond
					if got := mustSimulate(t, p, j, ringOf(tokens)).Time.Mid; over.Behind == 0 || !near(got, want, 1e-6) {
						t.Errorf("%s, recompute %s, %d micro-batches at %g B/s: %v, want %v, of which %v of %v is open", zero, of, n, rate, got, want, beyond, over.Behind)
					}
				}
			}
			if open[false] == 0 || open[true] == 0 {
				t.Errorf("%s, recompute %s: some is open, or not, so often: %v", zero, of, open)
			}
		}
	}
}

// A packed message is as large as all of its documents' together.
func TestPackedMessagesCarryAllDocuments(t *testing.T) {
	p := madeUp(t, map[string]speeds{"fast": {3e15, 4e15, 2e15}}, map[string]wire{"bus": {0, 1e6}})
	tokens := []units.Tokens{1, 1}
	k := packerOf(t, p, testJob(cluster(t, "1x2 fast", p, "bus", ""), tokens))
	forward := func(count int) float64 {
		x, err := k.Passes(Singles(tokens, 4), []float64{0.5, 0.5}, []Documents{{Tokens: 4096, Count: count}})
		if err != nil {
			t.Fatal(err)
		}
		return float64(x.Forward)
	}
	if one, ten := forward(1), forward(10); math.Abs(ten/one-10) > 0.01 {
		t.Errorf("ten documents take %v, one %v, over a link that takes all of it", ten, one)
	}
}

// Documents take no longer packed than one after the other, and no less than
// without the others; a copy more adds time; order among lengths does not matter
// to the sum of their counts.
func TestPackingSavesAndAdds(t *testing.T) {
	p := usual(t)
	r := rand.New(rand.NewPCG(5, 6))
	for range 30 {
		tokens := []units.Tokens{1, 1, 1, 1}
		j := testJob(cluster(t, "1x4 fast", p, "bus", ""), tokens)
		k := packerOf(t, p, j)
		groups := Singles(tokens, 4)
		if r.IntN(2) == 0 {
			groups = []Group{{{0, 2}, {1, 2}}, {{2, 2}, {3, 2}}}
		}
		shares := []float64{0.1, 0.4, 0.3, 0.2}
		passes := func(docs ...Documents) float64 {
			x, err := k.Passes(groups, shares, docs)
			if err != nil {
				t.Fatal(err)
			}
			return float64(x.Time(false))
		}
		long := Documents{Tokens: units.Tokens(1000 + r.IntN(20000)), Count: 1 + r.IntN(3)}
		short := Documents{Tokens: units.Tokens(100 + r.IntN(900)), Count: 1 + r.IntN(30)}
		packed, alone := passes(long, short), passes(long)+passes(short)
		if packed > alone*1.0001 {
			t.Errorf("%+v and %+v: %v packed, %v one after the other", long, short, packed, alone)
		}
		if packed < passes(long)*0.9999 || packed < passes(short)*0.9999 {
			t.Errorf("%+v and %+v: %v packed, %v and %v alone", long, short, packed, passes(long), passes(short))
		}
		more := short
		more.Count++
		if passes(long, more) <= packed {
			t.Errorf("%+v: a document more takes no longer", short)
		}
		// Two lists of one length are one list of all of them.
		half := Documents{Tokens: short.Tokens, Count: 1}
		rest := Documents{Tokens: short.Tokens, Count: short.Count}
		if got, want := passes(half, rest), passes(more); math.Abs(got/want-1) > 0.01 {
			t.Errorf("%+v: %v in two lists, %v in one", more, got, want)
		}
	}
}

// A group without a token of the longest document cannot be simulated.
func TestDocumentsShorterThanTheGroup(t *testing.T) {
	p := usual(t)
	j := testJob(cluster(t, "1x4 fast", p, "bus", ""), []units.Tokens{1, 1, 1, 1})
	_, err := packerOf(t, p, j).Passes(Singles([]units.Tokens{1, 1, 1, 1}, 4), []float64{0.25, 0.25, 0.25, 0.25}, []Documents{{Tokens: 2, Count: 1}})
	if err == nil {
		t.Error("2 tokens on 4 ranks of a ring: no error")
	}
}

func TestSplitByShares(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for range 2000 {
		n := 1 + r.IntN(40)
		shares, sum := make([]float64, n), 0.0
		for i := range shares {
			if r.IntN(4) > 0 {
				shares[i] = r.Float64()
			}
			sum += shares[i]
		}
		if sum == 0 {
			continue
		}
		for i := range shares {
			shares[i] /= sum
		}
		total := units.Tokens(r.IntN(100000))
		dealt := units.Tokens(0)
		for i, got := range SplitByShares(total, shares) {
			dealt += got
			if want := shares[i] * float64(total); math.Abs(float64(got)-want) > 1+1e-6*float64(total) || shares[i] == 0 && got != 0 {
				t.Fatalf("%d tokens by %v: rank %d gets %d", total, shares, i, got)
			}
		}
		if dealt != total {
			t.Fatalf("%d of %d tokens dealt by %v", dealt, total, shares)
		}
	}
}

// PackMemory is the simulator's memory when the group is the whole cluster, and
// less when more devices share the states.
func TestPackMemory(t *testing.T) {
	p := usual(t)
	tokens := []units.Tokens{4096, 4096, 4096, 4096}
	j := testJob(cluster(t, "1x4 fast", p, "bus", ""), tokens)
	q := NewPredictor(p)
	groups := []Group{{{0, 2}, {1, 2}}, {{2, 2}, {3, 2}}}
	shares := sharesOf(tokens)
	own := q.PackMemory(j, groups, shares, 4*4096, 4)
	if want := q.MemoryIn(j, ZigZag(tokens, groups)); !slices.Equal(own, want) {
		t.Errorf("%+v, want %+v", own, want)
	}
	for r, x := range q.PackMemory(j, groups, shares, 4*4096, 16) {
		if x.States >= own[r].States || x.Activations != own[r].Activations {
			t.Errorf("rank %d over 16 devices: %+v, over 4: %+v", r, x, own[r])
		}
	}
}

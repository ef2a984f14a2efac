package fit

import (
	"container/heap"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// freeAt are the times at which units are free, the first one first.
type freeAt []float64

func (f freeAt) Len() int           { return len(f) }
func (f freeAt) Less(i, j int) bool { return f[i] < f[j] }
func (f freeAt) Swap(i, j int)      { f[i], f[j] = f[j], f[i] }
func (f *freeAt) Push(x any)        { *f = append(*f, x.(float64)) }
func (f *freeAt) Pop() any          { panic("units stay") }

// played is the time of a kernel whose tasks, each 128 query rows of a head of a document,
// start in order on whichever of the device's units is free first: head by head, document
// by document and row by row. A task takes 0.8 us and 1.5 us a tile of 128 keys, a launch 6 us.
func played(v op.Varlen, parallel int) float64 {
	unit := make(freeAt, parallel)
	for range v.QHeads {
		for _, n := range v.SeqLens {
			for end := units.Tokens(128); end < n+128; end += 128 {
				unit[0] += 8e-7 + 1.5e-6*math.Ceil(float64(min(end, n))/128)
				heap.Fix(&unit, 0)
			}
		}
	}
	return 6e-6 + slices.Max(unit)
}

const testKernel = "varlen"

// packs makes n packs of up to 32 documents, the first up to 16 times as long as the last,
// as calibrations measure them.
func packs(dev op.DeviceType, n int, seed uint64, time func(op.Varlen) float64) []Point {
	rng := rand.New(rand.NewPCG(seed, 2))
	var points []Point
	for range n {
		kv := 1 << rng.IntN(4)
		v := op.Varlen{QHeads: kv << rng.IntN(3), KVHeads: kv, HeadDim: 128, DType: op.BF16, Kernel: testKernel}
		documents, skew := int(math.Exp2(5*rng.Float64())), math.Pow(16, rng.Float64())
		each := math.Exp2(9+7*rng.Float64()) / float64(documents)
		for i := range documents {
			v.SeqLens = append(v.SeqLens, units.Tokens(1+each*math.Pow(skew, 0.5-float64(i)/float64(documents))))
		}
		points = append(points, Point{On: dev.Name, Shape: op.AttnVarlenFwd{Varlen: v}, Seconds: time(v) * math.Exp(0.01*rng.NormFloat64())})
	}
	return points
}

// blocks makes n causal blocks of the same kernel.
func blocks(dev op.DeviceType, n int, seed uint64, time func(op.Varlen) float64) []Point {
	rng := rand.New(rand.NewPCG(seed, 3))
	var points []Point
	for range n {
		kv := 1 << rng.IntN(4)
		length := units.Tokens(math.Exp2(6 + 9*rng.Float64()))
		a := op.Attention{Mask: op.Diag, QLen: length, KVLen: length, QHeads: kv << rng.IntN(3), KVHeads: kv, HeadDim: 128, DType: op.BF16, Kernel: testKernel}
		v, _ := a.Documents()
		points = append(points, Point{On: dev.Name, Shape: op.AttnFwd{Attention: a}, Seconds: time(v) * math.Exp(0.01*rng.NormFloat64())})
	}
	return points
}

// packedLawOf fits packs beside blocks of the same kernel and of others.
func packedLawOf(t *testing.T, dev op.DeviceType, lists ...[]Point) *costmodel.Law {
	t.Helper()
	d := &Data{Devices: []op.DeviceType{dev}}
	var tasks []*task
	for _, points := range lists {
		for i := range points {
			points[i].rank = uint64(i)
		}
		tasks = append(tasks, &task{Stratum: stratumOf(points[0]), points: points})
	}
	estimate(d, tasks, nil)
	if err := tasks[0].err; err != nil {
		t.Fatal(err)
	}
	return tasks[0].law
}

func rivals(l *costmodel.Law) string {
	var names []string
	for _, r := range l.Rivals {
		names = append(names, r.Form)
	}
	return strings.Join(names, ", ")
}

// Of a kernel whose times are known tile by tile, 40 packs and 60 blocks give a law of packs
// in whose intervals nine tenths of others are, and less than half as far off as a linear one,
// in packs that end with a long document too. Where packs are few the blocks tell more than they.
func TestPackedLawOfAKnownKernel(t *testing.T) {
	sequential(t)
	dev := coreDevice()
	known := func(v op.Varlen) float64 { return played(v, dev.Parallel) }
	train, test := packs(dev, 40, 1, known), packs(dev, 150, 2, known)
	lenders := blocks(dev, 60, 3, known)
	law := packedLawOf(t, dev, train, lenders)
	if law.Attention == nil || law.Linear != nil || law.Form() != "tiles" || rivals(law) != "linear, tiles, launch + FLOPs" {
		t.Fatalf("form %q of %s", law.Form(), rivals(law))
	}
	line, err := linear(dev.Parallel, train, usedColumns(dev.Parallel, train))
	if err != nil {
		t.Fatal(err)
	}
	plain := costmodel.Law{Linear: line}
	median := func(l *costmodel.Law, points []Point) float64 {
		return scoreOf(func(s op.Shape) float64 { return float64(l.Seconds(s)) }, points).median
	}
	got, before, e := median(law, test), median(&plain, test), judge(law, test)
	t.Logf("%.1f %% off, a linear law %.1f %%, %.2f in the interval", got, before, e.Coverage)
	if got > 4 || got > before/2 {
		t.Errorf("%.1f %% off, a linear law %.1f %%", got, before)
	}
	if e.Coverage < 0.82 {
		t.Errorf("%.2f of the points are in the interval", e.Coverage)
	}
	if own := packedLawOf(t, dev, train); own.Attention == nil || *own.Attention == *law.Attention {
		t.Error("blocks change nothing")
	}
	few := func(lent []Point) float64 {
		l, err := packedForm(dev, false, lent).fit(train[:8])
		if err != nil {
			t.Fatal(err)
		}
		return median(&l, test)
	}
	helped, alone := few(lentTo(stratumOf(train[0]), []*task{{Stratum: stratumOf(lenders[0]), points: lenders}})), few(nil)
	if t.Logf("from 8 packs %.1f %% off, %.1f %% without blocks", helped, alone); helped > 5 || helped > 0.9*alone {
		t.Errorf("from 8 packs %.1f %% off, %.1f %% without blocks", helped, alone)
	}
	for i := range test {
		v, _ := documentsOf(test[i].Shape)
		slices.Reverse(v.SeqLens)
		test[i].Shape, test[i].Seconds = op.AttnVarlenFwd{Varlen: v}, known(v)
	}
	turned := median(law, test)
	if t.Logf("%.1f %% with the longest document last", turned); turned > 3 {
		t.Errorf("%.1f %% off with the longest document last", turned)
	}
}

// Blocks of the same kernel, width and type help packs, and no others do.
func TestBlocksLendToPacks(t *testing.T) {
	dev := coreDevice()
	known := func(v op.Varlen) float64 { return played(v, dev.Parallel) }
	own := packs(dev, 8, 1, known)
	same := blocks(dev, 5, 2, known)
	others := blocks(dev, 6, 3, known)
	a, _ := blockOf(others[0].Shape)
	var tasks []*task
	change := func(f func(*op.Attention), on string, forward bool) {
		b := a
		f(&b)
		p := Point{On: on, Shape: op.AttnFwd{Attention: b}, Seconds: 1}
		if !forward {
			p.Shape = op.AttnBwd{Attention: b}
		}
		tasks = append(tasks, &task{Stratum: stratumOf(p), points: []Point{p}})
	}
	change(func(b *op.Attention) { b.Kernel = "other" }, dev.Name, true)
	change(func(b *op.Attention) { b.HeadDim = 64 }, dev.Name, true)
	change(func(b *op.Attention) { b.DType = op.F16 }, dev.Name, true)
	change(func(b *op.Attention) { b.Mask = op.Full }, dev.Name, true)
	change(func(b *op.Attention) { b.Window = 7 }, dev.Name, true)
	change(func(*op.Attention) {}, "other", true)
	if lent := lentTo(stratumOf(own[0]), tasks); len(lent) > 0 {
		t.Errorf("others lend %+v", lent)
	}
	change(func(*op.Attention) {}, dev.Name, false)
	back := stratumOf(own[0])
	back.Op = op.KindAttnVarlenBwd
	if lent := lentTo(back, tasks); len(lent) != 1 || lent[0].Shape.Kind() != op.KindAttnVarlenBwd {
		t.Errorf("the backward pass lends %+v", lent)
	}
	many, _ := blockOf(same[4].Shape)
	many.Batch = 65 // more than documents in a shape
	same[4].Shape = op.AttnFwd{Attention: many}
	tasks = append(tasks, &task{Stratum: stratumOf(same[0]), points: same})
	lent := lentTo(stratumOf(own[0]), tasks)
	if len(lent) != 4 {
		t.Fatalf("%d points lent, want 4", len(lent))
	}
	for i, p := range lent {
		block, _ := blockOf(same[i].Shape)
		if v, ok := documentsOf(p.Shape); !ok || len(v.SeqLens) != 1 || v.SeqLens[0] != block.QLen || v.QHeads != block.QHeads || p.Seconds != same[i].Seconds {
			t.Errorf("%+v lent for %+v", p, same[i])
		}
	}
	if lent := lentTo(stratumOf(same[0]), tasks); lent != nil {
		t.Errorf("packs lend %+v to blocks", lent)
	}
}

// A fit asks the same of a block and of the pack that it is.
func TestBlocksAndPacksAreCalledAlike(t *testing.T) {
	a := op.Attention{Mask: op.Diag, QLen: 300, KVLen: 300, QHeads: 12, KVHeads: 4, HeadDim: 128, DType: op.BF16, Batch: 5}
	v, _ := a.Documents()
	block, _ := calledFor(op.AttnBwd{Attention: a})
	pack, ok := calledFor(op.AttnVarlenBwd{Varlen: v})
	if got := block.geometry(trueCore(), true); got.Tiles != pack.geometry(trueCore(), true).Tiles {
		t.Errorf("geometries differ: %+v", got)
	}
	if block.geometry, pack.geometry = nil, nil; !ok || !pack.packed || block.packed {
		t.Errorf("packed: %v and %v, %v", block.packed, pack.packed, ok)
	}
	if pack.packed = false; !reflect.DeepEqual(block, pack) {
		t.Errorf("%+v of the block, %+v of the pack", block, pack)
	}
	if _, ok := calledFor(op.GEMM{Pass: op.Forward, M: 1, N: 1, K: 1, DType: op.BF16}); ok {
		t.Error("a product is called as attention")
	}
}

// Where times are linear, and on processors, laws of packs stay linear.
func TestPackedLawsStayLinear(t *testing.T) {
	dev := coreDevice()
	line := func(v op.Varlen) float64 {
		f := op.AttnVarlenFwd{Varlen: v}.Features(dev.Parallel)
		return 3e-4 + 2e-10*f.Rows + 3e-12*f.Bytes
	}
	law := packedLawOf(t, dev, packs(dev, 40, 4, line))
	if law.Linear == nil || law.Attention != nil || !strings.Contains(rivals(law), "tiles") {
		t.Errorf("form %q of %s of linear times", law.Form(), rivals(law))
	}
	processor := dev
	processor.Sheet = op.Sheet{}
	known := func(v op.Varlen) float64 { return played(v, dev.Parallel) }
	law = packedLawOf(t, processor, packs(dev, 40, 5, known), blocks(dev, 20, 6, known))
	if law.Linear == nil || strings.Contains(rivals(law), "tiles") {
		t.Errorf("form %q of %s on a processor", law.Form(), rivals(law))
	}
}

// Donors lend no law of packs: nothing carries it over.
func TestPackedLawsAreNotLent(t *testing.T) {
	core := trueCore()
	dev := coreDevice()
	p := &costmodel.Profile{Devices: []op.DeviceType{dev}, Laws: []costmodel.Law{
		{Op: op.KindAttnVarlenFwd, Device: dev.Name, Attention: core},
		{Op: op.KindAttnVarlenBwd, Device: dev.Name, Attention: core},
		{Op: op.KindAttnFwd, Device: dev.Name, Attention: core},
	}}
	if all := Donors(p); len(all) != 1 || all[0].Law.Op != op.KindAttnFwd {
		t.Errorf("%d donors, want that of attn_fwd alone", len(all))
	}
}

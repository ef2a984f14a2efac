package fit

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
	"github.com/evenkeel/evenkeel/profile"
)

// Donor is a measured law and the device type it was measured on. A device type with few
// points or none may borrow it.
type Donor struct {
	Law    *costmodel.Law
	Device op.DeviceType
	// Named says that the donor was asked for by name: its help counts where there are some
	// hundred points, too.
	Named bool
}

// most is the number of points up to which a donor is asked.
func (d *Donor) most() int {
	if d.Named {
		return fewToOwn
	}
	return fewToRefit
}

// Donors lists the laws that profiles can lend: measured laws of compute ops on devices
// whose datasheet is known. Those of packed documents stay with their device, whose causal
// blocks help them more.
func Donors(profiles ...*costmodel.Profile) []Donor {
	var all []Donor
	for _, p := range profiles {
		for i := range p.Laws {
			l := &p.Laws[i]
			k := slices.IndexFunc(p.Devices, func(d op.DeviceType) bool { return d.Name == l.Device })
			lends := (l.Attention != nil && !packed(l.Op) || l.GEMM != nil) && l.From == "" && l.Assumed == ""
			if k >= 0 && lends && p.Devices[k].Sheet.BF16PerS > 0 {
				all = append(all, Donor{Law: l, Device: p.Devices[k]})
			}
		}
	}
	return all
}

// What a law is off by, as the half width of a 90 % interval of the log, when
// it is carried over by datasheet ratios alone. Between devices of one
// architecture, 0.05 to 0.09 on others' recordings of causal attention; between
// architectures 0.25 to 1.15 from the nearest one. Of 22 laws of aiconfigurator's tables that
// were borrowed from the nearest device of another architecture, intervals of 0.75 held 0.86 of
// the points, a mean over the laws, and those of 0.95 hold 0.92. Of 39 pairs of Intel's B60 and
// others, in either direction, 0.95 held 0.79 and 1.3 holds 0.89.
const (
	sameArchWidth   = 0.10
	otherArchWidth  = 0.95
	otherMakerWidth = 1.3
)

// architecture is the share of a donor's fitness that the generation of its
// kernels has: the ratios below are of the order of one octave.
const architecture = 0.5

// otherMaker is by how much a donor of another maker has to be nearer, in octaves: more than
// GPUs of one maker are apart that anybody trains on. By arithmetic and memory alone Intel's
// B60 was the nearest to an H100, and its law of products off by 145 %, in the median, where
// that of the nearest of NVIDIA's is by 12.
const otherMaker = 4

// distance is how unlike two devices are as homes of a kernel: their
// generation, and in octaves the arithmetic and the memory traffic of one of
// their units. Units of different makers are different things, of which a device
// has more or fewer: there it is those of the whole device.
func distance(a, b op.DeviceType) float64 {
	unit := func(x float64, d op.DeviceType) float64 {
		if !sameMaker(a, b) {
			return x
		}
		return x / float64(max(1, d.Parallel))
	}
	octaves := func(x, y float64) float64 {
		if !(x > 0) || !(y > 0) {
			return 1
		}
		return math.Abs(math.Log2(x / y))
	}
	far := octaves(unit(a.Sheet.BF16PerS, a), unit(b.Sheet.BF16PerS, b)) + 0.5*octaves(unit(a.Sheet.MemoryPerS, a), unit(b.Sheet.MemoryPerS, b))
	if !sameKernels(a, b) {
		far += architecture
	}
	if !sameMaker(a, b) {
		far += otherMaker
	}
	return far
}

// sameMaker says that kernels of both devices are written for one kind of unit: names of
// architectures begin with their maker's letters (sm90, gfx942). Where a name is missing, as
// of Intel's, nobody knows, but that a model is of its own maker.
func sameMaker(a, b op.DeviceType) bool {
	maker := func(arch string) string { return strings.TrimRight(arch, "0123456789abcdef") }
	return sameModel(a, b) || a.Sheet.Arch != "" && b.Sheet.Arch != "" && maker(a.Sheet.Arch) == maker(b.Sheet.Arch)
}

// sameModel says that two device types are one model of GPU, with whatever software.
func sameModel(a, b op.DeviceType) bool { return a.Model != "" && a.Model == b.Model }

// sameKernels says that two devices run the same generation of kernels. Of the
// minor versions of an architecture only Blackwell's are one family: kernels
// for sm100 run on sm103, those for sm120 on sm121 (CUDA 12.9's family targets).
func sameKernels(a, b op.DeviceType) bool {
	family := func(arch string) string {
		switch arch {
		case "sm103":
			return "sm100"
		case "sm121":
			return "sm120"
		}
		return arch
	}
	return sameModel(a, b) || a.Sheet.Arch != "" && family(a.Sheet.Arch) == family(b.Sheet.Arch)
}

// nearestDonor finds the law that is most like a stratum's on the most similar
// device: of the same op and variant, whatever kernel where the same one has
// none to lend. It is nil without any.
func nearestDonor(donors []Donor, s Stratum, dev op.DeviceType) *Donor {
	var best *Donor
	least := math.Inf(1)
	for i := range donors {
		d := &donors[i]
		asked, lent := s.Variant, d.Law.Variant
		other := asked.Kernel != lent.Kernel
		asked.Kernel, lent.Kernel = "", ""
		if d.Law.Op != s.Op || asked != lent || itself(d.Device, dev) {
			continue
		}
		far := distance(d.Device, dev)
		if other {
			far += 0.25
		}
		if far < least {
			best, least = d, far
		}
	}
	return best
}

// itself says that a law was measured on the very device and software that would borrow it,
// whose points may be those that the law was fitted to. Of imported ones nothing but a name
// is known: there it is the same kernels, on who knows which devices.
func itself(lender, to op.DeviceType) bool {
	return to.Fingerprint != "" && lender.Fingerprint == to.Fingerprint && to.Fingerprint != profile.Fingerprint(to.Name)
}

// donor finds who may lend to a stratum of a data set, or nil.
func (d *Data) donor(s Stratum, donors []Donor) *Donor {
	dev := d.device(s.On)
	if _, ok := coreOf(s.Op, dev); !ok {
		return nil
	}
	return nearestDonor(donors, s, dev)
}

// oddFactor is how far the points of a device may lie from what a donor says: times that
// were read in another unit are a thousand off, and laws carried over by datasheets a
// factor of two.
const oddFactor = 10

// oddTimes says of a stratum's points that they cannot be what the most similar device
// that has such a law lets expect, or "". A law is fitted to them all the same: a moved
// or a refined one fits times in any unit.
func (d *Data) oddTimes(s Stratum, donors []Donor) string {
	from := d.donor(s, donors)
	if from == nil || len(s.Points) == 0 {
		return ""
	}
	carried := from.carry(d.device(s.On))
	var logs []float64
	for _, p := range s.Points {
		logs = append(logs, math.Log(p.Seconds/float64(carried.Seconds(p.Shape))))
	}
	if m := stats.Median(logs); math.Abs(m) > math.Log(oddFactor) {
		return fmt.Sprintf("%s: its times are %.3g times those of %s by the ratios of the datasheets; is their unit another?", s, math.Exp(m), from.Device.Name)
	}
	return ""
}

// carry is the donor's law on another device: its core by the ratios of the
// datasheets, its correction where both run the same generation of kernels. A donor
// that was lent its own core and moved to its points lends it as it was moved.
func (d *Donor) carry(to op.DeviceType) *costmodel.Law {
	l := &costmodel.Law{
		Op: d.Law.Op, Variant: d.Law.Variant, Device: to.Name, Scale: d.Law.Scale, From: d.Device.Name,
		Range: d.Law.Range, MaxCells: d.Law.MaxCells, Peak: peakOf(to, d.Law.Op, d.Law.Variant, nil),
	}
	if d.Law.Attention != nil {
		l.Attention = d.Law.Attention.Scaled(d.Device, to, d.Law.Variant.DType)
	} else {
		l.GEMM = d.Law.GEMM.Scaled(d.Device, to)
	}
	if d.alike(to) {
		l.Correction = d.Law.Correction
	}
	d.promise(l, max(d.width(to), d.own()))
	return l
}

// own is the half width of the donor's own interval: who borrows from a law of few points is
// no surer than that.
func (d *Donor) own() float64 { return math.Log(d.Law.Spread.Hi/d.Law.Spread.Lo) / 2 }

// promise gives a lent law an interval of this half width, in log time.
//
// Beyond the range it grows by what the donor's own does, not by as large a share of
// itself: what the ratios of datasheets have wrong they have wrong at every size. Of
// aiconfigurator's tables, laws of attention and products that were fitted to calls of up
// to an eighth of the longest and carried to another device have, in the median of 86
// pairs of unlike architectures, a 90th percentile of |log error| of 0.48 at the longest
// calls fitted and of 0.33 two to six doublings on (larger by more than 0.05 in ten), in
// 12 pairs of alike ones of 0.07 and 0.09.
func (d *Donor) promise(l *costmodel.Law, half float64) {
	l.Spread = costmodel.Spread{Lo: math.Exp(-half), Hi: math.Exp(half)}
	own, share := d.own(), d.Law.Widen
	if share == 0 {
		share = 1 // as the law itself has it
	}
	l.Widen = min(max(own*share/half, leastGrowth), mostGrowth)
}

// leastGrowth is the least share of itself by which the interval of a lent law grows a
// doubling, for a donor without errors.
const leastGrowth = 0.02

// alike says that two devices run the same generation of kernels.
func (d *Donor) alike(to op.DeviceType) bool {
	return sameKernels(d.Device, to)
}

func (d *Donor) width(to op.DeviceType) float64 {
	switch {
	case d.alike(to):
		return sameArchWidth
	case sameMaker(d.Device, to):
		return otherArchWidth
	}
	return otherMakerWidth
}

// otherKernelWidth is width between two kernels of one generation. Of aiconfigurator's
// tables, laws of attention that were carried over to another engine's kernel on a device of
// the same architecture, or the same device, have a 90th percentile of |log error| of 0.42 to
// 0.58 (quartiles of 70 pairs), as much with their corrections as without.
const otherKernelWidth = 0.5

// promised is width for a law of a kernel with so many points of its own. From fewToBelieve
// on these tell by themselves how unlike the donor's kernel is: of the tables above 90 % of
// the others lay in the intervals of twenty.
func (d *Donor) promised(to op.DeviceType, kernel string, points int) float64 {
	if points >= fewToBelieve {
		return d.width(to)
	}
	return d.asUnlike(to, kernel)
}

// asUnlike is width for a law of a kernel by its donor alone.
func (d *Donor) asUnlike(to op.DeviceType, kernel string) float64 {
	if kernel != d.Law.Variant.Kernel {
		return max(d.width(to), otherKernelWidth)
	}
	return d.width(to)
}

// octavesToUnlike is how many doublings outside its own points' range a law that these moved
// is again as unsure as the donor by itself: they tell of what is near them.
const octavesToUnlike = 12

const (
	// fewToOwn is the number of points up to which a donor that was named is asked, and unseen
	// points decide between its law and the device's own. Of a GB200's products lent by a B200, own laws of
	// 250, 1,000 and 4,000 points are off by 7.5, 5.8 and 4.4 % on the average over other rows,
	// and lent ones of 20, 250, 1,000 and 2,000 by 5.0, 5.1, 4.9 and 4.5 %: beyond that it does not
	// matter, and takes twice as long.
	fewToOwn = 2000
	// fewToBelieve is the number of points below which the law of a device
	// counts as borrowed even where its own points moved it.
	fewToBelieve = 20
	// fewToMove is the number of points below which a lent law is left as it is carried.
	fewToMove = 3
	// donorWeight is how many points the interval that a donor promises weighs.
	donorWeight = 5
	// unmoved is the share of what a donor promises by which the interval of a law that is not
	// moved to its points reaches beyond the farthest of them. Where the donor is wrong, all
	// points are off by about what that one is, half of them by more: of aiconfigurator's tables
	// lent to themselves with all times a factor of 1.6 longer, an interval that ended at the
	// farthest of one or two points held 0.50 and 0.68 of the others, and this one 0.97 and 0.99.
	// Twice this share holds hardly more. A donor that is right hardly pays for it: the same
	// tables as they are have half widths of 0.086 and 0.079, where they had 0.086 and 0.077.
	unmoved = 0.5
)

// lent fits a law to few points with the help of a donor's: as it is carried
// over, moved as a whole to the points' median, or with its core estimated anew
// around the donor's. The way that predicts points it has not seen best is
// taken, from the simplest on, and its correction refined where there are points
// enough to learn one from; the interval shrinks from what the donor
// promises to what the points show. It returns the law with its errors on
// points that it has not seen. own are those of the device's own law, or none: a lent law
// whose correction cannot come to as little is left without.
func (c coreKind) lent(law *costmodel.Law, dev op.DeviceType, points []Point, own []float64, from *Donor) (*costmodel.Law, []float64, error) {
	carried := from.carry(dev)
	carried.Variant, carried.Device = law.Variant, law.Device
	switch {
	case len(points) >= fewToBelieve: // they are what its errors and its interval are of
		carried.Range, carried.MaxCells = law.Range, law.MaxCells
	case len(points) > 0:
		carried.Range, carried.MaxCells = hullWith(carried.Range, law.Range), cellsOfBoth(carried.MaxCells, law.MaxCells)
	}
	ways := []func([]Point) (*costmodel.Law, error){
		func([]Point) (*costmodel.Law, error) { return carried, nil },
		func(train []Point) (*costmodel.Law, error) { return moved(carried, train), nil },
		func(train []Point) (*costmodel.Law, error) { return c.around(carried, dev, train) },
	}
	var best *costmodel.Law
	var errs []float64
	var apart []timeOfShape
	for n, way := range ways {
		if n > 0 && len(points) < fewToMove || n == 2 && len(points) < fewestToFit+1 {
			break
		}
		judged := unseenBy
		if n == 2 && len(points) > fewToRefit {
			judged = seenBy
		}
		logs, bodies, err := judged(way, points, wayFolds)
		if err != nil {
			return nil, nil, err
		}
		if best != nil && meanError(logs) >= 0.95*meanError(errs) {
			continue
		}
		if best, err = way(points); err != nil {
			return nil, nil, err
		}
		errs, apart = logs, bodies
	}
	unseen := unseenErrors{logs: errs}
	if len(points) >= fewToCorrect {
		unseen = c.refined(best, dev, points, errs, own, from)
	}
	promised, err := unseen.promised(apart)
	if err != nil {
		return nil, nil, err
	}
	shown := 0.0
	if len(promised) > 0 {
		shown = math.Log(spread(notAlone(promised)).Hi)
	}
	n, asLent := float64(len(points)), from.promised(dev, law.Variant.Kernel, len(points))
	half := (donorWeight*asLent + n*shown) / (donorWeight + n)
	if n > 0 && n < fewToMove {
		half = max(half, shown+unmoved*asLent)
	}
	from.promise(best, half)
	if len(points) >= fewToBelieve {
		best.From = ""
		best.Widen = min(max(best.Widen, from.asUnlike(dev, law.Variant.Kernel)/(octavesToUnlike*half)), mostGrowth)
		best.Widen = oneLength(best, points)
	}
	return best, unseen.logs, nil
}

// refined learns from the points what a lent law leaves, around the donor's
// correction, where that predicts unseen points better, and than the device's own law, whose
// errors are own. It returns the errors on such of what it decided on.
func (c coreKind) refined(law *costmodel.Law, dev op.DeviceType, points []Point, errs, own []float64, from *Donor) unseenErrors {
	body, best := *law, unseenErrors{logs: errs}
	body.Correction = nil
	for _, prior := range []*costmodel.Field{law.Correction, from.Law.Correction} {
		than := best.logs
		if len(own) > 0 && meanError(own) < meanError(than) {
			than = own
		}
		field, unseen, err := learnField(c.field(points, &body, dev), points, bodyOf(&body), prior, than)
		if err == nil && excess(unseen.logs, best.logs).mean < 0 {
			law.Correction, best = field, unseen
		}
	}
	return best
}

// BorrowedForm begins the name of a rival that another device type lent.
const BorrowedForm = "borrowed from "

// orLent replaces a law of few points by what a donor makes of them where that
// predicts unseen points better, or where there is no other. The donor's law
// stands among the rivals either way.
func (c coreKind) orLent(law *costmodel.Law, logs []float64, dev op.DeviceType, points []Point, from *Donor) error {
	lent, errs, err := c.lent(law, dev, points, logs, from)
	if err != nil {
		return err
	}
	rival := costmodel.Rival{Form: BorrowedForm + from.Device.Name}
	if len(errs) > 0 {
		rival.Median = medianError(errs)
	}
	if len(logs) == 0 || meanError(errs) < meanError(logs) {
		for i := range law.Rivals {
			law.Rivals[i].Chosen = false
		}
		lent.Rivals, rival.Chosen = law.Rivals, true
		*law = *lent
	}
	if len(points) > 0 {
		law.Rivals = append(law.Rivals, rival)
	}
	return nil
}

// errorsOn are log(measured/predicted) of points.
func errorsOn(l *costmodel.Law, points []Point) []float64 {
	logs := make([]float64, len(points))
	for i, p := range points {
		logs[i] = math.Log(p.Seconds / float64(l.Seconds(p.Shape)))
	}
	return logs
}

func meanError(logs []float64) float64 {
	sum := 0.0
	for _, l := range logs {
		sum += math.Abs(l) / float64(len(logs))
	}
	return sum
}

// moved is a law scaled so that its median error on points is none.
func moved(l *costmodel.Law, points []Point) *costmodel.Law {
	m := l.Slowed(math.Exp(stats.Median(errorsOn(l, points))))
	return &m
}

// around estimates a core anew, starting from and held by the donor's, whose scale stays.
func (c coreKind) around(l *costmodel.Law, dev op.DeviceType, points []Point) (*costmodel.Law, error) {
	if l.Scale != 0 {
		points = slices.Clone(points)
		for i := range points {
			points[i].Seconds /= l.Scale
		}
	}
	fitted, err := c.fit(dev, points, l)
	if err != nil {
		return nil, err
	}
	m := *l
	m.Attention, m.GEMM = fitted.Attention, fitted.GEMM
	return &m, nil
}

// wayFolds is into how many parts points are divided to compare ways to lend a law.
const wayFolds = 10

// unseenBy are the errors, log(measured/predicted), of a way to make a law on
// points it was not made from, in at most k folds, and the bodies of the laws without each.
func unseenBy(way func([]Point) (*costmodel.Law, error), points []Point, k int) ([]float64, []timeOfShape, error) {
	k = min(len(points), k)
	if k == 0 {
		return nil, nil, nil
	}
	fold, logs, bodies := folds(points, k), make([]float64, len(points)), make([]timeOfShape, k)
	for n := range k {
		var train []Point
		for i, p := range points {
			if fold[i] != n {
				train = append(train, p)
			}
		}
		l, err := way(train)
		if err != nil {
			return nil, nil, err
		}
		bodies[n] = bodyOf(l)
		for i, p := range points {
			if fold[i] == n {
				logs[i] = math.Log(p.Seconds / float64(l.Seconds(p.Shape)))
			}
		}
	}
	return logs, bodies, nil
}

// seenBy is unseenBy where the points are so many that a law of a dozen coefficients hardly
// follows the ones it is judged by, and takes long to make again in every fold.
func seenBy(way func([]Point) (*costmodel.Law, error), points []Point, _ int) ([]float64, []timeOfShape, error) {
	l, err := way(points)
	if err != nil {
		return nil, nil, err
	}
	return errorsOn(l, points), nil, nil
}

// hullWith is the range that two ranges of one op cover together: shapes that the donor
// measured are its to predict, at the borrowed law's width, while the law counts as the
// donor's. An axis that only one of the
// two has is that of a batch, and the other was measured without.
func hullWith(a, b []costmodel.AxisRange) []costmodel.AxisRange {
	if len(a) < len(b) {
		a, b = b, a
	}
	all := slices.Clone(a)
	for i := range all {
		other := costmodel.AxisRange{Min: 1, Max: 1}
		if i < len(b) {
			other = b[i]
		}
		all[i].Min, all[i].Max = min(a[i].Min, other.Min), max(a[i].Max, other.Max)
	}
	return all
}

// cellsOfBoth are the most cells that a donor or its borrower measured; 0 where those of the donor
// are not known.
func cellsOfBoth(donor, own float64) float64 {
	if donor == 0 {
		return 0
	}
	return max(donor, own)
}

// Borrowed makes a profile for a device type that nobody measured: it takes every law of
// the most similar device that has any to lend, scales it by the ratios of the two
// datasheets and marks it as transferred. A law in a precision that the device does not
// compute in is lent as one of the precision used in its place (f16 for bf16 on older
// GPUs), or left out.
//
// Error: no donor has a law to lend.
func Borrowed(dev op.DeviceType, donors []Donor) (*costmodel.Profile, error) {
	var from *op.DeviceType
	for i := range donors {
		if d := &donors[i].Device; from == nil || distance(*d, dev) < distance(*from, dev) {
			from = d
		}
	}
	if from == nil {
		return nil, errors.New("no profile has a law of a GPU to lend; those that --borrow references names have")
	}
	p := &costmodel.Profile{Devices: []op.DeviceType{dev}, Holdout: costmodel.Holdout{Seed: Defaults().Seed}}
	for i := range donors {
		if donors[i].Device.Name != from.Name {
			continue
		}
		l := donors[i].carry(dev)
		t, ok := computesAs(dev, l.Variant.DType)
		l.Variant.DType = t
		if ok && !slices.ContainsFunc(p.Laws, func(o costmodel.Law) bool { return o.Op == l.Op && o.Variant == l.Variant }) {
			p.Laws = append(p.Laws, *l)
		}
	}
	p.Warnings = append(p.Warnings, fmt.Sprintf("nobody measured %s: its laws are those of %s by the ratios of the datasheets; a few dozen points of its own make them several times more accurate: evenkeel calibrate", dev.Name, from.Name))
	return p, nil
}

// computesAs is the precision that a device uses in place of t, and whether it has one.
// Tensor cores before Ampere have no bf16, and those of the MI100 run it at half the rate
// of f16, which is the rate in its datasheet: both use f16. A device whose datasheet
// states rates but none of fp8 has no fp8.
func computesAs(dev op.DeviceType, t op.DType) (op.DType, bool) {
	switch dev.Sheet.Arch {
	case "sm70", "sm75", "gfx908":
		if t == op.BF16 {
			return op.F16, true
		}
	}
	return t, t != op.FP8 || dev.Sheet.FP8PerS > 0 || dev.Sheet.BF16PerS == 0
}

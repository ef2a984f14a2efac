package fit

import (
	"cmp"
	"math"
	"slices"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/stats"
)

// coreKind is a physical core that can stand for an op's law: how it is
// estimated, and on which axes its residuals are learnt.
type coreKind struct {
	// fit estimates the core; a prior that is not nil stands for points that
	// were not measured.
	fit   func(dev op.DeviceType, points []Point, prior *costmodel.Law) (*costmodel.Law, error)
	field func(points []Point, core *costmodel.Law, dev op.DeviceType) fieldShape
}

// coreOf gives the core of a compute op on a device of whose datasheet anything is known,
// if only its generation; laws of others, which are processors, are linear.
func coreOf(k op.Kind, dev op.DeviceType) (coreKind, bool) {
	if dev.Sheet == (op.Sheet{}) {
		return coreKind{}, false
	}
	switch k {
	case op.KindAttnFwd, op.KindAttnBwd:
		return coreKind{attentionCoreLaw(k == op.KindAttnBwd), func(points []Point, law *costmodel.Law, dev op.DeviceType) fieldShape {
			body := *law
			s := attentionField(points, law.Attention.TileRows).on(dev)
			s.features, s.trees = attentionFeatures(&body, dev.Parallel), attentionTrees()
			core := *law.Attention
			s.alike = func() (timeOfShape, []timeOfShape) { return alikeCores(dev, k == op.KindAttnBwd, points, &core) }
			return s
		}}, true
	case op.KindGEMM:
		return coreKind{gemmCoreLaw, func(points []Point, law *costmodel.Law, _ op.DeviceType) fieldShape {
			s, core := gemmField(), law.GEMM
			s.tile = gemmTile(points)
			s.features, s.trees = func(s op.Shape) []float64 { x, _ := gemmFeatures(core, s.(op.GEMM)); return x }, gemmBoost()
			return s
		}}, true
	}
	return coreKind{}, false
}

func attentionCoreLaw(backward bool) func(op.DeviceType, []Point, *costmodel.Law) (*costmodel.Law, error) {
	return func(dev op.DeviceType, points []Point, prior *costmodel.Law) (*costmodel.Law, error) {
		var before *costmodel.AttentionCore
		if prior != nil {
			before = prior.Attention
		}
		core, err := fitAttentionCore(dev, backward, points, before)
		return &costmodel.Law{Attention: core}, err
	}
}

func gemmCoreLaw(dev op.DeviceType, points []Point, prior *costmodel.Law) (*costmodel.Law, error) {
	var before *costmodel.GEMMCore
	if prior != nil {
		before = prior.GEMM
	}
	core, err := fitGEMMCore(dev, points, before)
	return &costmodel.Law{GEMM: core}, err
}

const (
	// fewToCorrect is the number of points below which a correction has too
	// little to learn from.
	fewToCorrect = 24
	// fewToRefit is the number of points up to which a core is estimated anew
	// in every fold, and a donor is asked that nobody named; beyond it a dozen
	// coefficients follow a fifth of the points too little to tell.
	fewToRefit = 150
	coreFolds  = 5
	// fewToBorrow is the number of points up to which a sibling's correction
	// is worth the time to try it.
	fewToBorrow = 1000
)

// law fills in a law: by the points alone, or with a donor's help where they are few.
func (c coreKind) law(law *costmodel.Law, dev op.DeviceType, points []Point, sibling *costmodel.Field, from *Donor) error {
	if from != nil && len(points) > from.most() {
		from = nil
	}
	var logs []float64
	if len(points) >= fewestToFit {
		var err error
		priors := []*costmodel.Field{sibling}
		if from != nil {
			priors = append(priors, from.Law.Correction)
		}
		if logs, err = c.tiled(law, dev, points, priors); err != nil {
			return err
		}
	}
	if from == nil {
		return nil
	}
	return c.orLent(law, logs, dev, points, from)
}

// tiled fills in a law of a physical core, and of a correction where that
// proves itself on points it has not seen. It returns its errors on such, by which
// laws are compared.
func (c coreKind) tiled(law *costmodel.Law, dev op.DeviceType, points []Point, priors []*costmodel.Field) ([]float64, error) {
	fitted, err := c.fit(dev, points, nil)
	if err != nil {
		return nil, err
	}
	law.Attention, law.GEMM = fitted.Attention, fitted.GEMM
	logs, apart, err := c.alone(law, dev, points)
	if err != nil {
		return nil, err
	}
	law.Rivals = append(law.Rivals, costmodel.Rival{Form: law.Form(), Median: medianError(logs), Chosen: true})
	shape, unseen := c.field(points, law, dev), unseenErrors{logs: logs}
	if len(points) >= fewToCorrect {
		unseen = correct(law, shape, points, logs, priors)
	}
	logs = unseen.logs
	if unseen.logs, err = unseen.promised(apart); err != nil {
		return nil, err
	}
	law.Spread = spread(notAlone(unseen.logs))
	if len(points) >= fewToRefit {
		law.Width = shape.widths(points, unseen, 0.9)
		law.Widen = shape.growth(points, law.Width)
	}
	law.Widen = oneLength(law, points)
	return logs, nil
}

const (
	// fewToTame is the number of errors up to which the largest of them is their conformal
	// quantile of 0.9: see spread.
	fewToTame = 18
	// mostAlone is how many times the next one the largest of so few errors counts at most.
	mostAlone = 2
)

// notAlone bounds the largest of few errors, which by itself would be the interval: with one
// time read wrong by a factor of a hundred, of every call. Laws of 6, 8 and 12 points of
// others' tables of attention and products had 95 to 97 % of the other points in intervals of
// the largest error whatever it was, and have 92 to 97 % in ones a tenth narrower.
func notAlone(logs []float64) []float64 {
	if len(logs) < fewestToFit || len(logs) > fewToTame {
		return logs
	}
	order := slices.SortedFunc(slices.Values(logs), func(a, b float64) int { return cmp.Compare(math.Abs(a), math.Abs(b)) })
	most := mostAlone * math.Abs(order[len(order)-2])
	tamed := slices.Clone(logs)
	for i, l := range logs {
		tamed[i] = max(-most, min(most, l))
	}
	return tamed
}

// untoldLength is the half width that a law is missing a doubling beyond the range, in log
// time, if all its points have about one length: how its time divides into what grows with
// the length and what does not is then what is usual of devices, however well it knows its
// own points. Of others' tables of attention, laws of 2,048 tokens alone had 95th percentiles
// of |log error| of 0.38 (bidirectional) and 0.75 (causal) at other lengths, in the median.
const untoldLength = 0.12

// oneLength is by what share of itself a law's interval grows a doubling beyond the range,
// Widen, where its points may have no two lengths, or rows of a product, an octave apart.
func oneLength(law *costmodel.Law, points []Point) float64 {
	if r := law.Range[0]; r.Max >= 2*r.Min {
		return law.Widen
	}
	half := make([]float64, len(points))
	for i, p := range points {
		e := law.Predict(p.Shape)
		half[i] = math.Log(float64(e.Hi/e.Lo)) / 2
	}
	usual := law.Widen
	if usual == 0 {
		usual = 1 // as an absent one is read
	}
	return min(max(usual, untoldLength/max(stats.Median(half), leastScale)), mostGrowth)
}

// correct gives a law the correction that proves itself in cross-validation
// against none, and returns the errors of what it decided on. A sibling's
// correction, that of the same kernel at another head width with more points, or
// a donor's on another device is tried as the prior of a law with few.
func correct(law *costmodel.Law, shape fieldShape, points []Point, logs []float64, others []*costmodel.Field) unseenErrors {
	core, unseen := bodyOf(law), unseenErrors{logs: logs}
	priors := []*costmodel.Field{nil}
	for _, other := range others {
		if other != nil && len(points) < fewToBorrow {
			priors = append(priors, other)
		}
	}
	for _, prior := range priors {
		field, corrected, err := learnField(shape, points, core, prior, nil)
		if err == nil && excess(corrected.compared(), unseen.compared()).mean < 0 {
			law.Correction, unseen = field, corrected
		}
	}
	if law.Correction != nil {
		law.Rivals[len(law.Rivals)-1].Chosen = false
		law.Rivals = append(law.Rivals, costmodel.Rival{Form: law.Form(), Median: medianError(unseen.compared()), Chosen: true})
	}
	return unseen
}

// timeOfShape is what a law's body takes for a shape, in seconds.
type timeOfShape func(op.Shape) float64

// bodyOf is the time of a law without its correction.
func bodyOf(law *costmodel.Law) timeOfShape {
	body := *law
	body.Correction = nil
	return func(s op.Shape) float64 { return float64(body.Seconds(s)) }
}

// alone are the errors, log(measured/predicted), of the core by itself: on
// points it has not seen where they are few, with the cores of the others.
func (c coreKind) alone(law *costmodel.Law, dev op.DeviceType, points []Point) ([]float64, []timeOfShape, error) {
	if len(points) <= fewToRefit {
		return unseenBy(func(train []Point) (*costmodel.Law, error) { return c.fit(dev, train, nil) }, points, coreFolds)
	}
	return errorsOn(law, points), nil, nil
}

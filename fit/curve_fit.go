package fit

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// collectives are the laws of all collectives of a data set, fitted library by
// library.
type collectives struct {
	laws     map[string]curveLaw // by the stratum's name
	ports    map[string]*op.Port // by the stratum's name, where one is known
	steps    []costmodel.Steps
	warnings []string // of families that could not be fitted: their laws keep simpler forms
}

// collectives fits the collectives among strata, to all the points they hold.
func (d *Data) collectives(strata []Stratum) collectives {
	all := collectives{laws: map[string]curveLaw{}, ports: map[string]*op.Port{}}
	for _, library := range d.libraries(strata) {
		port, odd := library.port(d.Devices)
		if odd != "" {
			all.warnings = append(all.warnings, odd)
		}
		var laws [][]Point
		for _, s := range library.strata {
			laws = append(laws, s.Points)
			all.ports[s.String()] = port
		}
		link := func(best float64) fabric { return fabricOf(library.group, d.sheet(library.group), best) }
		fitted, fits, err := curveLaws(link, laws)
		if err != nil {
			all.warnings = append(all.warnings, fmt.Sprintf("collectives of %s: %v", library.group.Name, err))
			continue
		}
		for i, s := range library.strata {
			all.laws[s.String()] = fitted[i]
		}
		if device := soleDevice(library.group); device != "" && library.group.Nodes == 1 {
			for _, t := range fits {
				for _, s := range t.steps(device, library.group.Link) {
					s.Port = port
					all.steps = append(all.steps, s)
				}
			}
		}
	}
	return all
}

// library is the strata of collectives among the same device types, on one node
// or on several, over one link class: what is fitted together. A device type
// holds its software, so two libraries never meet.
type library struct {
	group  op.GroupType // of the first stratum
	strata []Stratum
}

func (d *Data) libraries(strata []Stratum) []library {
	at := map[string]int{}
	var all []library
	for _, s := range strata {
		i := slices.IndexFunc(d.Groups, func(g op.GroupType) bool { return g.Name == s.On })
		spec, err := op.Lookup(s.Op)
		if i < 0 || err != nil || spec.Class != op.Collective {
			continue
		}
		if len(s.Points) < fewestToFit {
			continue
		}
		key := companyKey(d.Groups[i])
		k, ok := at[key]
		if !ok {
			k = len(all)
			at[key] = k
			all = append(all, library{group: d.Groups[i]})
		}
		all[k].strata = append(all[k].strata, s)
	}
	return all
}

// companyKey tells groups apart that are not fitted together: by device types,
// link class and whether they leave their node, not by size.
func companyKey(g op.GroupType) string {
	var types []string
	for _, m := range g.Members {
		types = append(types, m.Device)
	}
	return fmt.Sprintf("%s over %s, several nodes: %v", strings.Join(types, " + "), g.Link, g.Nodes > 1)
}

// soleDevice is the type of all the group's devices, or "" where they differ.
func soleDevice(g op.GroupType) string {
	for _, m := range g.Members {
		if m.Device != g.Members[0].Device {
			return ""
		}
	}
	return g.Members[0].Device
}

// sheet is the datasheet of a group's slowest link.
func (d *Data) sheet(g op.GroupType) op.Sheet {
	var slowest op.Sheet
	for i, m := range g.Members {
		k := slices.IndexFunc(d.Devices, func(dev op.DeviceType) bool { return dev.Name == m.Device })
		if k < 0 {
			return op.Sheet{}
		}
		if s := d.Devices[k].Sheet; i == 0 || s.LinkPerS < slowest.LinkPerS {
			slowest = s
		}
	}
	return slowest
}

// prefer puts its family's curve into a law that was chosen among collectiveForms,
// but for two cases: a single alpha + beta x is as good, to a standard error, and says
// the same of larger messages, which then is the truth and says more to a reader; or the
// best of the simpler forms is better by more than a standard error, and says the same of
// messages below where the measured ones end, if these do not tell what a message of no
// bytes takes.
func (l curveLaw) prefer(law *costmodel.Law, points []Point) {
	rival, smallest, largest := costmodel.Rival{Form: FamilyForm, Median: medianError(l.logs)}, smallestOf(points), largestOf(points)
	width := widthsBySize(points, l.tabled)
	points, own := some(points, l.logs)
	var best []float64
	for i, f := range collectiveForms() {
		logs := f.crossValidate(points)
		if !whole(logs) {
			continue
		}
		if over := excess(logs, own); i == 0 && over.mean <= over.se && l.straightOn(f, points, smallest, largest) {
			law.Rivals = append(law.Rivals, rival)
			return
		}
		if best == nil || excess(logs, best).mean < 0 {
			best = logs
		}
	}
	if best != nil {
		if over := excess(own, best); over.mean > over.se && l.straightBelow(law.Curve, smallest) {
			law.Rivals = append(law.Rivals, rival)
			l.goOn(law, largest)
			return
		}
	}
	for i := range law.Rivals {
		law.Rivals[i].Chosen = false
	}
	rival.Chosen = true
	law.Rivals = append(law.Rivals, rival)
	law.Curve, law.Spread, law.Width = l.curve, spread(l.logs), width
}

// goOn lets a law of several pieces go on beyond its largest message as the family's curve
// does, where its last piece says anything else: of many pieces the last may be short, and
// its line says little of messages eight times as large. The interval widens to the family's
// there, or by what the law jumps at most where its library changes protocols: there may be
// another change.
func (l curveLaw) goOn(law *costmodel.Law, message op.Shape) {
	if law.Curve == nil || len(law.Curve.Pieces) < fewestSeveral {
		return
	}
	largest := op.Volume(message)
	far := largest << octavesOn
	half, _ := l.curve.HalfWidth(far)
	half = max(half, mostJump(law.Curve.Pieces))
	own := math.Log(law.Spread.Hi/law.Spread.Lo) / 2
	if law.Width != nil {
		own = math.Exp(law.Width.WidthLog(message))
	}
	own = max(own, leastScale) // of a library without noise it is 0
	law.Widen = min(max(1, (half/own-1)/octavesOn), mostGrowth)
	at := float64(law.Curve.Seconds(largest))
	growth := min(float64(l.curve.Seconds(far)/l.curve.Seconds(largest)), 1<<octavesOn)
	if math.Abs(math.Log(at*growth/float64(law.Curve.Seconds(far)))) <= straightOff {
		return
	}
	beta := at * (growth - 1) / float64(far-largest)
	law.Curve.Pieces = append(law.Curve.Pieces, costmodel.Piece{From: largest + 1, Alpha: exactCoef(max(0, at-beta*float64(largest))), Beta: exactCoef(beta)})
}

// exactCoef is a coefficient that was not estimated.
func exactCoef(v float64) costmodel.Coef { return costmodel.Coef{Value: v, Lo: v, Hi: v} }

// mostJump is by how much, in log time, pieces differ at most where one follows another.
func mostJump(pieces []costmodel.Piece) float64 {
	most := 0.0
	for i, p := range pieces[1:] {
		x, before := float64(p.From), pieces[i]
		most = max(most, math.Abs(math.Log((p.Alpha.Value+p.Beta.Value*x)/(before.Alpha.Value+before.Beta.Value*x))))
	}
	return most
}

// straightOn says whether a form fitted to the points is as near to the family's curve as
// beyond allows, or next to it, at messages larger than the measured ones, and next to it at
// smaller ones as far as the curve goes there. To a dozen points that end
// where the rate still rises a straight line is as good as any curve, and its rate is the one
// at their end: of others' messages on H100 nodes, fitted up to an eighth of the largest, it
// was off by 27, 13 and 15 % on average, with NCCL 2.23, 2.27 and 2.29, where the family is
// by 8, 8 and 9.
func (l curveLaw) straightOn(f form, points []Point, smallest, largest op.Shape) bool {
	law, err := f.fit(points)
	if err != nil {
		return false
	}
	for k, most := range l.beyond {
		if l.off(law.Curve, op.Volume(largest)<<(k+1)) > max(most, straightOff) {
			return false
		}
	}
	return l.straightBelow(law.Curve, smallest)
}

// latencyTold is by how many times the time of a message of no bytes the smallest measured one may
// take at most to tell it.
const latencyTold = 1.5

// straightBelow is straightOn of the smaller messages: of a curve that was fitted to messages
// too large to tell the latency, which is whatever its line was left with, or none at all. The
// family's interval is wide there and says little: the curve must be next to its middle, for
// that interval is then not the law's.
func (l curveLaw) straightBelow(c *costmodel.Curve, smallest op.Shape) bool {
	x := op.Volume(smallest)
	if math.Log2(float64(x)) < largeOctave || l.curve.Seconds(x) < latencyTold*l.curve.Seconds(1) {
		return true
	}
	for _, k := range l.curve.Knots {
		if 2*k.Bytes <= x && l.off(c, k.Bytes) > straightOff { // of placesBelow
			return false
		}
	}
	return true
}

// off is by how much, in log time, a curve differs from the family's.
func (l curveLaw) off(c *costmodel.Curve, x units.Bytes) float64 {
	return math.Abs(math.Log(float64(c.Seconds(x) / l.curve.Seconds(x))))
}

const (
	// octavesOn is how far beyond the measured messages two curves are compared.
	octavesOn = 3
	// straightOff is by how much, in log time, they may differ there however sure the family is.
	straightOff = 0.1
)

func largestOf(points []Point) op.Shape {
	return slices.MaxFunc(points, func(a, b Point) int { return cmp.Compare(op.Volume(a.Shape), op.Volume(b.Shape)) }).Shape
}

func smallestOf(points []Point) op.Shape {
	return slices.MinFunc(points, func(a, b Point) int { return cmp.Compare(op.Volume(a.Shape), op.Volume(b.Shape)) }).Shape
}

// some are points enough to compare forms on, with their errors.
func some(points []Point, logs []float64) ([]Point, []float64) {
	step := 1 + (len(points)-1)/enoughToCompare
	if step == 1 {
		return points, logs
	}
	var few []Point
	var errs []float64
	for i := 0; i < len(points); i += step {
		few, errs = append(few, points[i]), append(errs, logs[i])
	}
	return few, errs
}

// FamilyForm names the curve of a family among a law's rivals.
const FamilyForm = "family of curves"

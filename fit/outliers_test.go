package fit

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// fleet is a made-up cluster whose truth is known: one device type at several
// places, and one group signature of four ranks at several places.
type fleet struct {
	d      *Data
	r      *rand.Rand
	noise  float64
	places int
	groups int
}

const (
	fleetDevice = "gpu"
	fleetGroup  = "4 gpu over nvlink"
	fleetRanks  = 4
)

func newFleet(seed uint64, noise float64, places, groups int) *fleet {
	f := &fleet{d: NewData(), r: rand.New(rand.NewPCG(seed, 7)), noise: noise, places: places, groups: groups}
	f.d.Devices = []op.DeviceType{{Name: fleetDevice, Fingerprint: "f", Parallel: 8}}
	f.d.Groups = []op.GroupType{op.NewGroupType([]op.Member{{Device: fleetDevice, Count: fleetRanks}}, 1, "nvlink")}
	for i := range places {
		name := fmt.Sprintf("n%d/g%d", i/fleetRanks, i%fleetRanks)
		f.d.places = append(f.d.places, profile.Place{On: fleetDevice, Name: name, Ranks: []string{name}})
	}
	for i := range groups {
		p := profile.Place{On: fleetGroup, Name: fmt.Sprintf("n%d", i)}
		for r := range fleetRanks {
			p.Ranks = append(p.Ranks, fmt.Sprintf("n%d/g%d", i, r))
		}
		f.d.places = append(f.d.places, p)
	}
	return f
}

func (f *fleet) noisy(t float64) float64 { return t * math.Exp(f.noise*f.r.NormFloat64()) }

// device measures one shape at every place; slow gives a place's true factor.
func (f *fleet) device(s op.Shape, truth float64, slow func(place int) float64) {
	for i := range f.places {
		p := &profile.Point{Spot: profile.Spot{On: fleetDevice, Op: s.Kind(), Shape: s}, Times: []float64{f.noisy(truth * slow(i))}}
		f.add(p, i, f.d.places[i].Name)
	}
}

// group measures one shape on every instance; slow gives the true factor of a
// rank's own time. The call takes as long as its slowest rank.
func (f *fleet) group(s op.Shape, truth float64, slow func(place, rank int) float64) {
	for i := range f.groups {
		p := &profile.Point{Spot: profile.Spot{On: fleetGroup, Op: s.Kind(), Shape: s}}
		for r := range fleetRanks {
			p.RankTimes = append(p.RankTimes, []float64{f.noisy(truth * slow(i, r))})
			if most := p.RankTimes[r][0]; r == 0 || most > p.Times[0] {
				p.Times = []float64{most}
			}
		}
		f.add(p, i, f.d.places[f.places+i].Name)
	}
}

func (f *fleet) add(p *profile.Point, i int, place string) {
	if i == 0 {
		f.d.Observe(p)
		return
	}
	p.Place = place
	f.d.peer(p)
}

func same(int) float64 { return 1 }

func alike(int, int) float64 { return 1 }

// canaries measures five compute shapes everywhere.
func (f *fleet) canaries(slow func(place int) float64) {
	for i := range 5 {
		n := units.Tokens(1024 << i)
		f.device(op.GEMM{Pass: op.Forward, M: n, N: 512, K: 512, DType: op.BF16}, 1e-6*float64(n), slow)
	}
}

// collectives measures seven sizes of two collectives everywhere.
func (f *fleet) collectives(slow func(place, rank int) float64) {
	for _, k := range []op.Kind{op.KindAllGather, op.KindAllReduce} {
		for i := range 7 {
			b := units.Bytes(1 << (12 + 2*i))
			f.group(op.OfMessage(k, op.Message{Group: fleetRanks, Bytes: b}), 1e-5+float64(b)/1e10, slow)
		}
	}
}

func TestASlowRankIsFound(t *testing.T) {
	f := newFleet(1, 0.01, 8, 2)
	f.canaries(same)
	f.collectives(func(place, rank int) float64 {
		if place == 1 && rank == 3 {
			return 1.22
		}
		return 1
	})
	var ranks, places []costmodel.Outlier
	for _, o := range Outliers(f.d) {
		if o.Rank != "" {
			ranks = append(ranks, o)
		} else {
			places = append(places, o)
		}
	}
	if len(ranks) != 2 || len(places) != 2 {
		t.Fatalf("found %v and %v, want one rank and its group in two collectives", ranks, places)
	}
	for _, o := range ranks {
		if o.Rank != "n1/g3" || o.Place != "n1" || o.On != fleetGroup || o.Points != 7 || math.Abs(o.Scale-1.22) > 0.02 {
			t.Errorf("%+v", o)
		}
	}
	// A group is as slow as its slowest rank.
	for _, o := range places {
		if o.Place != "n1" || o.Op == "" || math.Abs(o.Scale-1.21) > 0.03 {
			t.Errorf("%+v", o)
		}
	}
}

func TestADeviceThatDiffersIsFound(t *testing.T) {
	for _, factor := range []float64{1.06, 0.94} {
		for places := 3; places <= 8; places++ {
			f := newFleet(uint64(places), 0.005, places, 2)
			f.canaries(func(place int) float64 {
				if place == places-1 {
					return factor
				}
				return 1
			})
			found := Outliers(f.d)
			if len(found) != 1 || found[0].Place != f.d.places[places-1].Name || found[0].Op != "" || math.Abs(found[0].Scale-factor) > 0.015 || found[0].Points != 5 {
				t.Errorf("%v among %d: %v", factor, places, found)
			}
		}
	}
}

// Of two devices the slower one is odd, and it may be the one that the points
// of the laws were measured on.
func TestOfTwoTheSlowerIsOdd(t *testing.T) {
	for slower := range 2 {
		f := newFleet(3, 0.005, 2, 1)
		f.canaries(func(place int) float64 {
			if place == slower {
				return 1.1
			}
			return 1
		})
		if found := Outliers(f.d); len(found) != 1 || found[0].Place != f.d.places[slower].Name || math.Abs(found[0].Scale-1.1) > 0.02 {
			t.Errorf("place %d is slow, found %v", slower, found)
		}
	}
}

// Below fifteen percent an instance of a group is odd only in a quiet class.
func TestAGroupIsJudgedByTheSpreadOfItsClass(t *testing.T) {
	for noise, want := range map[float64]int{0.002: 2, 0.06: 0} {
		f := newFleet(5, noise, 1, 6)
		f.collectives(func(place, _ int) float64 {
			if place == 4 {
				return 1.11
			}
			return 1
		})
		if found := Outliers(f.d); len(found) != want {
			t.Errorf("noise %v: found %v, want %d", noise, found, want)
		}
	}
}

// Clean clusters: with 1 % of noise hardly one in twenty may raise an alarm.
func TestCleanClustersRaiseNoAlarm(t *testing.T) {
	alarms := 0
	const clusters = 200
	for seed := range uint64(clusters) {
		places, groups := 2+int(seed%7), 2+int(seed%3)
		f := newFleet(seed, 0.01, places, groups)
		f.canaries(same)
		f.collectives(alike)
		if found := Outliers(f.d); len(found) > 0 {
			alarms++
			t.Logf("seed %d: %v", seed, found)
		}
	}
	t.Logf("%d of %d clean clusters raised an alarm", alarms, clusters)
	if alarms*20 > clusters {
		t.Errorf("%d of %d clean clusters raised an alarm", alarms, clusters)
	}
}

// Ranks that a pair exchange leaves idle wait for nobody, and in an uneven
// all-to-all some have more to do: neither is odd.
func TestRanksWithOtherWorkAreNotCompared(t *testing.T) {
	f := newFleet(9, 0.01, 1, 2)
	for i := range 5 {
		b := units.Bytes(1 << (14 + 2*i))
		f.group(op.Pairs{Group: fleetRanks, Pairs: 1, Bytes: b}, 1e-4, func(_, rank int) float64 {
			if rank%2 == 0 {
				return 1
			}
			return 0.01
		})
		m := make([][]units.Bytes, fleetRanks)
		for r := range m {
			m[r] = make([]units.Bytes, fleetRanks)
			m[r][(r+1)%fleetRanks] = b * units.Bytes(r+1)
		}
		f.group(op.AllToAllV{Matrix: m}, 1e-4, func(_, rank int) float64 { return float64(1 + rank) })
	}
	if found := Outliers(f.d); len(found) != 0 {
		t.Errorf("found %v", found)
	}
	if got := f.d.rankRatios(f.d.Points[0], f.d.place(fleetGroup)); !math.IsNaN(got[1]) || math.IsNaN(got[0]) || !math.IsNaN(got[3]) {
		t.Errorf("ratios of one pair of four ranks: %v", got)
	}
}

// In a mixed group a rank is compared with those of its own device type.
func TestAMixedGroupIsJudgedTypeByType(t *testing.T) {
	f := newFleet(11, 0.01, 2, 1)
	f.d.Devices = append(f.d.Devices, op.DeviceType{Name: "old", Fingerprint: "o", Parallel: 8})
	f.d.places = append(f.d.places, profile.Place{On: "old", Name: "n0/g2"}, profile.Place{On: "old", Name: "n0/g3"})
	f.collectives(func(_, rank int) float64 {
		return []float64{1, 1, 1.6, 1.6}[rank]
	})
	if found := Outliers(f.d); len(found) != 0 {
		t.Errorf("the slower type is no outlier: %v", found)
	}
	f = newFleet(11, 0.01, 2, 1)
	f.d.Devices = append(f.d.Devices, op.DeviceType{Name: "old", Fingerprint: "o", Parallel: 8})
	f.d.places = append(f.d.places, profile.Place{On: "old", Name: "n0/g2"}, profile.Place{On: "old", Name: "n0/g3"})
	f.collectives(func(_, rank int) float64 {
		return []float64{1, 1, 1.6, 2}[rank]
	})
	found := Outliers(f.d)
	if len(found) != 2 || found[0].Rank != "n0/g3" || math.Abs(found[0].Scale-1.25) > 0.03 {
		t.Errorf("found %v, want n0/g3 in two collectives", found)
	}
}

// Of a mixed group whose devices nobody names no rank is compared with another.
func TestAnUnnamedMixedGroupIsNotJudged(t *testing.T) {
	for mixed, want := range map[bool]int{false: 2, true: 0} {
		f := newFleet(12, 0.01, 1, 1)
		f.d.places = f.d.places[:1]
		f.d.places[0].Name = "elsewhere"
		if mixed {
			f.d.Groups[0].Members = []op.Member{{Device: fleetDevice, Count: 2}, {Device: "old", Count: 2}}
		}
		for i := range 4 {
			for _, k := range []op.Kind{op.KindAllGather, op.KindAllReduce} {
				s := op.OfMessage(k, op.Message{Group: fleetRanks, Bytes: units.Bytes(4096 << i)})
				f.d.Observe(&profile.Point{
					Spot: profile.Spot{On: fleetGroup, Op: k, Shape: s}, Times: []float64{1.6},
					RankTimes: [][]float64{{1}, {1.01}, {1}, {1.6}},
				})
			}
		}
		found := Outliers(f.d)
		if len(found) != want {
			t.Errorf("mixed: %v: %v", mixed, found)
		}
		for _, o := range found {
			if o.Rank != "rank 3" || o.Place != fleetGroup {
				t.Errorf("%+v", o)
			}
		}
	}
}

// Three slow points among many are chance, and two prove nothing.
func TestFewSlowPointsAreNoFinding(t *testing.T) {
	for slow, want := range map[int]int{2: 0, 3: 0, 6: 1} {
		f := newFleet(13, 0.005, 1, 1)
		for i := range 20 {
			s := op.AllGather{Message: op.Message{Group: fleetRanks, Bytes: units.Bytes(4096 + 64*i)}}
			f.group(s, 1e-4, func(_, rank int) float64 {
				if rank == 2 && i < slow {
					return 1.4
				}
				return 1
			})
		}
		if found := Outliers(f.d); len(found) != want {
			t.Errorf("%d slow of 20: %v", slow, found)
		}
	}
}

// Findings reach the profile: as a list and, in words, among its warnings.
func TestOutliersLandInTheProfile(t *testing.T) {
	f := newFleet(17, 0.005, 4, 2)
	f.canaries(func(place int) float64 { return []float64{1, 1, 1.05, 1}[place] })
	f.collectives(alike)
	p := &costmodel.Profile{}
	f.d.facts(p)
	if len(p.Outliers) != 1 || p.Outliers[0].Place != "n0/g2" || p.Outliers[0].On != fleetDevice {
		t.Fatalf("%+v", p.Outliers)
	}
	if want := p.Outliers[0].String() + "; look into it, or leave it out of the cluster"; !slices.Contains(p.Warnings, want) {
		t.Errorf("warnings %q lack %q", p.Warnings, want)
	}
}

// A place measured twice counts with its faster visit, and a failed peer not at all.
func TestAPeerCountsOnce(t *testing.T) {
	f := newFleet(19, 0, 3, 1)
	f.canaries(same)
	for _, p := range f.d.Points {
		spot := profile.Spot{On: p.On, Op: p.Shape.Kind(), Shape: p.Shape}
		f.d.peer(&profile.Point{Spot: spot, Place: "n0/g1", Times: []float64{2 * p.Seconds}})
		f.d.peer(&profile.Point{Spot: spot, Place: "n0/g2", Class: profile.Crashed, Error: "gone"})
	}
	for _, r := range f.d.readings() {
		if len(r) != 3 || r[1].Seconds != r[0].Seconds {
			t.Errorf("%d readings, the second takes %v", len(r), r[1].Seconds)
		}
	}
	if found := Outliers(f.d); len(found) != 0 {
		t.Errorf("found %v", found)
	}
}

// Where times scatter by half, as between processes that share cores, no place
// is odd by chance; and ranks that wait for each other's cores are not judged.
func TestScatterIsNoOutlier(t *testing.T) {
	alarms := 0
	for seed := range uint64(100) {
		f := newFleet(seed, 0.5, 4, 2)
		f.collectives(alike)
		for _, o := range Outliers(f.d) {
			if o.Rank != "" {
				alarms++
				t.Logf("seed %d: %+v", seed, o)
			}
		}
	}
	if alarms > 20 {
		t.Errorf("%d ranks of 800 were called slow", alarms)
	}
	f := newFleet(1, 0.01, 1, 2)
	f.d.Groups[0].Link += op.Oversubscribed
	f.collectives(func(place, rank int) float64 { return 1 + float64(place+rank) })
	if found := Outliers(f.d); len(found) != 0 {
		t.Errorf("ranks without cores of their own were judged: %v", found)
	}
}

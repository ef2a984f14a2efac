package fit

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// A port is what the datasheet says, lifted to what a point was faster by within the
// slack; points beyond that say that the datasheet is of another link.
func TestPortOfALibrary(t *testing.T) {
	pairs := func(link string, nodes int, rates ...float64) library {
		l := library{group: op.NewGroupType([]op.Member{{Device: "gpu", Count: 2}}, nodes, link)}
		for _, rate := range rates {
			s := op.SendRecv{Message: op.Message{Group: 2, Bytes: 1 << 30}}
			l.strata = append(l.strata, Stratum{On: l.group.Name, Op: op.KindSendRecv, Points: []Point{{Shape: s, Seconds: (1 << 30) / rate}}})
		}
		return l
	}
	for _, c := range []struct {
		name string
		of   library
		want float64 // 0 for none
		odd  string
	}{
		{"slower than its datasheet", pairs("nvlink", 1, 3e11, 2e11), 4e11, ""},
		{"a little faster", pairs("nvlink", 1, 3e11, 4.1e11), 4.1e11, ""},
		{"another link", pairs("nvlink", 1, 3e11, 5e11), 0, "a rank sends 500 GB/s, more than the 400 GB/s of its datasheet"},
		{"a name that no datasheet has", pairs("bridge", 1, 5e11), 3e12, ""},
		{"between nodes", pairs("net", 2, 3e11), 4.6e11, ""},
		{"a device that is not listed", library{group: op.NewGroupType([]op.Member{{Device: "other", Count: 2}}, 1, "nvlink")}, 0, ""},
	} {
		port, odd := c.of.port([]op.DeviceType{{Name: "gpu", Sheet: sheet()}})
		if (port == nil) != (c.want == 0) || port != nil && !nearly(float64(port.PerS), c.want) {
			t.Errorf("%s: %+v, want %v", c.name, port, c.want)
		}
		if (odd == "") != (c.odd == "") || !strings.Contains(odd, c.odd) {
			t.Errorf("%s: %q, want %q", c.name, odd, c.odd)
		}
	}
}

func nearly(a, b float64) bool { return a/b-1 < 1e-9 && b/a-1 < 1e-9 }

// The ends of an assumed link's intervals stay within the rate that it was assumed from,
// where that is all a device has for the others.
func TestAssumedLinksHavePorts(t *testing.T) {
	for _, c := range []struct {
		cluster string
		link    string
		members []op.Member
		want    float64
	}{
		{"1x8 big/engine", DeviceLink, []op.Member{{Device: "big/engine", Count: 8}}, 4e11},
		{"1x(4 big/engine + 4 small/engine)", HostBusLink, []op.Member{{Device: "big/engine", Count: 4}, {Device: "small/engine", Count: 4}}, 6e10},
		{"2x8 big/engine", NetworkLink, []op.Member{{Device: "big/engine", Count: 16}}, 4.6e11},
	} {
		p := measuredOnly("big", "small")
		eachSheet(p, func(model string, s *op.Sheet) {
			if model == "small" {
				s.HostPerS = 3e10 // the faster one may be the busier in an uneven all-to-all
			}
		})
		p.Groups, p.Laws = nil, nil
		assumedLinks(t, p, c.cluster)
		for _, k := range costmodel.StepCollectives() {
			l, _, err := costmodel.NewCallPredictor(p).Over(c.link, k, c.members)
			if err != nil || l.Port == nil || !nearly(float64(l.Port.PerS), c.want) {
				t.Errorf("%s, %s: %+v, %v; want at most %v", c.cluster, k, l, err, c.want)
			}
		}
	}
}

// Eight H100 shift a GiB in no less than NVLink's 450 GB/s take, though all_gathers of up to
// 32 MiB are all that the law was assumed from; nor is a law's lower end below that
// anywhere, in a group that was measured or not.
func TestRecordedLawsKeepToTheirPorts(t *testing.T) {
	if testing.Short() {
		t.Skip("long; goroutines have shorter tests")
	}
	d := NewData()
	for _, r := range tables(t, "aiconfigurator/h100_sxm/nccl.csv") {
		if strings.Contains(r.name, "nccl-2.27.3 ") {
			d.addTable(r)
		}
	}
	p, err := Fit(d, Defaults())
	if err != nil {
		t.Fatal(err)
	}
	Assume(p)
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	q := costmodel.NewCallPredictor(p)
	for _, k := range []op.Kind{op.KindAllReduce, op.KindAllGather, op.KindReduceScatter, op.KindAllToAll, op.KindSendRecv} {
		for _, n := range []int{2, 3, 8, 16} {
			l, factor, err := q.Over("nvlink", k, []op.Member{{Device: "h100_sxm", Count: n}})
			if err != nil || l.Port == nil || *l.Port != (op.Port{PerS: 450e9, InNetwork: true}) {
				t.Fatalf("%s among %d: %+v, %v", k, n, l, err)
			}
			for size := units.Bytes(1 << 20); size <= 16*units.GiB; size *= 4 {
				s := op.OfMessage(k, op.Message{Group: n, Bytes: size})
				e := costmodel.Transfer(l, factor, s)
				if least := l.Port.Least(k, n, op.Volume(s)); e.Lo < least || e.Mid < e.Lo || e.Hi < e.Mid {
					t.Errorf("%s of %s among %d: %+v, no less than %v is possible", k, size, n, e, least)
				}
			}
		}
	}
}

// addTable adds the points of a table, its device and its group.
func (d *Data) addTable(r recorded) {
	if len(d.Devices) == 0 {
		d.Devices = append(d.Devices, r.device)
	}
	d.addGroup(r.group)
	for _, p := range r.points {
		p.On = r.group.Name
		d.Points = append(d.Points, p)
	}
}

// The ports that messages of up to an eighth of the largest give bound the larger ones too.
// A rate of the smaller ones would not: with NCCL on GB200, all_gathers among four move at
// 125 GB/s from 4 MiB to 8 MiB, as if that were all, and at 571 GB/s at 512 MiB.
func TestPortsHoldForLargerMessages(t *testing.T) {
	held := 0
	for _, lib := range libraries(t, "aiconfigurator/*/nccl.csv", "aiconfigurator/*/oneccl.csv", "aiconfigurator/*/custom_allreduce.csv") {
		l := library{group: lib[0].group}
		var larger []Point
		for _, r := range lib {
			train, test := divide(r.points, bigger)
			l.strata = append(l.strata, Stratum{On: r.group.Name, Op: r.points[0].Shape.Kind(), Points: train})
			larger = append(larger, test...)
		}
		port, odd := l.port([]op.DeviceType{lib[0].device})
		if port == nil || odd != "" {
			t.Errorf("%s: no port; %s", lib[0].name, odd)
			continue
		}
		held += len(larger)
		for _, p := range larger {
			s := p.Shape.(op.Grouped)
			if least := port.Least(s.Kind(), s.Ranks(), op.Volume(s)); p.Seconds < float64(least) {
				t.Errorf("%s: %+v took %v s, less than %v", lib[0].name, s, p.Seconds, least)
			}
		}
	}
	if held < 700 {
		t.Errorf("only %d points are larger", held)
	}
}

package op

import (
	"math"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
)

// The datasheets of an H100 and an A100 with NVSwitches, of a GH200, a PCIe card and an MI300X.
var (
	superchip = Sheet{MemoryPerS: 4000e9, LinkPerS: 450e9, NetPerS: 50e9, HostPerS: 450e9, Arch: "sm90"}

	hopper = Sheet{MemoryPerS: 3350e9, LinkPerS: 450e9, NetPerS: 50e9, HostPerS: 64e9, Arch: "sm90"}
	ampere = Sheet{MemoryPerS: 2039e9, LinkPerS: 300e9, NetPerS: 25e9, HostPerS: 32e9, Arch: "sm80"}
	card   = Sheet{MemoryPerS: 1935e9, LinkPerS: 32e9, NetPerS: 25e9, HostPerS: 32e9, Arch: "sm80"}
	mi300x = Sheet{MemoryPerS: 5300e9, LinkPerS: 448e9, NetPerS: 50e9, HostPerS: 64e9, Arch: "gfx942"}
)

func TestPortOfASheet(t *testing.T) {
	for _, c := range []struct {
		name  string
		sheet Sheet
		link  string
		nodes int
		want  Port
	}{
		{"its own links, whose switches add up", hopper, "nvlink", 1, Port{450e9, true}},
		{"switches that only move bytes", ampere, "nvlink", 1, Port{300e9, false}},
		{"of another maker", mi300x, "xgmi", 1, Port{448e9, false}},
		{"through hosts, which may add up", card, "pcie", 1, Port{32e9, true}},
		{"bridges that no datasheet names", card, "nvlink_pairs", 1, Port{1935e9, true}},
		{"another link than its own", hopper, "pcie", 1, Port{3350e9, true}},
		{"between nodes over links, and the host's bus", hopper, "net", 2, Port{514e9, true}},
		{"between nodes, under the links' name", hopper, "nvlink", 2, Port{514e9, true}},
		{"between nodes of cards that may have bridges", card, "net", 2, Port{1935e9, true}},
		{"a rack whose links are its network", Sheet{MemoryPerS: 8e12, LinkPerS: 900e9, NetPerS: 900e9, HostPerS: 225e9, Arch: "sm100"}, "net", 4, Port{1800e9, true}},
		{"own links as fast as those to its host", superchip, "nvlink", 1, Port{450e9, true}},
		{"between nodes of such", superchip, "net", 2, Port{900e9, true}},
		{"memory alone is known", Sheet{MemoryPerS: 1e12}, "nvlink", 1, Port{1e12, true}},
		{"nothing is known", Sheet{}, "unix_socket", 1, Port{InNetwork: true}},
	} {
		g := NewGroupType([]Member{{"x", 8}}, c.nodes, c.link)
		if got := c.sheet.Port(g, c.sheet.Fabric()); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

// The fastest member bounds a group, and one of which nothing is known leaves it unbound.
func TestPortOfAGroup(t *testing.T) {
	ports := map[string]Port{"fast": {450e9, false}, "slow": {300e9, true}}
	for _, c := range []struct {
		members []Member
		want    Port
	}{
		{[]Member{{"slow", 2}}, Port{300e9, true}},
		{[]Member{{"slow", 2}, {"fast", 2}}, Port{450e9, true}},
		{[]Member{{"fast", 2}, {"other", 2}}, Port{}},
	} {
		if got := (GroupType{Members: c.members}).Port(func(device string) Port { return ports[device] }); got != c.want {
			t.Errorf("%v: %+v, want %+v", c.members, got, c.want)
		}
	}
}

// What a rank must send of a GiB among eight. nccl-tests' busbw is Work().Wire over time, so
// that it exceeds the port's rate only where something between the ranks adds up: a log of
// eight H100 has 480 GB/s of all_reduce over links of 450.
func TestLeastTimesOfAPort(t *testing.T) {
	const rate, size = 450e9, 1 << 30
	for _, c := range []struct {
		kind      Kind
		inNetwork bool
		want      float64 // of the GiB
	}{
		{KindSendRecv, true, 1},
		{KindAllGather, true, 7. / 8},
		{KindReduceScatter, true, 7. / 8},
		{KindAllToAll, true, 7. / 8},
		{KindAllReduce, false, 2 * 7. / 8},
		{KindAllReduce, true, 1},
	} {
		s := OfMessage(c.kind, Message{Group: 8, Bytes: size})
		got := Port{rate, c.inNetwork}.Least(c.kind, 8, Volume(s))
		if want := c.want * size / rate; math.Abs(float64(got)/want-1) > 1e-12 {
			t.Errorf("%s, in-network %v: %v s, want %v", c.kind, c.inNetwork, float64(got), want)
		}
	}
	// Between two, adding up on the way saves nothing.
	pair := AllReduce{Message{Group: 2, Bytes: size}}
	for _, inNetwork := range []bool{false, true} {
		if got := (Port{rate, inNetwork}).Sent(KindAllReduce, 2, Volume(pair)); got != size {
			t.Errorf("a pair sends %v bytes, in-network %v", got, inNetwork)
		}
	}
	uneven := AllToAllV{[][]units.Bytes{{0, 100, 200}, {1, 0, 1}, {1, 1, 0}}}
	if got := (Port{PerS: 100}).Least(KindAllToAllV, 3, Volume(uneven)); got != 3 {
		t.Errorf("the busiest of an uneven all-to-all sends 300 bytes at 100 a second in %v", got)
	}
}

func TestPortValidate(t *testing.T) {
	for _, rate := range []float64{0, -1, math.NaN(), math.Inf(1)} {
		if (Port{PerS: units.BytesPerS(rate)}).Validate() == nil {
			t.Errorf("%v is a rate", rate)
		}
	}
	if err := (Port{PerS: 1}).Validate(); err != nil {
		t.Error(err)
	}
}

package costmodel

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

func TestSoftwareIsOrderedByNameAndVersion(t *testing.T) {
	want := []string{
		"", "custom-1.10", "custom-1.9", "nccl-3", "nccl-2.29.2", "nccl-2.27.3", "nccl-2.27", "nccl-2.9", "nccl",
		"trtllm-1.3.0.1", "trtllm-1.3.0-eager", "trtllm-1.3.0", "trtllm-1.3.0rc20", "trtllm-1.3.0rc3", "vidur-oneway", BorrowedStack,
	}
	got := slices.Clone(want)
	slices.Reverse(got)
	slices.SortFunc(got, compareSoftware)
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if compareSoftware("nccl-2.9", "nccl-2.09") == 0 {
		t.Error("two names are in no order")
	}
}

// versions is a profile of one library in several versions, of which each has a group that the
// others lack, fitted in the order that is asked for.
func versions(order ...string) *Profile {
	p := &Profile{Devices: []op.DeviceType{{Name: "big/engine-1", Fingerprint: "00", Parallel: 1}}}
	for _, version := range order {
		device := "big/net-" + version
		p.Devices = append(p.Devices, op.DeviceType{Name: device, Fingerprint: "00", Parallel: 1})
		for _, n := range map[string][]int{"2.9": {2, 4, 16}, "2.27.3": {2, 4}, "2.29.2": {2}}[version] {
			g := op.NewGroupType([]op.Member{{Device: device, Count: n}}, 1, "wire")
			p.Groups = append(p.Groups, g)
			p.Laws = append(p.Laws, Law{Op: op.KindAllGather, Group: g.Name, Curve: knots(1024, 1)})
		}
	}
	return p
}

func orders() [][]string {
	return [][]string{{"2.9", "2.27.3", "2.29.2"}, {"2.29.2", "2.27.3", "2.9"}, {"2.27.3", "2.29.2", "2.9"}}
}

// The newest version answers, and the next of those with a group for what it lacks, whichever
// recording came first in the fit.
func TestTheNewestVersionAnswers(t *testing.T) {
	for _, order := range orders() {
		q := NewPredictor(versions(order...))
		for _, c := range []struct {
			member op.Member
			want   string
		}{
			{op.Member{Device: "big/engine-1", Count: 2}, "2 big/net-2.29.2 over wire"},
			{op.Member{Device: "big/engine-1", Count: 4}, "4 big/net-2.27.3 over wire"},
			{op.Member{Device: "big/engine-1", Count: 16}, "16 big/net-2.9 over wire"},
			{op.Member{Device: "big/engine-1", Count: 32}, "2 big/net-2.29.2 over wire"},
			{op.Member{Device: "big/net-2.9", Count: 4}, "4 big/net-2.9 over wire"},
			{op.Member{Device: "other", Count: 2}, "2 big/net-2.29.2 over wire"},
		} {
			l, _, err := q.Over("wire", op.KindAllGather, []op.Member{c.member})
			if err != nil || l.Group != c.want {
				t.Errorf("%v, %v: %v, %v, want %s", order, c.member, l, err, c.want)
			}
		}
	}
}

// A version without any law in the elements that are asked for does not hide the next one's.
func TestAVersionOfOtherElementsHidesNone(t *testing.T) {
	p := versions("2.9", "2.29.2")
	for i := range p.Laws {
		p.Laws[i].Variant.DType = op.F16
		if strings.Contains(p.Laws[i].Group, "2.29.2") {
			p.Laws[i].Variant.DType = op.F32
		}
	}
	other := op.NewGroupType([]op.Member{{Device: "small/net-1", Count: 32}}, 1, "wire")
	p.Groups = append(p.Groups, other)
	p.Laws = append(p.Laws, Law{Op: op.KindAllGather, Variant: op.Variant{DType: op.F16}, Group: other.Name, Curve: knots(1024, 9)})
	l, _, err := NewPredictor(p).Over("wire", op.KindAllGather, []op.Member{{Device: "big/engine-1", Count: 32}})
	if want := "16 big/net-2.9 over wire"; err != nil || l.Group != want {
		t.Errorf("%v, %v, want %s", l, err, want)
	}
}

func TestSoftwareIsTold(t *testing.T) {
	on := func(device string, nodes, each int) Cluster {
		c := Cluster{Network: "wire"}
		for range nodes {
			c.Nodes = append(c.Nodes, Node{Name: "n", Devices: []op.Member{{Device: device, Count: each}}, Link: "wire"})
		}
		return c
	}
	want := []string{"collectives of big over wire: laws of net-2.29.2 are used, the newest of 3 versions in the profile (2.29.2, 2.27.3, 2.9); where it has none, those of the others in that order; to plan with another, fit its points alone, such as evenkeel fit --stack net-2.27.3"}
	for _, order := range orders() {
		q := NewPredictor(versions(order...))
		for _, c := range []Cluster{on("big/engine-1", 1, 2), on("big/engine-1", 2, 1), on("big/engine-1", 2, 2)} {
			if d := cmp.Diff(want, q.Software(c)); d != "" {
				t.Errorf("%v: %s", order, d)
			}
		}
		for _, c := range []Cluster{on("big/engine-1", 1, 1), on("big/net-2.9", 1, 2), on("small/engine-1", 1, 2)} {
			if got := q.Software(c); got != nil {
				t.Errorf("%v: %q", c.Nodes, got)
			}
		}
	}
	if got := NewPredictor(versions("2.9")).Software(on("big/engine-1", 1, 2)); got != nil {
		t.Errorf("one version: %q", got)
	}
	p := versions("2.29.2", "2.27.3")
	p.Devices[1].Name, p.Groups[0], p.Laws[0].Group = "big/mesh", op.NewGroupType([]op.Member{{Device: "big/mesh", Count: 2}}, 1, "wire"), "2 big/mesh over wire"
	p.Groups, p.Laws = p.Groups[:2], p.Laws[:2]
	want = []string{"collectives of big over wire: laws of mesh are used, the first of 2 in the profile by name and then the newest (mesh, net-2.27.3); to plan with another, fit its points alone, such as evenkeel fit --stack net-2.27.3"}
	if d := cmp.Diff(want, NewPredictor(p).Software(on("big/engine-1", 1, 2))); d != "" {
		t.Error(d)
	}
	// What nobody measured is no version that was.
	p.Laws[0].Assumed = "made up"
	if got := NewPredictor(p).Software(on("big/engine-1", 1, 2)); got != nil {
		t.Errorf("assumed: %q", got)
	}
}

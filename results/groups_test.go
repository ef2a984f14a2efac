package results

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver"
)

// groupedPlan has all-to-all groups: on every node a fast rank with most heads
// and a slow one, and a last group whose second rank computes none.
func groupedPlan(nodes int) *solver.Plan {
	d := testPlan()
	d.Ranks, d.Step.Ranks, d.Groups, d.Compared, d.Job.Cluster.Nodes = nil, nil, nil, nil, nil
	tokens := make([]units.Tokens, 2*nodes)
	for g := range nodes {
		tokens[2*g], tokens[2*g+1] = 3072, 1024
		heads := []int{6, 2}
		if g == nodes-1 {
			heads = []int{8, 0}
		}
		d.Groups = append(d.Groups, costmodel.Group{{Rank: 2 * g, QHeads: heads[0]}, {Rank: 2*g + 1, QHeads: heads[1]}})
		d.Job.Cluster.Nodes = append(d.Job.Cluster.Nodes, costmodel.Node{Name: fmt.Sprintf("n%d", g), Link: "wire", Devices: []op.Member{{Device: "fast", Count: 1}, {Device: "slow", Count: 1}}})
	}
	d.Job.SeqLen = units.Tokens(nodes) * 4096
	layout := costmodel.ZigZag(tokens, d.Groups)
	for r, s := range layout.Shards {
		g, m := r/2, d.Groups[r/2]
		k := solver.PlanRank{Rank: r, Device: []string{"fast", "slow"}[r%2], Node: fmt.Sprintf("n%d", g), Tokens: tokens[r], Segments: s.Segments, Group: g, QHeads: m[r%2].QHeads}
		if r%2 == 1 {
			k.FirstQ = m[0].QHeads
		}
		k.KVHeads = d.Job.Model.KVHeadsOf(k.FirstQ, k.QHeads)
		d.Ranks = append(d.Ranks, k)
		d.Step.Ranks = append(d.Step.Ranks, costmodel.RankStep{Device: k.Device, Tokens: k.Tokens, Busy: 2, Exposed: 0.4, Idle: units.Seconds(r) * 0.01, Memory: costmodel.Memory{States: units.GiB, Capacity: 2 * units.GiB}})
	}
	return d
}

func TestGroupsAreDrawn(t *testing.T) {
	var buf bytes.Buffer
	if err := Plan(&buf, groupedPlan(3)); err != nil {
		t.Fatal(err)
	}
	want := `
who computes which heads, by all-to-all group; a bar is the 8 query heads
  rank  device  tokens  query heads  KV heads
groups 0-1 on n0, n1, 2 groups like this one: 4k tokens each
  0     fast        3k  0-5                 3  |######..|
  1     slow        1k  6-7                 1  |......##|
group 2 on n2: 4k tokens
  4     fast        3k  0-7                 4  |########|
  5     slow        1k  none                0  |........|
ring: keys and values travel from group 0 to 1, and so on, from 2 to 0
`
	if !strings.Contains(buf.String(), want) {
		t.Errorf("want %s in\n%s", want, buf.String())
	}
}

// A big plan is summed up: groups alike in one place, ranks by device type.
func TestABigPlanIsSummedUp(t *testing.T) {
	d := groupedPlan(128)
	for name, render := range map[string]func(io.Writer, *solver.Plan) error{"plan": Plan, "explain": Explain} {
		var buf bytes.Buffer
		if err := render(&buf, d); err != nil {
			t.Fatal(err)
		}
		lines := strings.Split(buf.String(), "\n")
		if len(lines) > 120 {
			t.Errorf("%s: %d lines", name, len(lines))
		}
		for _, line := range lines {
			if len(line) > Width {
				t.Errorf("%d columns: %s", len(line), line)
			}
		}
		if name == "plan" && (!strings.Contains(buf.String(), "127 groups like this one") || !strings.Contains(buf.String(), "  128  fast        3k       6 to 8")) {
			t.Errorf("not summed up:\n%s", buf.String())
		}
		// Without -o there is no file yet, and with it both are true.
		if text := strings.Join(strings.Fields(strings.ReplaceAll(buf.String(), "|", "")), " "); !strings.Contains(text, "the file that solve writes with -o has every rank") {
			t.Errorf("%s: where every rank is: %s", name, text)
		}
	}
}

func TestNumbersInShort(t *testing.T) {
	for want, numbers := range map[string][]int{
		"":                           nil,
		"3":                          {3},
		"0-3, 8":                     {0, 1, 2, 3, 8},
		"1, 0":                       {1, 0},
		"0, 2, 4, 6 .. 18 (10)":      {0, 2, 4, 6, 8, 10, 12, 14, 16, 18},
		"0-1, 3, 5, 7, 9, 11, 13-15": {0, 1, 3, 5, 7, 9, 11, 13, 14, 15},
	} {
		if got := inShort(numbers); got != want {
			t.Errorf("%v: got %q, want %q", numbers, got, want)
		}
	}
}

// What Perfetto needs of a file: every event has a phase, a name, a process and
// a thread; complete events have times that are not negative; every process and
// thread in use has a name.
func TestTimelineOpensInPerfetto(t *testing.T) {
	step := &costmodel.Step{
		Ranks: []costmodel.RankStep{{Device: "fast", Tokens: 30}, {Device: "slow", Tokens: 10}, {Device: "slow", Tokens: 8}, {Device: "idle"}},
		Timeline: []costmodel.Span{
			{Rank: 0, Resource: "compute", Name: "linear forward", Start: 0, End: 0.5},
			{Rank: 1, Resource: "compute", Name: "linear forward", Start: 0, End: 0.7},
			{Rank: 1, Resource: "egress", Name: "keys, values of 0", Start: 0.7, End: 0.9},
			{Rank: 2, Resource: "ingress", Name: "keys, values of 0", Start: 0.7, End: 0.9},
			{Rank: 2, Resource: "compute", Name: "linear backward", Start: 2, End: 2.5},
		},
		Path: []costmodel.Hop{
			{Pass: "forward", Rank: 1, Name: "linear forward", Start: 0, End: 0.7},
			{Pass: "forward", Rank: 1, Name: "keys, values of 0", Start: 0.7, End: 0.9},
			{Pass: "backward", Rank: 2, Name: "linear backward", Start: 0, End: 0.5},
		},
	}
	var buf bytes.Buffer
	if err := Timeline(&buf, []costmodel.Group{{{Rank: 0, QHeads: 6}, {Rank: 1, QHeads: 2}}, {{Rank: 2, QHeads: 8}}}, step); err != nil {
		t.Fatal(err)
	}
	var file struct {
		TraceEvents     []event `json:"traceEvents"`
		DisplayTimeUnit string  `json:"displayTimeUnit"`
	}
	if err := json.Unmarshal(buf.Bytes(), &file, json.RejectUnknownMembers(true)); err != nil {
		t.Fatal(err)
	}
	named, marked := map[string]bool{}, []string{}
	for _, e := range file.TraceEvents {
		if e.Ph == "M" {
			named[fmt.Sprint(e.Name, e.PID, e.TID)] = true
		}
	}
	for _, e := range file.TraceEvents {
		if e.Ph != "X" {
			continue
		}
		if e.Name == "" || e.TS < 0 || e.Dur <= 0 || !named[fmt.Sprint("process_name", e.PID, 0)] || !named[fmt.Sprint("thread_name", e.PID, e.TID)] {
			t.Errorf("%+v", e)
		}
		if e.Cat == critical {
			marked = append(marked, fmt.Sprintf("%d@%g", e.PID, e.TS))
		}
	}
	// On the path itself (process 0, the backward pass where it begins), and in the groups.
	if got, want := strings.Join(marked, " "), "0@0 0@700000 0@2e+06 1@0 1@700000 2@2e+06"; got != want {
		t.Errorf("critical: %s, want %s", got, want)
	}
}

// The picture says which way keys and values go: round the ring, as far as needed, or
// one way only.
func TestWayOfKeysIsTold(t *testing.T) {
	for way, tier := range map[string][]int{
		"ring: keys and values travel from group 0 to 1, and so on, from 2 to 0\n":                                           {0, 0, 0},
		"from 2 to 0, each only as far as a group needs them\n":                                                              {0, 0, 1},
		"chain: keys and values travel from group 0 to 1, and so on to 2, and their gradients from the last straight home\n": {0, 1, 2},
		"ring: keys and values travel from group 0 to 1 and from 1 to 0\n":                                                   {0, 0},
		"chain: keys and values travel from group 0 to 1, and their gradients back\n":                                        {0, 1},
	} {
		d := groupedPlan(len(tier))
		layout := costmodel.ZigZagTiers(d.Layout().Tokens(), d.Groups, tier)
		for r := range d.Ranks {
			d.Ranks[r].Segments = layout.Shards[r].Segments
		}
		var buf bytes.Buffer
		if err := Plan(&buf, d); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(buf.String(), way) {
			t.Errorf("tiers %v: want %q in\n%s", tier, way, buf.String())
		}
	}
}

// A page says of micro-batches in twos what they hide and which one goes alone, and counts
// the tokens of all.
func TestMicroBatchesInTwosAreTold(t *testing.T) {
	page := func(d *solver.Plan) string {
		var buf bytes.Buffer
		if err := Plan(&buf, d); err != nil {
			t.Fatal(err)
		}
		return strings.Join(strings.Fields(buf.String()), " ")
	}
	rate := regexp.MustCompile(`([0-9.]+) tokens/s`)
	d := groupedPlan(3)
	one := rate.FindStringSubmatch(page(d))
	if strings.Contains(page(d), "in twos") || one == nil {
		t.Fatal(page(d))
	}
	d.Job.Accumulate, d.TwoBatch = 3, true
	got := page(d)
	for _, want := range []string{"3 micro-batches of one sequence, ", "in twos, and the all-to-alls of one are on their way while the other is computed; the last of 3 goes alone"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	var tree bytes.Buffer
	if err := Explain(&tree, d); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(strings.Fields(tree.String()), " "); !strings.Contains(got, "|-- 3 micro-batches through 4 layers; ") || !strings.Contains(got, "in twos, and the all-to-alls of one") {
		t.Errorf("the account does not say what overlaps in\n%s", got)
	}
	a, _ := strconv.ParseFloat(one[1], 64)
	b, _ := strconv.ParseFloat(rate.FindStringSubmatch(got)[1], 64)
	if math.Abs(b/a-3) > 0.01 {
		t.Errorf("%v tokens/s of one micro-batch, %v of three in as long", a, b)
	}
	d.Job.Accumulate = 2
	for i := range d.Groups {
		d.Groups[i] = d.Groups[i][:1]
	}
	if got := page(d); !strings.Contains(got, "in twos, and the first keys and values of one are on their way") || strings.Contains(got, "goes alone") {
		t.Error(got)
	}
}

// What stays at home is told, of rings of ranks and of groups, in the picture and in the
// account.
func TestKeptTailsAreTold(t *testing.T) {
	single := testPlan()
	for name, d := range map[string]*solver.Plan{"ranks": single, "groups": groupedPlan(3)} {
		for _, d.KeepTail = range []bool{false, true} {
			var buf bytes.Buffer
			if err := Plan(&buf, d); err != nil {
				t.Fatal(err)
			}
			if err := Explain(&buf, d); err != nil {
				t.Fatal(err)
			}
			text := strings.Join(strings.Fields(strings.ReplaceAll(buf.String(), "|", "")), " ")
			g, kept := d.Layout().Tail()
			said := fmt.Sprintf("the keys and values of the last %d tokens, which no other group needs, stay in group %d", int64(kept), g)
			if got, want := strings.Count(text, said), 2; d.KeepTail && (kept == 0 || got != want) || !d.KeepTail && strings.Contains(text, "stay in group") {
				t.Errorf("%s, %t: said %d times: %s", name, d.KeepTail, got, said)
			}
		}
	}
}

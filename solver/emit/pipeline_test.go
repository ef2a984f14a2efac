package emit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/costmodel"
	costs "github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/internal/world"
	"github.com/evenkeel/evenkeel/solver/pipeline"
)

// piped is a plan of a batch as a pipeline.
func piped(t testing.TB, profile *costmodel.Profile, job costmodel.Job, take string, lengths ...units.Tokens) *pipeline.Document {
	t.Helper()
	return pipedOn(t, profile, job, take, 0, lengths...)
}

// pipedOn is one of so many stages.
func pipedOn(t testing.TB, profile *costmodel.Profile, job costmodel.Job, take string, stages int, lengths ...units.Tokens) *pipeline.Document {
	t.Helper()
	job.SeqLen = slices.Max(lengths)
	c, err := costs.FromLaws(costmodel.NewPredictor(profile), job, lengths)
	if err != nil {
		t.Fatal(err)
	}
	clock := func() units.Seconds { return 0 }
	d, err := pipeline.Solve(context.Background(), &pipeline.Problem{Costs: c, Stages: stages, Effort: 0.05}, take, clock, nil)
	if err != nil {
		t.Fatal(err)
	}
	d.Job = job
	for _, r := range job.Cluster.Ranks() {
		d.Devices = append(d.Devices, r.Device)
	}
	return d
}

// arguments are those of a text's lines, by name.
func arguments(t testing.TB, words []string, known map[string]int) map[string][]string {
	t.Helper()
	args, last := map[string][]string{}, ""
	for _, word := range words {
		if strings.HasPrefix(word, "--") {
			if _, twice := args[word]; twice {
				t.Fatalf("%s twice", word)
			}
			last, args[word] = word, []string{}
			continue
		}
		args[last] = append(args[last], word)
	}
	for name, values := range args {
		if want, ok := known[name]; !ok || len(values) != want {
			t.Fatalf("%s %v", name, values)
		}
	}
	return args
}

func number(t testing.TB, args map[string][]string, name string) int {
	t.Helper()
	n, err := strconv.Atoi(strings.Join(args[name], " "))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return n
}

var (
	repeated   = regexp.MustCompile(`\(([^)]*)\)\*(\d+)|(.)\*(\d+)`)
	stageItems = regexp.MustCompile(`^[EtmL]*$`)
)

// layersOfLayout reads --pipeline-model-parallel-layout as Megatron-LM does: repetitions first, then
// stages, of one embedding at the beginning, layers, and one loss at the end.
func layersOfLayout(t testing.TB, layout string) []int {
	t.Helper()
	plain := repeated.ReplaceAllStringFunc(strings.ReplaceAll(layout, ",", ""), func(s string) string {
		m := repeated.FindStringSubmatch(s)
		n, _ := strconv.Atoi(m[2] + m[4])
		return strings.Repeat(m[1]+m[3], n)
	})
	if !strings.HasPrefix(plain, "E") || !strings.HasSuffix(plain, "L") || strings.Count(plain, "E") != 1 || strings.Count(plain, "L") != 1 {
		t.Fatal(layout)
	}
	var layers []int
	for _, stage := range strings.Split(plain, "|") {
		if !stageItems.MatchString(stage) {
			t.Fatal(layout)
		}
		layers = append(layers, strings.Count(stage, "t"))
	}
	return layers
}

// stagedText is what of an emitted pipeline Megatron-LM reads.
type stagedText struct {
	Arguments []string       `json:"arguments"`
	Scheduler string         `json:"scheduler"`
	Lengths   []units.Tokens `json:"padded_lengths_tokens"`
	Groups    [][][]int      `json:"sample_id_groups"`
}

// packedArguments are those of packed sequences, beside megatronArguments.
func packedArguments() map[string]int {
	known := megatronArguments()
	for name, values := range map[string]int{
		"--pipeline-model-parallel-layout": 1, "--use-varlen-dataset": 0, "--sequence-packing-scheduler": 1,
		"--calculate-per-token-loss": 0, "--max-seqlen-per-dp-cp-rank": 1,
	} {
		known[name] = values
	}
	return known
}

// readMegatronStages makes of the text alone the pipeline that Megatron-LM runs of it, by its own
// rules: consecutive ranks are a stage, every stage sends as many micro-batches ahead as there are
// stages behind it, and then goes one forward, one backward.
func readMegatronStages(t testing.TB, e *Emission, d *pipeline.Document) (*costs.Plan, []units.Tokens) {
	t.Helper()
	var x stagedText
	if err := json.Unmarshal([]byte(e.Text), &x); err != nil {
		t.Fatal(err)
	}
	args := arguments(t, x.Arguments, packedArguments())
	pp, cp := number(t, args, "--pipeline-model-parallel-size"), number(t, args, "--context-parallel-size")
	layers := []int{d.Layers}
	if pp > 1 {
		layers = layersOfLayout(t, args["--pipeline-model-parallel-layout"][0])
	} else if args["--pipeline-model-parallel-layout"] != nil {
		t.Fatal("a layout of one stage")
	}
	total := 0
	for _, n := range layers {
		total += n
	}
	if len(layers) != pp || total != d.Layers || pp*cp != len(e.Ranks) || number(t, args, "--micro-batch-size") != 1 || number(t, args, "--global-batch-size") != len(d.Lengths) {
		t.Fatal(e.Text)
	}
	m := d.Job.Model
	if how := strings.Join(args["--cp-comm-type"], ""); cp > 1 && (how != "a2a" || m.QHeads%cp != 0 || m.KVHeads%cp != 0) || cp == 1 && how != "" {
		t.Fatalf("%d query and %d KV heads over %d by %q", m.QHeads, m.KVHeads, cp, how)
	}
	if x.Scheduler != "dp_balanced" || args["--sequence-packing-scheduler"][0] != x.Scheduler || len(x.Lengths) != len(d.Lengths) {
		t.Fatal(e.Text)
	}
	longest := units.Tokens(number(t, args, "--seq-length"))
	for i, n := range x.Lengths {
		if n < d.Lengths[i] || cp > 1 && n%units.Tokens(2*cp) != 0 || n > longest {
			t.Fatalf("sequence %d of %d tokens is padded to %d", i, d.Lengths[i], n)
		}
	}
	p := &costs.Plan{}
	for s, n := range layers {
		p.Stages = append(p.Stages, costs.Stage{Ranks: e.Ranks[s*cp : (s+1)*cp], Layers: n})
	}
	room := units.Tokens(number(t, args, "--max-seqlen-per-dp-cp-rank") * cp)
	for _, micro := range x.Groups {
		if len(micro) != cp || len(micro[0]) == 0 {
			t.Fatalf("%v on %d ranks", micro, cp)
		}
		tokens := units.Tokens(0)
		for _, of := range micro {
			if !slices.Equal(of, micro[0]) {
				t.Fatalf("ranks of a stage have %v", micro)
			}
		}
		for _, id := range micro[0] {
			tokens += x.Lengths[id]
		}
		if tokens > room {
			t.Fatalf("%d tokens, room for %d", tokens, room)
		}
		p.Chunks = append(p.Chunks, costs.Chunk{Sequence: -1, Whole: micro[0]})
	}
	again := 0
	if args["--recompute-granularity"] != nil {
		if args["--recompute-granularity"][0] != "full" || args["--recompute-method"][0] != "block" {
			t.Fatal(e.Text)
		}
		again = number(t, args, "--recompute-num-layers")
	}
	for s := range p.Stages {
		var order []costs.Op
		warm := min(pp-s-1, len(p.Chunks))
		for k := range warm {
			order = append(order, costs.Op{Chunk: k})
		}
		for k := warm; k < len(p.Chunks); k++ {
			order = append(order, costs.Op{Chunk: k}, costs.Op{Chunk: k - warm, Backward: true})
		}
		for k := len(p.Chunks) - warm; k < len(p.Chunks); k++ {
			order = append(order, costs.Op{Chunk: k, Backward: true})
		}
		p.Orders = append(p.Orders, order)
		p.Recompute = append(p.Recompute, slices.Repeat([]int{min(again, layers[s])}, len(p.Chunks)))
	}
	return p, x.Lengths
}

// stagedEmission is an emission of a pipeline, whose text is checked to be what takes its time.
func stagedEmission(t testing.TB, f Framework, d *pipeline.Document, profile *costmodel.Profile) (*Emission, error) {
	t.Helper()
	e, err := f.Pipeline(context.Background(), d, profile)
	if err != nil {
		return nil, err
	}
	read, lengths := readMegatronStages(t, e, d)
	job, all := d.Job, units.Tokens(0)
	for _, n := range lengths {
		all += n
	}
	job.LossChunk = all
	if slices.Contains(strings.Split(e.Text, "\n"), `    "--use-distributed-optimizer",`) || strings.Contains(e.Text, "\"--use-distributed-optimizer\"\n") {
		job.Zero = costmodel.Zero1
	} else {
		job.Zero = costmodel.Zero0
	}
	c, err := costs.FromLaws(costmodel.NewPredictor(profile), job, lengths)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Simulate(read); err != nil {
		t.Fatal(err)
	}
	if err := c.Room(read); err != nil {
		t.Error(err)
	}
	if found := pipeline.Check(c, read); len(found) > 0 {
		t.Fatal(found)
	}
	if read.Time != e.Time.Mid {
		t.Fatalf("what is read takes %v, said to take %v\n%s", read.Time, e.Time.Mid, e.Text)
	}
	if diff := cmp.Diff(e.Pipeline, read); diff != "" {
		t.Fatalf("the framework runs another pipeline: %s", diff)
	}
	return e, nil
}

func fieldOf(t testing.TB, e *Emission, name string) Field {
	t.Helper()
	i := slices.IndexFunc(e.Fields, func(f Field) bool { return f.Name == name })
	if i < 0 {
		t.Fatalf("no field %s: %+v", name, e.Fields)
	}
	return e.Fields[i]
}

func drawn(r *rand.Rand, n int) []units.Tokens {
	lengths := make([]units.Tokens, n)
	for i := range lengths {
		lengths[i] = units.Tokens(100 + r.IntN(1+r.IntN(1+r.IntN(90000))))
	}
	return lengths
}

// What is priced is what Megatron-LM would run of the text, of batches on clusters of all kinds.
func TestMegatronRunsThePipelineThatIsPriced(t *testing.T) {
	r := rand.New(rand.NewPCG(4, 2))
	f, _ := Lookup("megatron")
	deep, unequal := 0, 0
	for i, cluster := range []string{"1x4 h100_sxm", "2x4 h100_sxm", "1x4 h100_sxm + 1x4 a100_sxm", "2x8 h100_sxm + 1x8 a100_sxm", "1x(2 h100_sxm + 2 a100_sxm)", "1x3 h100_sxm + 1x6 a100_sxm"} {
		profile, job := world.GPUJob(t, cluster, 1)
		job.Zero = []costmodel.ZeRO{costmodel.Zero0, costmodel.Zero1, costmodel.Zero3}[i%3]
		job.OverlapZero = i%2 == 0
		d := piped(t, profile, job, "", drawn(r, 3+r.IntN(20))...)
		e, err := stagedEmission(t, f, d, profile)
		if err != nil {
			t.Fatalf("%s: %v", cluster, err)
		}
		stages := e.Pipeline.Stages
		if len(stages) > 1 {
			deep++
		}
		if slices.ContainsFunc(stages, func(s costs.Stage) bool { return s.Layers != stages[0].Layers }) {
			unequal++
		}
		if e.Use == "" || e.Planned.Mid != d.Time || len(e.Notes) == 0 {
			t.Errorf("%s: %+v", cluster, e)
		}
		slower := e.Time.Mid - e.Planned.Mid
		if half := e.Error; half < 0 || slower > 0 && half == 0 {
			t.Errorf("%s: %v slower, which may be off by %v", cluster, slower, half)
		}
	}
	if deep < 2 || unequal < 1 {
		t.Errorf("%d of the emissions have stages, %d unequal ones", deep, unequal)
	}
}

// What people run today with Megatron-LM loses nothing, and fields that differ say so.
func TestPipelinesThatAreExact(t *testing.T) {
	profile, job := world.GPUJob(t, "2x4 h100_sxm", 1)
	job.Zero, job.LossChunk = costmodel.Zero1, 1<<20
	f, _ := Lookup("megatron")
	lengths := slices.Repeat([]units.Tokens{8 << 10}, 24)
	e, err := stagedEmission(t, f, piped(t, profile, job, "1f1b", lengths...), profile)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range e.Fields { // it may have a faster way to cut and pack, and says so
		if x.Verdict != Exact && x.Name != fieldChunks && x.Name != fieldPasses && x.Name != fieldStages && x.Name != fieldLayers {
			t.Errorf("%+v", x)
		}
	}
	d := *piped(t, profile, job, "1f1b", lengths...)
	d.Plan, d.Time = *e.Pipeline, e.Pipeline.Time
	again, err := stagedEmission(t, f, &d, profile)
	if err != nil {
		t.Fatal(err)
	}
	if !again.Exact() || again.Time != again.Planned {
		t.Errorf("of its own: %v, planned %v: %+v", again.Time.Mid, again.Planned.Mid, again.Fields)
	}
	d.Lengths = slices.Clone(d.Lengths)
	for i := range d.Lengths {
		d.Lengths[i]--
	}
	d.Job.Zero, d.Job.LossChunk = costmodel.Zero3, 1<<10
	d.Job.SeqLen--
	lost, err := stagedEmission(t, f, &d, profile)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{fieldPadding: "24 tokens in all", fieldZero: "zero1", fieldLoss: "all tokens"} {
		if x := fieldOf(t, lost, name); x.Verdict != Rounded || x.Emitted != want || x.Why == "" {
			t.Errorf("%+v, want %s", x, want)
		}
	}
}

// Slices, orders of one's own and unequal stages are lost, and it is said.
func TestWhatPipelinesLose(t *testing.T) {
	profile, job := world.GPUJob(t, "2x4 h100_sxm", 1)
	f, _ := Lookup("megatron")
	d := pipedOn(t, profile, job, "infinipipe", 2, 96<<10, 32<<10, 8<<10, 4<<10, 2<<10)
	e, err := stagedEmission(t, f, d, profile)
	if err != nil {
		t.Fatal(err)
	}
	if e.Exact() {
		t.Errorf("%+v", e.Fields)
	}
	if x := fieldOf(t, e, fieldSlices); x.Verdict != Dropped || !strings.HasSuffix(x.Plan, " of 2 sequences") || x.Emitted != none {
		t.Errorf("%+v", x)
	}
	if x := fieldOf(t, e, fieldPasses); x.Verdict != Dropped || x.Plan != "its own" || x.Emitted != "1F1B" {
		t.Errorf("%+v", x)
	}
}

// The stages that a run has settled stay, with their layers.
func TestSettledStagesStay(t *testing.T) {
	profile, job := world.GPUJob(t, "2x4 h100_sxm", 1)
	f, _ := Lookup("megatron")
	d := piped(t, profile, job, "1f1b", 64<<10, 32<<10, 8<<10, 4<<10, 2<<10)
	d.StagesOf = "first.plan.json"
	settled := []costs.Stage{{Ranks: []int{4, 5, 6, 7}, Layers: d.Layers - 2}, {Ranks: []int{0, 1, 2, 3}, Layers: 2}}
	d.Stages = settled
	d.Plan.Orders, d.Plan.Recompute = d.Orders[:2], d.Recompute[:2]
	for s := range d.Recompute {
		clear(d.Recompute[s])
	}
	e, err := stagedEmission(t, f, d, profile)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(settled, e.Pipeline.Stages); diff != "" {
		t.Error(diff)
	}
	if !strings.Contains(e.Use, "(n1, n0), node rank 0 the first") {
		t.Error(e.Use)
	}
	d.Stages = []costs.Stage{{Ranks: []int{0, 1, 2, 3, 4, 5}, Layers: d.Layers - 2}, {Ranks: []int{6, 7}, Layers: 2}}
	d.Job.Model.QHeads, d.Job.Model.KVHeads = 24, 24
	want := "the stages of first.plan.json (stages_of), 1 of 6 ranks, 1 of 2 ranks, cannot be: want as many ranks each"
	if _, err := f.Pipeline(context.Background(), d, profile); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("of unequal stages: %v", err)
	}
}

func TestPipelinesThatNoFrameworkRuns(t *testing.T) {
	profile, job := world.GPUJob(t, "1x4 h100_sxm", 1)
	d := piped(t, profile, job, "", 16<<10, 8<<10)
	megatron, _ := Lookup("megatron")
	small := *profile
	small.Devices = slices.Clone(small.Devices)
	for i := range small.Devices {
		small.Devices[i].Memory = units.GiB
	}
	var no *NotRunError
	full := func(d *pipeline.Document, wider string) {
		t.Helper()
		want := regexp.MustCompile(`^megatron cannot run this: each rank of stage \d would hold .* of it states and .* and has room for [^,]*` + wider + `; way out: a plan for more devices or of shorter sequences, or evenkeel replay and the Python package`)
		if _, err := megatron.Pipeline(context.Background(), d, &small); !errors.As(err, &no) || !want.MatchString(err.Error()) {
			t.Errorf("on devices of 1 GiB: %v", err)
		}
	}
	full(d, "")
	of, three := world.GPUJob(t, "1x3 h100_sxm", 1)
	full(piped(t, of, three, "", 16<<10, 8<<10), ", and wider stages cannot be: 32 query and 8 KV heads do not divide over 3 ranks")
	for _, name := range but(Names(), "megatron") {
		f, _ := Lookup(name)
		if _, err := f.Pipeline(context.Background(), d, profile); !errors.As(err, &no) || !strings.Contains(err.Error(), "it has no stages; way out: another framework (--to megatron), or") {
			t.Errorf("%s: %v", name, err)
		}
	}
	old := *d
	old.Job = costmodel.Job{}
	if _, err := megatron.Pipeline(context.Background(), &old, profile); !errors.Is(err, UnpricedError{}) || !strings.Contains(err.Error(), "plan the batch again") {
		t.Errorf("without a job: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := megatron.Pipeline(ctx, d, profile); !errors.Is(err, context.Canceled) {
		t.Errorf("once cancelled: %v", err)
	}
}

// Where memory is short, layers are computed again, and the text says of how many.
func TestPipelinesComputeAgain(t *testing.T) {
	profile, job := world.GPUJob(t, "2x4 h100_sxm", 1)
	f, _ := Lookup("megatron")
	d := piped(t, profile, job, "", slices.Repeat([]units.Tokens{64 << 10}, 6)...)
	tight := *profile
	tight.Devices = slices.Clone(tight.Devices)
	for i := range tight.Devices {
		tight.Devices[i].Memory = 18 * units.GiB
	}
	e, err := stagedEmission(t, f, d, &tight)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(e.Text, `"--recompute-num-layers"`) || fieldOf(t, e, fieldRecompute).Emitted == "none" {
		t.Errorf("%s: %+v", e.Text, fieldOf(t, e, fieldRecompute))
	}
	if all := strings.Join(e.Notes, "\n"); strings.Contains(all, "not the laws") {
		t.Error(all) // room is no law
	}
	d.Time *= 1.01
	if e, err = f.Pipeline(context.Background(), d, profile); err != nil || !strings.Contains(strings.Join(e.Notes, "\n"), "not the laws that the plan was made with") {
		t.Errorf("%v, %v", e, err)
	}
	d.Time *= 3
	d.Plan.Recompute = slices.Clone(d.Recompute)
	for s := range d.Recompute {
		d.Recompute[s] = slices.Repeat([]int{d.Stages[s].Layers}, len(d.Chunks))
	}
	if e, err = f.Pipeline(context.Background(), d, profile); err != nil || !strings.Contains(strings.Join(e.Notes, "\n"), "faster than the plan") {
		t.Errorf("%v, %v", e, err)
	}
}

// Rows of stages are of one device type each, and such that a launcher can number them.
func TestRowsOfStages(t *testing.T) {
	rows := func(cluster string, n int, of ...costs.Stage) string {
		_, job := world.GPUJob(t, cluster, 1)
		d := &pipeline.Document{Job: job, Layers: 8, Plan: costs.Plan{Stages: of}}
		for _, r := range job.Cluster.Ranks() {
			d.Devices = append(d.Devices, r.Device)
		}
		var all []string
		for _, row := range (&stages{of: d}).rows(n) {
			var parts []string
			for _, s := range row {
				parts = append(parts, units.Spans(s.Ranks))
			}
			all = append(all, strings.Join(parts, " "))
		}
		return strings.Join(all, "; ")
	}
	for _, c := range []struct{ got, want string }{
		{rows("1x4 h100_sxm", 2, costs.Stage{Ranks: []int{0, 1, 2, 3}}), "0-1 2-3"},
		{rows("1x4 h100_sxm", 2, costs.Stage{Ranks: []int{2, 3}}, costs.Stage{Ranks: []int{0, 1}}), "2-3 0-1; 0-1 2-3"},
		{rows("1x4 h100_sxm", 1, costs.Stage{Ranks: []int{0, 1}}), "0 1 2 3; 0 1"},
		{rows("1x2 h100_sxm + 1x2 a100_sxm", 2, costs.Stage{Ranks: []int{0, 1, 2}}), "0-1 2-3; 2-3 0-1; 0-1; 2-3"},
		// Types that share nodes cannot follow each other, each by itself.
		{rows("2x(1 h100_sxm + 1 a100_sxm)", 2, costs.Stage{Ranks: []int{0}}), "0,2; 1,3"},
		{rows("1x3 h100_sxm", 2, costs.Stage{Ranks: []int{0}}), "0-1"},
		{rows("1x16 h100_sxm", 1, costs.Stage{Ranks: []int{0, 1}}), "0 1 2 3 4 5 6 7; 0 1 2 3; 0 1"},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
}

func TestStagedNames(t *testing.T) {
	stage := func(layers int, ranks ...int) costs.Stage { return costs.Stage{Ranks: ranks, Layers: layers} }
	p := &costs.Plan{Stages: []costs.Stage{stage(3, 0, 1), stage(3, 2, 3), stage(2, 4)}, Chunks: make([]costs.Chunk, 2)}
	for _, c := range []struct {
		again [][]int
		want  string
	}{
		{[][]int{{0, 0}, {0, 0}, {0, 0}}, "none"},
		{[][]int{{3, 3}, {3, 3}, {2, 2}}, "all layers"},
		{[][]int{{1, 1}, {1, 1}, {1, 1}}, "1 layer a stage"},
		{[][]int{{1, 1}, {1, 3}, {0, 1}}, "0 to 3 layers a stage"},
	} {
		if p.Recompute = c.again; recomputedName(p) != c.want {
			t.Errorf("%v: %s, want %s", c.again, recomputedName(p), c.want)
		}
	}
	if got := stageNames(p) + "; " + layerNames(p) + "; " + stagedRanks(p, 5) + "; " + stagedRanks(p, 6); got != "2 of 2 ranks, 1 of 1 rank; 2 x 3, 2; all 5; 0-4 (5 of 6)" {
		t.Error(got)
	}
	f, b := func(k int) costs.Op { return costs.Op{Chunk: k} }, func(k int) costs.Op { return costs.Op{Chunk: k, Backward: true} }
	two := &costs.Plan{Stages: []costs.Stage{stage(1, 0), stage(1, 1)}, Chunks: make([]costs.Chunk, 3)}
	last := []costs.Op{f(0), b(0), f(1), b(1), f(2), b(2)}
	for want, first := range map[string][]costs.Op{
		"1F1B":    {f(0), f(1), b(0), f(2), b(1), b(2)},
		"its own": {f(0), f(1), f(2), b(0), b(1), b(2)},
	} {
		if two.Orders = [][]costs.Op{first, last}; orderName(two) != want {
			t.Errorf("%v: %s", first, orderName(two))
		}
	}
	two.Orders = [][]costs.Op{{f(0), f(1), b(1), f(2), b(0), b(2)}, last}
	if orderName(two) != "its own" {
		t.Error("another order backward is 1F1B")
	}
}

// Three canonical plans: of equal devices, of unequal ones with slices, and of parameters that
// every rank has whole.
func TestGoldenPipelines(t *testing.T) {
	f, _ := Lookup("megatron")
	for name, c := range map[string]struct {
		cluster, take string
		change        func(*costmodel.Job)
		lengths       []units.Tokens
	}{
		"equal":      {"2x4 h100_sxm", "1f1b", func(*costmodel.Job) {}, slices.Repeat([]units.Tokens{8 << 10}, 16)},
		"unequal":    {"1x4 h100_sxm + 1x4 a100_sxm", "seq1f1b", func(*costmodel.Job) {}, []units.Tokens{64<<10 + 1, 24000, 9000, 4000, 4000, 2000, 900, 20000, 30000, 12000}},
		"replicated": {"1x4 h100_sxm", "seq1f1b", func(j *costmodel.Job) { j.Zero = costmodel.Zero0 }, []units.Tokens{48 << 10, 8000, 8000, 8000}},
	} {
		profile, job := world.GPUJob(t, c.cluster, 1)
		c.change(&job)
		e, err := stagedEmission(t, f, piped(t, profile, job, c.take, c.lengths...), profile)
		if err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s\n%s", e.Use, e.Text)
		for _, x := range e.Fields {
			fmt.Fprintf(&b, "%s: %s -> %s: %s; %s\n", x.Name, x.Plan, x.Emitted, x.Verdict, x.Why)
		}
		fmt.Fprintf(&b, "%q\n", e.Notes)
		golden(t, "testdata/pipeline_"+name+".golden", b.String())
	}
}

// golden compares a text with a file, or writes it anew.
func golden(t *testing.T, path, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), text); diff != "" {
		t.Errorf("%s (go test ./solver/emit -update writes it anew): %s", path, diff)
	}
}

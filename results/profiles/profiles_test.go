package profiles

import (
	"math"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// mostBytes is what a fitted profile may take.
const mostBytes = 200_000

// Each reference is small, says whose measurements it rests on, and has every
// law that a plan on its GPU model asks for.
func TestEveryReferenceCanBePlannedWith(t *testing.T) {
	notice, err := os.ReadFile("NOTICE")
	if err != nil {
		t.Fatal(err)
	}
	all := All()
	if len(all) != 7 {
		t.Fatalf("%d references, want one for each of seven GPU types", len(all))
	}
	for _, r := range all {
		data, err := files.ReadFile(r.Name + suffix)
		if err != nil || len(data) > mostBytes {
			t.Errorf("%s: %d bytes, %v; want at most %d", r.Name, len(data), err, mostBytes)
		}
		if len(r.Profile.Origins) == 0 || len(r.Profile.Warnings) == 0 {
			t.Errorf("%s: names no origin, or not what was left out", r.Name)
		}
		for _, o := range r.Profile.Origins {
			if !strings.Contains(string(notice), o.Commit) || !strings.Contains(string(notice), o.Repository) {
				t.Errorf("%s: NOTICE lacks %s at %s", r.Name, o.Repository, o.Commit)
			}
		}
		plannable(t, r)
	}
}

// plannable asks for what a step of a model with heads of 64 or 128 elements is
// charged, alone and in a ring of eight.
func plannable(t *testing.T, r Reference) {
	device, err := r.Profile.DeviceFor(r.Name)
	if err != nil {
		t.Fatalf("%s %v", r.Name, err)
	}
	q := costmodel.NewCallPredictor(r.Profile)
	for _, s := range stepShapes() {
		e, err := q.Time(device, s)
		if err != nil || !(e.Lo > 0 && e.Lo < e.Mid && e.Mid < e.Hi) {
			t.Errorf("%s: %s %s: %+v, %v", r.Name, s.Kind(), s.Variant(), e, err)
		}
	}
	link := r.Profile.Groups[0].Link
	for _, k := range []op.Kind{op.KindSendRecv, op.KindAllGather, op.KindReduceScatter, op.KindAllReduce, op.KindAllToAll, op.KindAllToAllV} {
		law, _, err := q.Over(link, k, []op.Member{{Device: device, Count: 8}})
		if err != nil {
			t.Errorf("%s: %v", r.Name, err)
			continue
		}
		if costmodel.ModelOf(r.Profile.Groups[slices.IndexFunc(r.Profile.Groups, func(g op.GroupType) bool { return g.Link == link })].Members[0].Device) != r.Name {
			t.Errorf("%s: %s is answered by %s", r.Name, k, law.Group)
		}
	}
}

// Every reference has its collectives under one software alone, so that no plan by them has to say
// whose it took.
func TestReferencesHaveOneSoftwareForCollectives(t *testing.T) {
	for _, r := range All() {
		q := costmodel.NewPredictor(r.Profile)
		for _, g := range r.Profile.Groups {
			for _, d := range r.Profile.Devices {
				n := costmodel.Node{Name: "n", Devices: []op.Member{{Device: d.Name, Count: 2}}, Link: g.Link}
				if got := q.Software(costmodel.Cluster{Nodes: []costmodel.Node{n}}); got != nil {
					t.Errorf("%s: %q", r.Name, got)
				}
			}
		}
	}
}

// Every law takes the ratio of whole steps, whatever its body, and its interval has how far the
// ratio may be off in it, beyond its range as inside.
func TestReferencesAreOfTrainingSteps(t *testing.T) {
	for _, r := range All() {
		device, err := r.Profile.DeviceFor(r.Name)
		if err != nil {
			t.Fatal(err)
		}
		calls, steps := costmodel.NewCallPredictor(r.Profile), costmodel.NewPredictor(r.Profile)
		f, ok := steps.Training(device)
		if _, alone := calls.Training(device); !ok || alone {
			t.Fatalf("%s: ratios of steps %v, of calls %v", r.Name, ok, alone)
		}
		long := op.Attention{Mask: op.Diag, QLen: 1 << 22, KVLen: 1 << 22, QHeads: 32, KVHeads: 8, HeadDim: 128, DType: op.BF16}
		for _, s := range append(stepShapes(), op.AttnFwd{Attention: long}) {
			ratio, doubt := f.Layers, f.Ratio
			switch s.Kind() {
			case op.KindCEChunk:
				ratio = f.Loss
			case op.KindAdamW:
				ratio = f.Optimizer
			case op.KindH2D, op.KindD2H:
				ratio, doubt = 1, 1
			}
			alone, err := calls.Time(device, s)
			if err != nil {
				t.Fatal(err)
			}
			in, err := steps.Time(device, s)
			if err != nil || math.Abs(float64(in.Mid/alone.Mid)/ratio-1) > 1e-9 {
				t.Errorf("%s: %s takes %v alone and %v in steps, want %v times as long: %v", r.Name, s.Kind(), alone.Mid, in.Mid, ratio, err)
			}
			half := func(e costmodel.Estimate) float64 { return math.Log(float64(e.Hi / e.Mid)) }
			if got, want := half(in), math.Hypot(half(alone), math.Log(doubt)); math.Abs(got/want-1) > 1e-9 {
				t.Errorf("%s: %s is sure within %v in steps, %v alone: want %v", r.Name, s.Kind(), got, half(alone), want)
			}
		}
	}
}

func stepShapes() []op.Shape {
	var all []op.Shape
	for _, dim := range []int{64, 128} {
		for _, m := range []op.Mask{op.Full, op.Diag} {
			a := op.Attention{Mask: m, QLen: 8192, KVLen: 8192, QHeads: 32, KVHeads: 8, HeadDim: dim, DType: op.BF16}
			all = append(all, op.AttnFwd{Attention: a}, op.AttnBwd{Attention: a})
		}
	}
	for _, p := range []op.Pass{op.Forward, op.DGrad, op.WGrad} {
		all = append(all, op.GEMM{Pass: p, M: 4096, N: 4096, K: 4096, DType: op.BF16})
	}
	rows := op.Rowwise{Tokens: 4096, Width: 4096, DType: op.BF16}
	loss := op.Rowwise{Tokens: 1024, Width: 32000, DType: op.F32}
	return append(all, op.Norm{Rowwise: rows}, op.Rope{Rowwise: rows}, op.SwiGLU{Rowwise: rows}, op.CEChunk{Rowwise: loss},
		op.LSEMerge{Tokens: 4096, QHeads: 32, HeadDim: 128}, op.AdamW{Params: 1 << 28},
		op.H2D{Copy: op.Copy{Bytes: 1 << 24, Pinned: true}}, op.D2H{Copy: op.Copy{Bytes: 1 << 24, Pinned: true}})
}

// No law, measured or assumed, computes or streams faster than the datasheet.
func TestNoReferenceBeatsItsDatasheet(t *testing.T) {
	for _, r := range All() {
		device, err := r.Profile.DeviceFor(r.Name)
		if err != nil {
			t.Fatal(err)
		}
		q := costmodel.NewCallPredictor(r.Profile)
		d, err := q.Device(device)
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range stepShapes() {
			e, err := q.Time(device, s)
			if err != nil {
				t.Fatal(err)
			}
			if rate := float64(s.Work().FLOPs) / float64(e.Mid); rate > d.Sheet.BF16PerS {
				t.Errorf("%s: %s %s at %.3g FLOP/s, the datasheet's peak is %.3g", r.Name, s.Kind(), s.Variant(), rate, d.Sheet.BF16PerS)
			}
		}
	}
}

func TestLookup(t *testing.T) {
	for _, name := range []string{"h100_sxm", "h100_sxm/trtllm-1.0"} {
		if r, err := Lookup(name); err != nil || r.Name != "h100_sxm" {
			t.Errorf("%s: %s, %v", name, r.Name, err)
		}
	}
	for name, want := range map[string]string{"h100_smx": `did you mean "h100_sxm"?`, "h100": `did you mean "h100_sxm"?`, "abacus": "there are a100_sxm, b200_sxm", "": "there are a100_sxm"} {
		if _, err := Lookup(name); err == nil || !strings.Contains(err.Error(), want) || name == "abacus" && strings.Contains(err.Error(), "did you mean") {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}

// Whoever knows more GPU models has them suggested and listed.
func TestLookupKnowsOfDatasheets(t *testing.T) {
	for name, want := range map[string]string{"l40x": `(did you mean "l40s"?); there are a100_sxm`, "a800": `did you mean "a800_sxm"?`, "abacus": "rtx_pro_6000_server, and datasheets of a800_sxm, l40s; measure"} {
		if _, err := LookupOr(name, []string{"a800_sxm", "h100_sxm", "l40s"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", name, err, want)
		}
	}
}

// What is suggested begins alike, however it is written; letters alone decide where
// nothing does.
func TestSuggestedNamesBeginAlike(t *testing.T) {
	datasheets := []string{"v100_sxm3_32gb", "v100_sxm_16gb", "v100_sxm_32gb", "a10", "a100_pcie", "a100_pcie_40gb", "a100_sxm_40gb", "a6000", "h100_pcie", "l4", "l40", "l40s", "mi100", "mi300x", "mi325x", "rtx_4090", "rtx_4090d"}
	for name, want := range map[string]string{
		"A100_SXM": "a100_sxm", "a100-sxm": "a100_sxm",
		"a100_40gb": "a100_sxm_40gb", "A100-SXM4-40GB": "a100_sxm_40gb", "a100_pcie_40": "a100_pcie_40gb", "a100_80gb_pcie": "a100_pcie", "V100-SXM2-32GB": "v100_sxm_32gb", "v100_16gb": "v100_sxm_16gb",
		"mi300": "mi300x", "a100_sxm_80gb": "a100_sxm", "A100-SXM4-80GB": "a100_sxm", "H100_SXM": "h100_sxm", "H100 PCIe": "h100_pcie", "h1000": "h100_sxm",
		"a1000": "a100_sxm", "h100_pcei": "h100_pcie", "L40": "l40", "l40g": "l40", "l4o": "l4", "mi335x": "mi325x", "rtx_4090_ti": "rtx_4090", "RTX": "rtx_pro_6000_server",
		"AMD MI300X": "mi300x", "AMD Instinct MI308X": "mi300x", "nvidia_h100_sxm": "h100_sxm", "p100": "", "gb10": "",
		"rtx_9999": "", "foo": "", "x": "", "": "",
	} {
		_, err := LookupOr(name, datasheets)
		if err == nil {
			t.Errorf("%q is known", name)
			continue
		}
		suggested := ""
		if _, after, ok := strings.Cut(err.Error(), `did you mean "`); ok {
			suggested, _, _ = strings.Cut(after, `"`)
		}
		if suggested != want {
			t.Errorf("%q: %q is suggested, want %q", name, suggested, want)
		}
	}
}

// A known model in another spelling is that model; what is known as it is, or not at all, stays.
func TestSpelt(t *testing.T) {
	known := []string{"a100_sxm", "a100_sxm_40gb", "Mine", "mine", "mi300x"}
	for given, want := range map[string]string{
		"A100_SXM": "a100_sxm", "a100-sxm": "a100_sxm", "A100-SXM/trtllm-1.0.0": "a100_sxm/trtllm-1.0.0", "A100-SXM-40GB": "a100_sxm_40gb",
		"AMD Instinct MI300X": "mi300x", "Mine": "Mine", "Mine/x": "Mine/x", "MINE": "mine", "a100": "a100", "A100_SXMX": "A100_SXMX", "": "",
	} {
		if got := Spelt(given, known); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
}

// Merged profiles are valid, keep every law, and leave the embedded ones alone.
func TestMerge(t *testing.T) {
	all := All()
	laws := 0
	for _, r := range all {
		laws += len(r.Profile.Laws)
	}
	p := Merge(all)
	if err := p.Validate(); err != nil {
		t.Fatal(err)
	}
	if len(p.Laws) != laws || len(p.Inputs) != len(all) {
		t.Errorf("%d laws, %d inputs, want %d and %d", len(p.Laws), len(p.Inputs), laws, len(all))
	}
	own := *all[0].Profile
	own.Training = []costmodel.TrainingFact{{Device: own.Devices[0].Name, Layers: 1.1, Loss: 1, Optimizer: 1, Steps: 1, Ratio: 1.1}}
	if with := Merge([]Reference{{Name: "own", Profile: &own}, all[1]}); len(with.Training) != 2 || with.Training[0].Layers != 1.1 || with.Training[1] != all[1].Profile.Training[0] {
		t.Errorf("ratios of whole training steps are lost: %+v", with.Training)
	}
	if twice := Merge([]Reference{all[0], {Name: "lent by it", Input: all[0].Input, Profile: &costmodel.Profile{}}}); len(twice.Inputs) != 1 {
		t.Errorf("an input of two profiles is listed %d times", len(twice.Inputs))
	}
	p.Laws[0].Op = "changed"
	p.Groups = append(p.Groups[:0], p.Groups[1:]...)
	for _, r := range All() {
		if err := r.Profile.Validate(); err != nil {
			t.Errorf("%s changed with the merged one: %v", r.Name, err)
		}
	}
}

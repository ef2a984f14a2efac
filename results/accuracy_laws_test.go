package results

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/fit"
)

// StudiedLaw is one law of a study: how well it, and every simpler form fitted
// to the same points, predicts the points that a split held out. It is what the
// accuracy page is drawn from, one line a law in its data file.
type StudiedLaw struct {
	Split    string            `json:"split"`
	On       string            `json:"on"`
	Op       op.Kind           `json:"op"`
	Variant  string            `json:"variant,omitzero"`
	Fitted   int               `json:"fitted"`
	Held     int               `json:"held"`
	Coverage float64           `json:"coverage"` // of the 90 % interval of this tool's law
	Forms    map[string]Errors `json:"forms"`
	// Bands are the held-out points by band of sizes, and how many of them lie in
	// the 90 % interval.
	Bands map[string][2]int `json:"bands"`
}

// Errors are the mean, median and 95th percentile of |predicted/measured - 1|.
type Errors [3]float64

// MAPE is the mean.
func (e Errors) MAPE() float64 { return e[0] }

// Median is the median.
func (e Errors) Median() float64 { return e[1] }

// P95 is the 95th percentile.
func (e Errors) P95() float64 { return e[2] }

// coreAlone names this tool's law without its learnt correction.
const coreAlone = "its physical core alone"

// StudiedLaws gathers the rows of studies by law and split and orders them:
// splits as they are listed, within one by kind, device and variant. Numbers are
// rounded to what a page can show.
func StudiedLaws(rows []fit.StudyRow) []StudiedLaw {
	var laws []StudiedLaw
	for _, r := range rows {
		if r.Ours {
			laws = append(laws, StudiedLaw{
				Split: r.Split, On: r.On, Op: r.Op, Variant: r.Variant.String(), Fitted: r.Fitted, Held: r.Held,
				Coverage: digits(r.Coverage), Forms: map[string]Errors{ours: errorsOf(r)}, Bands: countedBands(r.Bands),
			})
			continue
		}
		if len(laws) == 0 {
			continue
		}
		l := &laws[len(laws)-1]
		name := r.Form
		if strings.HasPrefix(name, "tiles") || strings.HasPrefix(name, "linear") {
			name = coreAlone
		}
		if _, known := l.Forms[name]; !known {
			l.Forms[name] = errorsOf(r)
		}
	}
	slices.SortStableFunc(laws, func(a, b StudiedLaw) int {
		return cmp.Or(cmp.Compare(splitPlace(a.Split), splitPlace(b.Split)), cmp.Compare(slices.Index(accuracyKinds(), a.Kind()), slices.Index(accuracyKinds(), b.Kind())),
			cmp.Compare(a.On, b.On), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Variant, b.Variant))
	})
	return laws
}

func errorsOf(r fit.StudyRow) Errors {
	return Errors{digits(r.MAPE), digits(r.Median), digits(r.P95)}
}

// countedBands turns shares back into counts, which are shorter and exact.
func countedBands(bands []fit.StudyBand) map[string][2]int {
	counts := map[string][2]int{}
	for _, b := range bands {
		counts[b.Band] = [2]int{b.Held, int(math.Round(b.Coverage * float64(b.Held)))}
	}
	return counts
}

// digits keeps a hundredth of a percent.
func digits(share float64) float64 { return math.Round(share*1e4) / 1e4 }

func splitPlace(name string) int {
	return slices.IndexFunc(fit.Splits(), func(s fit.Split) bool { return s.Name == name })
}

// The kinds of law that the page shows apart: what moves one number of a kind
// does not move another's.
const (
	causalAttention   = "causal attention"
	windowedAttention = "causal attention in a sliding window"
	fullAttention     = "bidirectional attention"
	matrixProducts    = "GEMM"
	libraryNVLink     = "collectives of NCCL over NVLink"
	libraryPCIe       = "collectives of NCCL and oneCCL over PCIe"
	engineNVLink      = "engines' own all-reduce over NVLink"
	enginePCIe        = "engines' own all-reduce over PCIe"
	otherCollectives  = "collectives of several nodes or bridged pairs"
)

func accuracyKinds() []string {
	return []string{causalAttention, windowedAttention, fullAttention, matrixProducts, libraryNVLink, libraryPCIe, engineNVLink, enginePCIe, otherCollectives}
}

// Kind is the kind of law by its op, mask and link class.
func (l *StudiedLaw) Kind() string {
	switch fit.FamilyOf(l.Op) {
	case fit.FamilyAttention:
		switch {
		case !strings.HasPrefix(l.Variant, string(op.Diag)):
			return fullAttention
		case strings.Contains(l.Variant, "window"):
			return windowedAttention
		}
		return causalAttention
	case fit.FamilyGEMM:
		return matrixProducts
	}
	engine := strings.Contains(l.On, "-graph over ") || strings.Contains(l.On, "-eager over ")
	switch {
	case strings.HasSuffix(l.On, " over nvlink") && engine:
		return engineNVLink
	case strings.HasSuffix(l.On, " over pcie") && engine:
		return enginePCIe
	case strings.HasSuffix(l.On, " over nvlink"):
		return libraryNVLink
	case strings.HasSuffix(l.On, " over pcie"):
		return libraryPCIe
	}
	return otherCollectives
}

// String names the law: "h100_sxm/vllm-0.24.0: attn_fwd diag d128 bf16 fa3".
func (l *StudiedLaw) String() string {
	return strings.TrimSpace(fmt.Sprintf("%s: %s %s", l.On, l.Op, l.Variant))
}

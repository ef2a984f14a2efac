package replay

import (
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile/backend/torch"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

// maxFrame is the longest line that a rank may say.
const maxFrame = 1 << 20

// request is the one line that a rank is sent. Its input then stays open: when
// it ends, so does the rank.
type request struct {
	T            string           `json:"t"`
	Plans        []jsontext.Value `json:"plans"`             // documents
	Batches      [][][]part       `json:"batches,omitempty"` // by plan: its micro-batches, null for a plan of one sequence
	Parts        string           `json:"parts"`
	Layers       int              `json:"layers"`
	LossChunk    units.Tokens     `json:"loss_chunk,omitzero"`
	Repeats      int              `json:"repeats"`
	Warmup       int              `json:"warmup"`
	Seed         uint64           `json:"seed"`
	Backend      string           `json:"backend"`
	Kernel       string           `json:"kernel"`
	Docs         []units.Tokens   `json:"docs_tokens,omitempty"`
	Threads      int              `json:"threads"`
	Cores        []int            `json:"cores,omitempty"`
	Timeout      float64          `json:"timeout_s"`
	Trace        string           `json:"trace"` // file to write, on rank 0
	Check        bool             `json:"check"`
	SampledAbove units.Tokens     `json:"sampled_above"`
	Turns        bool             `json:"turns"`         // ranks share a GPU, and compute one at a time
	SMs          int              `json:"sms,omitempty"` // multiprocessors of it that the rank is confined to
	AllSMs       int              `json:"sms_in_all,omitempty"`
}

// Kernels are the attention kernels that a rank knows.
func Kernels() []string {
	return []string{"auto", "math", "fa2", "sdpa_flash", "sdpa_cudnn", "sdpa_efficient", "sdpa_cpu"}
}

// frame is a line from a rank; which fields it has depends on T. Unknown fields
// are ignored, so that a rank can say more.
type frame struct {
	T string `json:"t"` // hello, at, result, error

	Host   string `json:"host"` // hello
	Python string `json:"python"`
	Torch  string `json:"torch"`
	Kernel string `json:"kernel"`

	Vectors torch.Vectors `json:"vectors"` // of a processor
	SMs     int           `json:"sms"`     // that it is confined to, which a kernel proved

	position // at

	Numerics []Numerics    `json:"numerics"` // result
	Exact    []ExactCounts `json:"exact"`
	Ranks    []Rank        `json:"ranks"` // of rank 0: all, where they met
	Steps    int64         `json:"steps"`
	Spans    int64         `json:"spans"`

	Class string `json:"class"` // error
	Msg   string `json:"msg"`
	At    string `json:"at"`
}

func decodeFrame(line []byte) (*frame, error) {
	f := &frame{}
	if err := json.Unmarshal(line, f); err != nil {
		return nil, fmt.Errorf("says what is no frame of the protocol: %.80q", line)
	}
	switch f.T {
	case "hello", "at", "result", "error":
		return f, nil
	}
	return nil, fmt.Errorf("says a frame of unknown type %.40q", f.T)
}

// position is where a rank is.
type position struct {
	Phase string `json:"phase"`
	Plan  int    `json:"plan"`
	Block int    `json:"block"`
	MB    int    `json:"mb"` // micro-batch
	Dir   Dir    `json:"dir"`
	Layer int    `json:"layer"`
	Step  int    `json:"step"`
	Op    SpanOp `json:"op"`
}

// The phases of a rank, in order.
const (
	phaseStart    = "start" // until it says hello
	phaseMeet     = "meet"
	phaseNumerics = "numerics"
	phaseWarmup   = "warmup"
	phaseBlock    = "block"
	phaseGather   = "gather"
)

func phases() []string {
	return []string{phaseStart, phaseMeet, phaseNumerics, phaseWarmup, phaseBlock, phaseGather}
}

// String says where in words: "block 3, plan 1, fwd step 2".
func (p position) String() string {
	var parts []string
	switch p.Phase {
	case phaseStart, "":
		return "the start of its process"
	case phaseMeet:
		return "the meeting of the ranks"
	case phaseGather:
		return "the gathering of the spans"
	case phaseBlock, phaseWarmup:
		parts = append(parts, fmt.Sprintf("block %d", p.Block))
	case phaseNumerics:
		parts = append(parts, "the comparison with one device")
	default:
		parts = append(parts, p.Phase)
	}
	parts = append(parts, fmt.Sprintf("plan %d", p.Plan))
	if p.MB > 0 {
		parts = append(parts, fmt.Sprintf("micro-batch %d", p.MB))
	}
	if p.Dir != "" {
		parts = append(parts, strings.TrimSpace(fmt.Sprintf("%s layer %d step %d %s", p.Dir, p.Layer, p.Step, p.Op)))
	}
	if p.Phase == phaseWarmup {
		parts[0] = "warm-up " + parts[0]
	}
	return strings.Join(parts, ", ")
}

package serve

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/pipeline"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// Submission is the body of POST /v1/jobs/{job}/batches: batches to be planned, in
// the order in which they will be wanted. All of them are accepted or none.
type Submission struct {
	Batches []Batch `json:"batches"`
}

// Batch is one global batch of a job.
type Batch struct {
	Step    int64          `json:"step"`
	Lengths []units.Tokens `json:"lengths_tokens"`
	// DeadlineS limits the planning time in seconds, from its start; after that the best plan
	// so far is the answer. 0 is the server's own limit.
	DeadlineS float64 `json:"deadline_s,omitzero"`
}

// asked is a Submission as it comes. Every batch must name its step: left out it is
// not 0, which is a step like any other.
type asked struct {
	Batches []askedBatch `json:"batches"`
}

type askedBatch struct {
	Step      *int64         `json:"step"`
	Lengths   []units.Tokens `json:"lengths_tokens"`
	DeadlineS float64        `json:"deadline_s"`
}

// submission is what was asked, checked.
func (a *asked) submission(l Limits) (*Submission, *Problem) {
	s := &Submission{Batches: make([]Batch, len(a.Batches))}
	for i, b := range a.Batches {
		if b.Step == nil {
			return nil, &Problem{"bad_request", fmt.Sprintf("batches[%d].step", i), "missing: name the training step that the batch is for, such as \"step\": 0; its plan is fetched by it"}
		}
		s.Batches[i] = Batch{Step: *b.Step, Lengths: b.Lengths, DeadlineS: b.DeadlineS}
	}
	return s, s.check(l)
}

// State says how far a batch is.
type State string

// The states of a batch.
const (
	Queued   State = "queued"
	Planning State = "planning"
	Done     State = "done"
	Failed   State = "failed"
)

// Answer is the body of GET /v1/jobs/{job}/plans/{step} and of POST /v1/plan.
type Answer struct {
	Job   string `json:"job,omitempty"`
	Step  int64  `json:"step"`
	State State  `json:"state"`
	// Plan refers to sequences by their index in lengths_tokens and to classes by their index
	// in GET /v1/setup.
	Plan *batch.Plan `json:"plan,omitempty"`
	// Pipeline stands in for Plan where the server plans on the stages of a pipeline.
	Pipeline *Pipeline `json:"pipeline,omitempty"`
	// Interval is the 90 % interval of the plan's step_s and the source of that time. It is
	// absent if the prices are published ones, whose error is unknown, or if the deadline
	// came first.
	Interval costmodel.Estimate `json:"interval,omitzero"`
	Bound    units.Seconds      `json:"lower_bound_s,omitzero"` // of any plan of the batch in groups of the setup's classes, at their prices, or on its stages
	Gap      float64            `json:"gap"`                    // step time / lower bound - 1
	Took     float64            `json:"planning_s"`             // of the server; 0 for a plan from its cache
	// Cached says that a batch of the same lengths, in any order, was planned before.
	Cached  bool   `json:"cached,omitzero"`
	Stopped bool   `json:"stopped,omitzero"` // the deadline came first: the best plan so far
	Error   string `json:"error,omitempty"`  // of a failed batch
}

// PipelineSchema is the schema of a Pipeline, which is less than a document of solver/pipeline.
const PipelineSchema = "evenkeel.servedpipeline/v1"

// Pipeline is the plan of a batch on the stages of a pipeline, with what it takes to run it:
// load_pipeline of python/evenkeel reads it as it is.
type Pipeline struct {
	Schema  string         `json:"schema"`
	Devices []string       `json:"devices"`        // by rank
	Lengths []units.Tokens `json:"lengths_tokens"` // as submitted
	Layers  int            `json:"layers"`
	pipeline.Plan
}

// Problem is the body of every answer that is no success.
type Problem struct {
	Code    string `json:"code"`            // for programs: see openapi.yaml
	Field   string `json:"field,omitempty"` // of the request
	Message string `json:"message"`         // for people: the value and the way out
}

// Error implements error.
func (p *Problem) Error() string {
	if p.Field != "" {
		return p.Field + ": " + p.Message
	}
	return p.Message
}

// Setup is the body of GET /v1/setup: what the server plans for.
type Setup struct {
	Tool    string       `json:"tool"`
	Costs   string       `json:"costs"` // where the prices come from
	Fleet   []SetupPool  `json:"fleet"`
	Classes []SetupClass `json:"classes"`
	// Stages are those of the pipeline that batches are planned on; none where they are planned
	// in groups.
	Stages []pipeline.Stage `json:"stages,omitempty"`
	Limits SetupLimits      `json:"limits"`
}

// SetupLimits are the Limits that a client should know of.
type SetupLimits struct {
	Queue     int          `json:"queue"`
	Kept      int          `json:"kept"`
	Sequences int          `json:"sequences"`
	Tokens    units.Tokens `json:"length_tokens"`
	PlanningS float64      `json:"planning_s"`
	WaitS     float64      `json:"wait_s"`
}

// SetupPool is devices that are alike.
type SetupPool struct {
	Device string  `json:"device"`
	Ranks  [][]int `json:"ranks"` // by node
}

// SetupClass is a kind of group.
type SetupClass struct {
	Name   string    `json:"name"`
	Uses   []int     `json:"devices"` // by pool of the fleet
	Shares []float64 `json:"shares,omitempty"`
	Heads  int       `json:"head_ranks,omitzero"`
	QHeads []int     `json:"q_heads,omitempty"` // of a device, by pool, where they are not shared evenly
	// Groups are the all-to-alls in the order of their ring; ranks are places among a
	// group's ranks. None where the prices do not say: neighbours share heads then.
	Groups [][]SetupMember `json:"groups,omitempty"`
	// Schedule: with own_last, backward, each of several all-to-alls with tokens computes its
	// own block last.
	costmodel.Schedule
	Recompute bool         `json:"recompute,omitzero"`
	Cap       units.Tokens `json:"cap_tokens"`
}

// SetupMember is a device of an all-to-all, and its query heads.
type SetupMember struct {
	Rank   int `json:"rank"`
	QHeads int `json:"q_heads"`
}

// planning is the first line of the journal: what the others plan for. Plans name
// devices by rank and groups by their place among the kinds.
type planning struct {
	T      string `json:"t"`      // "for"
	Groups string `json:"groups"` // digest of devices and kinds of groups
	Costs  string `json:"costs"`  // in words, for people
}

// planning is that line for a setup. The digest is of what the setup says of devices and
// groups as JSON, where a field that is not set says nothing: one that is new to evenkeel
// refuses no journal of before.
func (s *Setup) planning() planning {
	plannedFor := []any{s.Fleet, s.Classes}
	if len(s.Stages) > 0 {
		plannedFor = append(plannedFor, s.Stages)
	}
	data, err := json.Marshal(plannedFor)
	if err != nil {
		panic("serve: a setup that is no JSON: " + err.Error()) // numbers from a validated plan are finite
	}
	h := sha256.Sum256(data)
	return planning{"for", hex.EncodeToString(h[:16]), s.Costs}
}

// accepted, planned and dropped are the other lines. The batches of a submission are
// one line: all of them are accepted or none.
type accepted struct {
	T       string  `json:"t"` // "accept"
	Job     string  `json:"job"`
	Batches []Batch `json:"batches"`
}

type dropped struct {
	T    string `json:"t"` // "drop"
	Job  string `json:"job"`
	Step int64  `json:"step"`
}

type planned struct {
	T      string         `json:"t"` // "result"
	Job    string         `json:"job"`
	Step   int64          `json:"step"`
	Digest string         `json:"digest"` // of the lengths, for submissions that come again
	Failed bool           `json:"failed,omitzero"`
	Sum    string         `json:"sum,omitzero"` // of the answer; none in journals of before
	Answer jsontext.Value `json:"answer"`
}

// check reports the first thing wrong with a submission.
func (s *Submission) check(l Limits) *Problem {
	if len(s.Batches) == 0 {
		return &Problem{"bad_request", "batches", "none: want at least one"}
	}
	steps := map[int64]bool{}
	for i, b := range s.Batches {
		at := fmt.Sprintf("batches[%d]", i)
		if steps[b.Step] {
			return &Problem{"bad_request", at + ".step", fmt.Sprintf("%d: twice in one submission", b.Step)}
		}
		steps[b.Step] = true
		if p := b.check(at, l); p != nil {
			return p
		}
	}
	return nil
}

func (b *Batch) check(at string, l Limits) *Problem {
	if b.Step < 0 {
		return &Problem{"bad_request", at + ".step", fmt.Sprintf("%d: want 0 or more", b.Step)}
	}
	if !(b.DeadlineS >= 0 && b.DeadlineS <= l.PlanningS) {
		return &Problem{"bad_request", at + ".deadline_s", fmt.Sprintf("%v: want 0 to %v seconds; see --max-planning", b.DeadlineS, l.PlanningS)}
	}
	return checkLengths(at+".lengths_tokens", b.Lengths, l)
}

func checkLengths(at string, lengths []units.Tokens, l Limits) *Problem {
	if len(lengths) == 0 {
		return &Problem{"bad_request", at, "none: want the tokens of at least one sequence"}
	}
	if n := len(lengths); n > l.Sequences {
		return &Problem{"too_many_sequences", at, fmt.Sprintf("%d sequences: this server plans at most %d at a time; see --max-sequences", n, l.Sequences)}
	}
	for k, s := range lengths {
		if s >= 1 && s <= l.Tokens {
			continue
		}
		way := "truncate or drop longer ones"
		if s < 1 {
			way = "leave out what has none"
		}
		return &Problem{"bad_length", fmt.Sprintf("%s[%d]", at, k), fmt.Sprintf("%s: want 1 to %d, %s; %s", units.Count(s, "token"), int64(l.Tokens), cmp.Or(l.TokensOf, "what the largest group of this fleet holds"), way)}
	}
	return nil
}

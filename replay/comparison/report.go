package comparison

import (
	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/fit"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Report says how far a trace and its prediction are apart.
type Report struct {
	Simulated bool     `json:"simulated"` // the profile was made on a simulated backend
	Mode      string   `json:"mode"`
	Parts     string   `json:"parts"`  // of a layer that were run
	Layers    int      `json:"layers"` // of plans but pipelines and tasks, which are run with all of them
	Blocks    int      `json:"blocks"`
	Limits    int      `json:"limits_revision"` // of the limits document that was applied
	Strict    bool     `json:"strict,omitzero"` // checks without a verdict fail as well
	Plans     []Plan   `json:"plans"`
	Ranking   *Ranking `json:"ranking,omitempty"`
	Gains     []Gain   `json:"gains,omitempty"` // of the first plan over each other
	Verdicts  []Check  `json:"verdicts"`
	Warnings  []string `json:"warnings,omitempty"`
	// Oversubscribed: ranks had more threads than there were cores, so that the times
	// mean nothing and are not judged.
	Oversubscribed bool `json:"oversubscribed,omitzero"`
}

// Plan compares one replayed plan with its prediction.
type Plan struct {
	Plan      int                `json:"plan"`
	Path      string             `json:"path"`
	Strategy  string             `json:"strategy"`
	Batch     bool               `json:"batch,omitzero"`    // of a plan of batches
	Pipeline  bool               `json:"pipeline,omitzero"` // of a pipeline, with its chunks as micro-batches
	Runs      []string           `json:"runs,omitempty"`    // of tasks, the modules by run, which are as micro-batches
	Layers    int                `json:"layers"`            // that were run; of tasks in the module that has most
	Micro     int                `json:"micro_batches,omitzero"`
	Predicted costmodel.Estimate `json:"predicted"`
	// Meeting is the predicted step time if all ranks met after every layer and pass, as the
	// prediction of a whole training step assumes; of tasks, if those of a run did around it.
	Meeting  units.Seconds `json:"meeting_s"`
	Measured Measured      `json:"measured"`
	Steps    []float64     `json:"steps_s"` // by block
	// Log is log(predicted/measured) of the step time, Upper the upper 95 % bootstrap bound of
	// its absolute value over blocks.
	Log    float64 `json:"log_predicted_over_measured"`
	Upper  float64 `json:"error_upper"`
	Inside bool    `json:"inside_interval"` // the median measured step lies in the predicted 90 % interval
	// Critical is, by micro-batch, the rank that took longest in the median block; one where a
	// step is one lap, as of a pipeline, of tasks and of a whole step.
	Critical []int `json:"critical_ranks"`
	// Difference is measured less predicted, and the sum of the four parts.
	Difference units.Seconds `json:"difference_s"`
	Parts      []Part        `json:"parts"`
	Compute    []Part        `json:"compute"` // the stretches that make up the first part
	// ComputeError is the mean error of the stretches of computing, weighted by
	// their measured times.
	ComputeError float64   `json:"compute_error"`
	Stretches    int       `json:"compute_stretches"` // number of stretches behind ComputeError
	Classes      []Class   `json:"classes"`
	RankClasses  []Class   `json:"rank_classes"`
	Ranks        []RankSum `json:"ranks"`
}

// RankSum is what one rank did in a step: medians over the blocks, beside the
// predictions.
type RankSum struct {
	Rank      int           `json:"rank"`
	Device    string        `json:"device"`
	Predicted units.Seconds `json:"predicted_s"` // until its own end
	Measured  units.Seconds `json:"measured_s"`
	Computes  units.Seconds `json:"predicted_compute_s"`
	Computed  units.Seconds `json:"measured_compute_s"`
	Waits     units.Seconds `json:"predicted_waiting_s"`
	Waited    units.Seconds `json:"measured_waiting_s"`
	Gaps      units.Seconds `json:"measured_gaps_s"`
}

// Ranking says whether the predictions rank the plans as the measurements do.
type Ranking struct {
	Plans  int     `json:"plans"`
	TauB   float64 `json:"tau_b"` // Kendall's tau-b of predicted and measured steps
	Pairs  int     `json:"pairs"` // pairs of plans that are no ties by measurement
	Ties   int     `json:"ties"`
	Chosen int     `json:"chosen"` // index of the plan that the model ranks first
	Best   int     `json:"best"`   // index of the plan with the smallest median
	// Regret is how much longer the chosen plan takes than the best one, as a share. The best
	// plan is taken from the odd blocks and the times from the even ones; Unsplit uses all
	// blocks for both (see stats.RegretOf).
	Regret       float64 `json:"regret"`
	RegretUpper  float64 `json:"regret_upper"` // 95 % bootstrap bound
	Unsplit      float64 `json:"regret_unsplit"`
	UnsplitUpper float64 `json:"regret_unsplit_upper"`
	Blocks       int     `json:"blocks"`
	Noise        float64 `json:"noise"` // relative standard deviation of a plan between blocks

	ordered bool // there is an order to compare: not all plans are ties
}

// Gain is the time that the first plan saves over another, as a share of the other's
// time.
type Gain struct {
	Over      int     `json:"over"` // index of the other plan
	Predicted float64 `json:"predicted"`
	Measured  float64 `json:"measured"` // median over blocks
	Lo        float64 `json:"measured_lo"`
	Hi        float64 `json:"measured_hi"` // 95 % bootstrap interval
	// Share is the measured over the predicted gain; 0 where no gain is predicted.
	Share float64 `json:"share_achieved"`
}

// Check is one number compared with its limit.
type Check struct {
	Name    string      `json:"name"`
	Value   float64     `json:"value"`
	Limit   float64     `json:"limit"` // largest value allowed; of tau_b the smallest
	Verdict fit.Verdict `json:"verdict"`
	Why     string      `json:"why,omitempty"` // why there is no verdict, or why it failed
}

// Failed says whether a limit is broken; strict also where there is no verdict
// because blocks are too few.
func (r *Report) Failed(strict bool) bool {
	for _, c := range r.Verdicts {
		if c.Verdict == fit.Fail || strict && c.Verdict == fit.Insufficient {
			return true
		}
	}
	return false
}

package serve

import (
	"bytes"
	"cmp"
	"io"
	"maps"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/internal/doc"
)

// JournalView is what a journal keeps, counted.
type JournalView struct {
	Costs string      `json:"costs"` // in words, by what and for which devices its plans are
	Jobs  []JobInView `json:"jobs"`  // by name
	Torn  bool        `json:"torn"`  // a last line is not whole: it is being written, or its writer died
}

// JobInView counts the batches of a job. Their steps go from First to Last.
type JobInView struct {
	Job     string `json:"job"`
	First   int64  `json:"first_step"`
	Last    int64  `json:"last_step"`
	Plans   int    `json:"plans"`
	Failed  int    `json:"failed"`  // of which planning failed
	Waiting int    `json:"waiting"` // accepted, without an answer
}

// IsJournal says whether a file that begins with head is a journal.
func IsJournal(head []byte) bool {
	var first struct {
		T      string `json:"t"`
		Groups string `json:"groups"`
		Costs  string `json:"costs"`
	}
	line, _, _ := bytes.Cut(head, []byte("\n"))
	return json.Unmarshal(line, &first) == nil && first.T == "for" && first.Groups != ""
}

// ViewJournal reads a journal, also one that a server is writing: it takes no lock and cuts
// nothing off. name is the file's in errors.
func ViewJournal(name string, r io.Reader) (*JournalView, error) {
	var v JournalView
	states := map[key]State{}
	torn, err := doc.ReadLines(name, r, 0, func(line int, data []byte) error {
		says, err := decoded(name, line, data)
		if err != nil {
			return err
		}
		switch x := says.(type) {
		case *planning:
			v.Costs = x.Costs
		case *accepted:
			for i := range x.Batches {
				states[key{x.Job, x.Batches[i].Step}] = Queued
			}
		case *dropped:
			delete(states, key{x.Job, x.Step})
		case *planned:
			states[key{x.Job, x.Step}] = Done
			if x.Failed {
				states[key{x.Job, x.Step}] = Failed
			}
		}
		return nil
	})
	v.Torn, v.Jobs = torn, jobsOf(states)
	return &v, err
}

// jobsOf counts batches by job.
func jobsOf(states map[key]State) (jobs []JobInView) {
	byStep := func(a, b key) int { return cmp.Or(cmp.Compare(a.job, b.job), cmp.Compare(a.step, b.step)) }
	for _, k := range slices.SortedFunc(maps.Keys(states), byStep) {
		if n := len(jobs); n == 0 || jobs[n-1].Job != k.job {
			jobs = append(jobs, JobInView{Job: k.job, First: k.step})
		}
		j := &jobs[len(jobs)-1]
		j.Last = k.step
		switch states[k] {
		case Done:
			j.Plans++
		case Failed:
			j.Failed++
		default:
			j.Waiting++
		}
	}
	return jobs
}

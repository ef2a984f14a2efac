package serve

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// sumOf identifies an answer, so that one that changed in the journal is known.
func sumOf(answer []byte) string {
	h := sha256.Sum256(answer)
	return hex.EncodeToString(h[:16])
}

// result is the line of an answer.
func result(e *entry, failed bool, answer []byte) planned {
	return planned{T: "result", Job: e.job, Step: e.step, Digest: e.digest, Failed: failed, Sum: sumOf(answer), Answer: answer}
}

// sound says why an answer is not the one that a server wrote. lengths are its batch's, nil
// where its acceptance is not in the journal any more.
func (r *planned) sound(lengths []units.Tokens) error {
	if r.Sum != "" {
		if sumOf(r.Answer) != r.Sum {
			return errors.New("it was changed since it was written")
		}
		return nil // a planner's plan, which was checked
	}
	var a Answer // of a version that wrote no sums
	if err := json.Unmarshal(r.Answer, &a); err != nil {
		return err
	}
	switch {
	case a.Job != r.Job || a.Step != r.Step || r.Failed != (a.State == Failed):
		return fmt.Errorf("it is of job %q, step %d, %s", a.Job, a.Step, a.State)
	case r.Failed:
		return nil
	case a.Plan != nil:
		return covers(a.Plan, lengths)
	case a.Pipeline != nil:
		return a.Pipeline.covers(r.Digest)
	}
	return errors.New("it has no plan")
}

// covers says which sequence a plan does not have exactly once. Without the lengths nothing is
// known of sequences behind the last one that the plan has.
func covers(p *batch.Plan, lengths []units.Tokens) error {
	times := make(map[int]int)
	n := len(lengths)
	for i, m := range p.Micro {
		for j, g := range m.Groups {
			tokens := units.Tokens(0)
			for _, k := range g.Sequences {
				if k < 0 || lengths != nil && k >= len(lengths) {
					return fmt.Errorf("micro_batches[%d].groups[%d].sequences: no sequence %d", i, j, k)
				}
				if times[k]++; lengths != nil {
					tokens += lengths[k]
				}
				n = max(n, k+1)
			}
			if lengths != nil && tokens != g.Tokens {
				return fmt.Errorf("micro_batches[%d].groups[%d].length_tokens: %d: its sequences have %d", i, j, int64(g.Tokens), int64(tokens))
			}
		}
	}
	// Where all are met once, there are as many as the last one's place says.
	for k := 0; k < n; k++ {
		if times[k] != 1 {
			return fmt.Errorf("sequence %d is trained %s", k, units.Count(times[k], "time"))
		}
	}
	return nil
}

// covers says which sequence a pipeline's chunks do not have exactly once.
func (p *Pipeline) covers(digest string) error {
	if digestOf(p.Lengths) != digest {
		return errors.New("lengths_tokens: of another batch")
	}
	upTo := make([]units.Tokens, len(p.Lengths))
	for i, c := range p.Chunks {
		for _, k := range c.Whole {
			if k < 0 || k >= len(upTo) || upTo[k] != 0 {
				return fmt.Errorf("chunks[%d].whole: no sequence %d, or a second time", i, k)
			}
			upTo[k] = p.Lengths[k]
		}
		if c.Slice == 0 {
			continue
		}
		if k := c.Sequence; k < 0 || k >= len(upTo) || c.Slice < 0 || upTo[k] != c.Context {
			return fmt.Errorf("chunks[%d]: no slice of sequence %d begins at %d", i, k, int64(c.Context))
		}
		upTo[c.Sequence] += c.Slice
	}
	for k, n := range p.Lengths {
		if upTo[k] != n {
			return fmt.Errorf("sequence %d: chunks have %d of its %d tokens", k, int64(upTo[k]), int64(n))
		}
	}
	return nil
}

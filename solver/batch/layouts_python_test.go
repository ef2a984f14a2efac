package batch

import (
	"bytes"
	"flag"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
)

var update = flag.Bool("update", false, "write the layouts that the Python package's tests have anew")

// layoutCase is a group of a plan and how its tokens and heads lie.
type layoutCase struct {
	QHeads  int                `json:"q_heads"`
	KVHeads int                `json:"kv_heads"`
	Class   ClassEntry         `json:"class"`
	Lengths []units.Tokens     `json:"lengths_tokens"`
	Shards  []costmodel.Shard  `json:"shards"` // by place in the group
	Groups  []costmodel.Group  `json:"groups"`
	After   costmodel.Schedule `json:"schedule"`
}

// A trainer lays groups out by itself: load_batch of python/evenkeel, whose tests have
// these layouts.
func TestLayoutsForPython(t *testing.T) {
	const file = "../../python/tests/layouts.jsonl"
	r := rand.New(rand.NewPCG(11, 3))
	var cases []layoutCase
	for len(cases) < 60 {
		c, qHeads, kvHeads := randomClass(r)
		c.OwnLast, c.KeepTail = r.IntN(2) == 0, r.IntN(2) == 0
		if r.IntN(4) == 0 {
			c.HeadChunks = 2
		}
		if c.Heads > 0 && r.IntN(2) == 0 {
			c.QHeads = make([]int, len(c.Uses))
			for i := range c.QHeads {
				c.QHeads[i] = qHeads / c.Heads
			}
		}
		var lengths []units.Tokens
		for range 1 + r.IntN(4) {
			lengths = append(lengths, 1+units.Tokens(r.IntN([]int{3, 40, 5000}[r.IntN(3)])))
		}
		l, _, err := GroupLayout(oneGroup(c, lengths...), 0, 0, qHeads, kvHeads)
		if err != nil {
			t.Fatal(err)
		}
		cases = append(cases, layoutCase{qHeads, kvHeads, ClassEntry(c), lengths, l.Shards, l.Groups, l.Schedule})
	}
	var want bytes.Buffer
	for _, c := range cases {
		if err := json.MarshalWrite(&want, c, json.Deterministic(true), jsontext.Multiline(false)); err != nil {
			t.Fatal(err)
		}
		want.WriteByte('\n')
	}
	if *update {
		if err := os.WriteFile(file, want.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want.Bytes()) {
		t.Errorf("%s has other layouts than these; if they are meant to be, change python/evenkeel/batches.py and write them anew: go test ./solver/batch -run TestLayoutsForPython -update", file)
	}
}

package workload

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/internal/units"
	"pgregory.net/rapid"
)

// slowPack is best fit decreasing by looking at every buffer.
func slowPack(lengths []units.Tokens, capacity units.Tokens) []Buffer {
	var buffers []Buffer
	order := upTo(len(lengths))
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(lengths[b], lengths[a]) })
	for _, k := range order {
		best := -1
		for i, b := range buffers {
			if b.Tokens+lengths[k] <= capacity && (best < 0 || b.Tokens > buffers[best].Tokens) {
				best = i
			}
		}
		if best < 0 {
			best = len(buffers)
			buffers = append(buffers, Buffer{})
		}
		buffers[best].Tokens += lengths[k]
		buffers[best].Sequences = append(buffers[best].Sequences, k)
	}
	return buffers
}

func TestPackIsBestFitDecreasing(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		capacity := rapid.Int64Range(1, 200).Draw(t, "capacity")
		var lengths []units.Tokens
		for _, l := range rapid.SliceOfN(rapid.Int64Range(1, capacity), 0, 3000).Draw(t, "lengths") {
			lengths = append(lengths, units.Tokens(l))
		}
		got, err := Pack(lengths, units.Tokens(capacity))
		if err != nil {
			t.Fatal(err)
		}
		if want := slowPack(lengths, units.Tokens(capacity)); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got %v, want %v", got, want)
		}
	})
}

func TestPackManyOpenBuffers(t *testing.T) {
	var lengths []units.Tokens
	for i := range 5000 { // all open until the small ones come: many chunks
		lengths = append(lengths, units.Tokens(60_000+i*7%5000), units.Tokens(1+i%3000))
	}
	got, err := Pack(lengths, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	if want := slowPack(lengths, 100_000); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error("not best fit decreasing")
	}
}

func TestPackRefusesWhatFitsNowhere(t *testing.T) {
	const want = "sequence 1: 9 tokens: a buffer holds 8; truncate or drop longer ones, or pack into larger buffers"
	if _, err := Pack([]units.Tokens{3, 9}, 8); err == nil || err.Error() != want {
		t.Errorf("got %v", err)
	}
}

func TestShapes(t *testing.T) {
	lengths := []units.Tokens{1, 128, 129, 1000, 90}
	for _, c := range []struct {
		shape              Shape
		want               string
		dropped, truncated int
		cut, padding       units.Tokens
		kept               string
	}{
		{Shape{}, "[1 128 129 1000 90]", 0, 0, 0, 0, "[]"},
		{Shape{Multiple: 128}, "[128 128 256 1024 128]", 0, 0, 0, 127 + 0 + 127 + 24 + 38, "[]"},
		{Shape{Limit: 200}, "[1 128 129 90]", 1, 0, 0, 0, "[0 1 2 4]"},
		{Shape{Limit: 200, Truncate: true}, "[1 128 129 200 90]", 0, 1, 800, 0, "[]"},
		{Shape{Limit: 200, Truncate: true, Multiple: 128}, "[128 128 128 128 128]", 0, 2, 873, 127 + 38, "[]"},
		{Shape{Limit: 300, Multiple: 128}, "[128 128 256 128]", 1, 0, 0, 127 + 127 + 38, "[0 1 2 4]"},
	} {
		if err := c.shape.Validate(); err != nil {
			t.Error(err)
		}
		got := c.shape.Apply(lengths)
		if fmt.Sprintf("%d", got.Lengths) != c.want || got.Dropped != c.dropped || got.Truncated != c.truncated ||
			got.Cut != c.cut || got.Padding != c.padding || fmt.Sprint(got.Kept) != c.kept {
			t.Errorf("%+v: got %+v", c.shape, got)
		}
	}
	for _, bad := range []Shape{{Limit: -1}, {Multiple: -1}, {Limit: 100, Multiple: 128}, {Limit: MaxLength + 1}} {
		if bad.Validate() == nil {
			t.Errorf("%+v: no error", bad)
		}
	}
}

func TestBatches(t *testing.T) {
	lengths := []units.Tokens{1, 2, 3, 4, 5, 6, 7}
	if got, err := Batch(lengths, 3, 1); err != nil || !slices.Equal(got, []units.Tokens{4, 5, 6}) {
		t.Error(got, err)
	}
	const want = "there are 2 batches of 3 sequences, counted from 0, in 7 lengths"
	if _, err := Batch(lengths, 3, 2); err == nil || err.Error() != want {
		t.Error(err)
	}
	if _, err := Batch(lengths, 5, 1); err == nil || !strings.HasPrefix(err.Error(), "there is 1 batch of 5 ") {
		t.Error(err)
	}
}

func BenchmarkPackMillion(b *testing.B) {
	d, err := ParseDistribution("lognormal:median=1000,sd=1.7,seed=7")
	if err != nil {
		b.Fatal(err)
	}
	lengths := Shape{Limit: 131072, Truncate: true}.Apply(d.Lengths(1_000_000)).Lengths
	for b.Loop() {
		if _, err := Pack(lengths, 131072); err != nil {
			b.Fatal(err)
		}
	}
}

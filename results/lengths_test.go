package results

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/workload"
	"github.com/evenkeel/evenkeel/internal/units"
)

func summarised(t *testing.T, batch int, lengths ...units.Tokens) *LengthSummary {
	t.Helper()
	s, err := SummariseLengths("lengths.txt", "one by one", lengths, batch)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9*math.Abs(want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestLengthsAreSummarised(t *testing.T) {
	s := summarised(t, 4, 100, 200, 300, 1000, 100, 100, 100, 500)
	if s.Sequences != 8 || s.Total != 2400 || s.Mean != 300 || s.Batches != 2 {
		t.Errorf("%+v", s)
	}
	// Sorted: 100 100 100 100 200 300 500 1000; quantile q is number ceil(8 q).
	want := "[{0 100} {0.1 100} {0.25 100} {0.5 100} {0.75 300} {0.9 1000} {0.95 1000} {0.99 1000} {0.999 1000} {1 1000}]"
	if got := fmt.Sprint(s.Quantiles); got != want {
		t.Errorf("quantiles %s", got)
	}
	if got := fmt.Sprintf("%d", s.Bands); got != "[{65 128 4 400} {129 256 1 200} {257 512 2 800} {513 1024 1 1000}]" {
		t.Errorf("bands %s", got)
	}
	near(t, "waste to the longest", s.Padding[0].Waste, 1-2400.0/8000)
	// Powers of two: 4 x 128, 256, 2 x 512, 1024.
	near(t, "waste to powers of two", s.Padding[1].Waste, 1-2400.0/2816)
	near(t, "attention to the longest", s.Padding[0].Attention, 8*1000*1001/(4*100*101+200*201+300*301+500*501+1000*1001.0))
	near(t, "packed", s.Padding[3].Waste, 1-2400.0/131072)
	if p := s.Padding[3]; p.Buffers != 1 || p.LeftOut != 0 || p.Attention != 1 {
		t.Errorf("packed: %+v", p)
	}
	// Two ranks get 100+300 and 200+1000 of the first batch, 100+100 and 100+500
	// of the second; of the squares 10+90 and 40+1000, 10+10 and 10+250 thousands.
	if len(s.Imbalance) != 1 {
		t.Fatalf("%+v", s.Imbalance)
	}
	im := s.Imbalance[0]
	near(t, "tokens", im.Tokens, 600/400.0) // 1.5 in both batches
	near(t, "work", im.Work, 260/140.0)     // the greater of two, against 1040/570
	near(t, "worst", im.Worst, 260/140.0)
	near(t, "whole", im.Whole, 250/140.0) // against 1000/570
}

func TestSequencesBeyondTheBufferAreLeftOut(t *testing.T) {
	s := summarised(t, 512, 200_000, 131_072, 131_072)
	if p := s.Padding[3]; p.Buffers != 2 || p.LeftOut != 1 || p.Waste != 0 {
		t.Errorf("%+v", p)
	}
	if s := summarised(t, 512, 200_000); len(s.Padding) != 3 || s.Batch != 1 || len(s.Imbalance) != 1 {
		t.Errorf("%+v", s)
	}
}

func TestLengthsPage(t *testing.T) {
	d, err := workload.ParseDistribution("flexsp-standin")
	if err != nil {
		t.Fatal(err)
	}
	for _, lengths := range [][]units.Tokens{{1}, {1 << 31}, {1, 1 << 31}, d.Lengths(2000)} {
		s := summarised(t, 512, lengths...)
		var b strings.Builder
		if err := Lengths(&b, s); err != nil {
			t.Fatal(err)
		}
		for _, line := range strings.Split(b.String(), "\n") {
			if len(line) > Width || strings.Contains(line, "NaN") || strings.HasSuffix(line, " ") {
				t.Errorf("%q", line)
			}
		}
	}
	var b strings.Builder
	if err := Lengths(&b, summarised(t, 4, 100, 200, 300, 1000, 100, 100, 100, 500)); err != nil {
		t.Fatal(err)
	}
	for tokens, want := range map[units.Tokens]string{999: "999 tokens", 2e9: "2 billion tokens", 3e12: "3 trillion tokens"} {
		if got := manyTokens(tokens); got != want {
			t.Errorf("%d tokens: %q, want %q", int64(tokens), got, want)
		}
	}
	if !strings.HasPrefix(b.String(), "lengths lengths.txt: 8 sequences, 2.4 thousand tokens, mean 300; one by one\n") {
		t.Errorf("got\n%s", b.String())
	}
}

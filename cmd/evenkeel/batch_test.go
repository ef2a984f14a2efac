package main

import (
	"context"
	"io"
	"strings"
	"testing"
)

// Who interrupts the pricing of groups is told that there is no plan, and why.
func TestABatchThatIsInterruptedBeforeItsPrices(t *testing.T) {
	interrupted, cancel := context.WithCancel(t.Context())
	cancel()
	o := problem{
		cluster: "1x2 h100_sxm", model: "testdata/config.json", recompute: "none", zero: "zero3", accumulate: 1, ringBuffers: 2, lossChunk: "1k",
		sequences: sequences{file: "lognormal:median=1000,sd=1,seed=1", size: 4, pad: "128"},
	}
	err := (&app{out: io.Discard, errOut: io.Discard}).runBatch(interrupted, o)
	if err == nil || !strings.Contains(err.Error(), "interrupted before the groups of the cluster were priced, and there is no plan without prices; nothing was written") {
		t.Error(err)
	}
}

package main

import (
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
)

// Without --dtype a plan is of the precision that the cluster's devices have laws of attention
// for: what other devices of the profile have leaves nothing to choose.
func TestPrecisionIsOfTheClustersDevices(t *testing.T) {
	law := func(device string, d op.DType) costmodel.Law {
		return costmodel.Law{Op: op.KindAttnFwd, Device: device, Variant: op.Variant{DType: d, HeadDim: 128}}
	}
	p := &costmodel.Profile{Laws: []costmodel.Law{
		law("cpu", op.F32), law("big", op.BF16), law("big", op.F16), law("small", op.BF16), law("small", op.BF16),
		{Op: op.KindGEMM, Device: "bare", Variant: op.Variant{DType: op.F32}},
	}}
	on := func(cluster string) known {
		c, err := costmodel.ParseCluster(cluster)
		if err != nil {
			t.Fatal(err)
		}
		return known{profile: p, cluster: c}
	}
	for _, x := range []struct {
		laws known
		want op.DType
		err  string
	}{
		{on("1x2 small"), op.BF16, ""},
		{on("1x1 cpu"), op.F32, ""},
		{on("1x2 big + 1x2 small"), op.BF16, ""},
		{on("2x2 big"), "", "the profile has attention laws of big for bf16, f16: choose one with --dtype"},
		{on("1x1 cpu + 1x1 small + 1x1 big"), "", "the profile has attention laws of cpu, small, big, but of no precision for all of these: measure them in one"},
		{on("1x1 bare"), "", "no law for attn_fwd"},
	} {
		got, err := problem{}.precision(x.laws)
		if got != x.want || (err == nil) != (x.err == "") || err != nil && !strings.Contains(err.Error(), x.err) {
			t.Errorf("%v: %q, %v, want %q, %s", x.laws.cluster, got, err, x.want, x.err)
		}
	}
	if got, err := (problem{dtype: "fp8"}).precision(on("1x1 big")); got != "fp8" || err != nil {
		t.Errorf("--dtype fp8: %q, %v", got, err)
	}
}

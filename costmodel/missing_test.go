package costmodel

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Who lacks a law is told what the profile has in its place, and a command that measures
// that very law: a calibration without it measures what there is already.
func TestMissingLawNamesThoseBesideIt(t *testing.T) {
	p := usual(t)
	q := NewPredictor(p)
	for want, v := range map[string]op.Variant{
		"no law for attn_fwd (diag d256 f32) on fast in the profile, which has it for heads of 64; measure it: evenkeel calibrate --fresh --only attn_fwd --model config.json, then fit again":         {Mask: op.Diag, HeadDim: 256, DType: op.F32},
		"no law for attn_fwd (diag d64 f16) on fast in the profile, which has it in f32: plan with --dtype f32, or measure it: evenkeel calibrate --fresh --only attn_fwd --dtype f16, then fit again": {Mask: op.Diag, HeadDim: 64, DType: op.F16},
		// A calibration with --dtype fp8 would run nothing: this precision is imported alone.
		"no law for attn_fwd (diag d64 fp8) on fast in the profile, which has it in f32: plan with --dtype f32, or import what others measured of it, for calibrate runs no fp8: evenkeel import, then fit again": {Mask: op.Diag, HeadDim: 64, DType: op.FP8},
		"no law for attn_fwd (diag d64 f32 window 9) on fast in the profile; measure it: evenkeel calibrate --fresh --only attn_fwd, then fit again":                                                              {Mask: op.Diag, HeadDim: 64, DType: op.F32, Window: 9},
	} {
		if _, err := q.Law("fast", op.KindAttnFwd, v); err == nil || err.Error() != want {
			t.Errorf("%v\nwant %s", err, want)
		}
	}
	// Of links there are no such laws, and no flag of a plan chooses among them.
	if _, _, err := q.Over("other", op.KindSendRecv, []op.Member{{Device: "fast", Count: 2}}); err == nil || !strings.Contains(err.Error(), "in the profile; measure it") {
		t.Error(err)
	}
}

// A step that lacks laws of several ops names all of them at once, with one command for all:
// named one by one, each would take a calibration to hear of the next.
func TestAllMissingLawsAreNamedAtOnce(t *testing.T) {
	p := usual(t)
	tokens := []units.Tokens{1024, 1024}
	for _, c := range []struct {
		change func(*Job)
		want   string
		laws   int
	}{
		{
			func(j *Job) { j.Model.HeadDim = 256 },
			"no law for attn_fwd (diag d256 f32), attn_fwd (full d256 f32), attn_bwd (diag d256 f32), attn_bwd (full d256 f32) on fast, slow in the profile, " +
				"which has them for heads of 64; measure them: evenkeel calibrate --fresh --only attn_fwd,attn_bwd --model mine.json, then fit again",
			8,
		},
		{
			func(j *Job) { j.Model.HeadDim, j.Cluster = 256, cluster(t, "1x2 fast", p, "bus", "net") },
			"no law for attn_fwd (diag d256 f32), attn_fwd (full d256 f32), attn_bwd (diag d256 f32), attn_bwd (full d256 f32) on fast in the profile, " +
				"which has them for heads of 64; measure them: evenkeel calibrate --fresh --only attn_fwd,attn_bwd --model mine.json, then fit again",
			4,
		},
		{func(j *Job) { j.DType = op.BF16 }, "in the profile, which has them in f32: plan with --dtype f32, or measure them: evenkeel calibrate --fresh --only norm,gemm,rope,attn_fwd,swiglu,attn_bwd --dtype bf16, then fit again", 20},
		{func(j *Job) { j.DType = op.FP8 }, "in the profile, which has them in f32: plan with --dtype f32, or import what others measured of them, for calibrate runs no fp8: evenkeel import, then fit again", 20},
	} {
		j := testJob(cluster(t, "1x(1 fast + 1 slow)", p, "bus", "net"), tokens)
		c.change(&j)
		_, err := Simulate(NewPredictor(p), j, ringOf(tokens), SimOptions{})
		ForModel(err, "mine.json")
		all, ok := errors.AsType[*MissingLawsError](err)
		if !ok || !strings.HasSuffix(err.Error(), c.want) || len(all.Missing) != c.laws {
			t.Errorf("%v\nwant %d: %s", err, c.laws, c.want)
		}
		var first *MissingLawError
		if !errors.As(err, &first) || first != all.Missing[0] {
			t.Errorf("the first is %v", first)
		}
	}
	// Of one op it is one thing to measure, and where each lacks another each says what it has.
	whole := p.Laws
	p.Laws = slices.DeleteFunc(slices.Clone(whole), func(l Law) bool { return l.Op == op.KindAttnBwd })
	j := testJob(cluster(t, "1x1 fast", p, "bus", "net"), tokens)
	_, err := Simulate(NewPredictor(p), j, ringOf([]units.Tokens{2048}), SimOptions{})
	if err == nil || err.Error() != "no law for attn_bwd (diag d64 f32) on fast in the profile; measure it: evenkeel calibrate --fresh --only attn_bwd, then fit again" {
		t.Error(err)
	}
	p.Laws = slices.DeleteFunc(slices.Clone(whole), func(l Law) bool { return l.Op == op.KindRope })
	j.Model.HeadDim = 256
	_, err = Simulate(NewPredictor(p), j, ringOf([]units.Tokens{2048}), SimOptions{})
	if want := "no law for rope (f32), attn_fwd (diag d256 f32) (it has that for heads of 64), attn_bwd (diag d256 f32) (it has that for heads of 64) on fast in the profile; " +
		"measure them: evenkeel calibrate --fresh --only rope,attn_fwd,attn_bwd --model config.json, then fit again"; err == nil || err.Error() != want {
		t.Errorf("%v\nwant %s", err, want)
	}
}

// Of links who cannot measure them may state the rate, class by class; of devices nobody can.
func TestMissingLawsOfLinksMayBeStated(t *testing.T) {
	of := func(k op.Kind, link string) *MissingLawError {
		_, _, err := NewPredictor(&Profile{}).Over(link, k, []op.Member{{Device: "fast", Count: 2}})
		missing, ok := errors.AsType[*MissingLawError](err)
		if !ok {
			t.Fatal(err)
		}
		return missing
	}
	send, gather, bus := of(op.KindSendRecv, "net"), of(op.KindAllGather, "net"), of(op.KindSendRecv, "bus")
	for _, c := range []struct {
		err  error
		want string
	}{
		{send, "no law for send_recv on links of class net in the profile; measure it: evenkeel calibrate --fresh --only send_recv, then fit again" +
			"; or plan with a rate that you state, which counts as assumed, such as --network net=25GB/s between nodes, --link net=25GB/s inside one"},
		{
			&MissingLawsError{Missing: []*MissingLawError{send, gather, bus, {Op: op.KindNorm, On: "fast"}}},
			"no law for send_recv, all_gather on links of class net, nor for send_recv on links of class bus, nor for norm on fast in the profile; measure them: evenkeel calibrate --fresh --only send_recv,all_gather,norm, then fit again" +
				"; or plan with a rate that you state, which counts as assumed, such as --network net=25GB/s between nodes, --link net=25GB/s inside one, and --network bus=25GB/s between nodes, --link bus=25GB/s inside one",
		},
		{&MissingLawError{Op: op.KindNorm, On: "fast"}, "no law for norm on fast in the profile; measure it: evenkeel calibrate --fresh --only norm, then fit again"},
		{
			of(op.KindSendRecv, "gloo_tcp"), "no law for send_recv on links of class gloo_tcp in the profile; measure it: evenkeel calibrate --fresh --only send_recv --backend torch, then fit again" +
				"; or plan with a rate that you state, which counts as assumed, such as --network gloo_tcp=25GB/s between nodes, --link gloo_tcp=25GB/s inside one",
		},
	} {
		if c.err.Error() != c.want {
			t.Errorf("%v\nwant %s", c.err, c.want)
		}
	}
}

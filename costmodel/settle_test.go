package costmodel

import (
	"testing"

	"github.com/evenkeel/evenkeel/costmodel/op"
)

// What is to be measured is the plan's own devices, also where the doubt is of a law that
// they borrowed, and that of a law which nothing rests on is no measurement's.
func TestADoubtIsSettledOnTheDevicesOfTheSteps(t *testing.T) {
	lender := doubtful("lender", 1.4)
	own := doubtful("mine/borrowed", 1.5)
	lent := doubtful("mine/borrowed", CombineFactors(1.4, 1.2), lender.PassedOn()...)
	wire := &Law{Op: op.KindAllGather, Group: "2 mine over rdma", Spread: Spread{Lo: 0.5, Hi: 2}, Doubts: []Doubt{{"collectives over rdma", 1.9}}}
	link := &Law{Op: op.KindSendRecv, Group: "x", Spread: Spread{Lo: 0.5, Hi: 2}}
	made := &Law{Op: op.KindAllToAll, Group: "x", Spread: Spread{Lo: 0.4, Hi: 2.5}, Doubts: link.PassedOn()}
	step := func(laws ...*Law) *Step {
		of := map[*Law]Estimate{}
		for _, l := range laws {
			of[l] = l.at(10)
		}
		return stepOf(of)
	}
	none := step(doubtful("other", 1.1))
	forward := doubtful("mine/borrowed", CombineFactors(1.4, 1.2), lender.PassedOn()...)
	forward.Op = op.KindAttnFwd
	if got, want := Settle(step(lent, forward), none, lender.Title()), ", on which attn_bwd, attn_fwd of mine rest; to settle it, on mine: evenkeel calibrate --fresh --only attn_bwd,attn_fwd"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for reason, c := range map[string]struct {
		a, b *Step
		want string
	}{
		own.Title():             {none, step(own), "; to settle it, on mine: evenkeel calibrate --fresh --only attn_bwd"},
		"send_recv on x":        {step(link), step(made), "; to settle it, on x: evenkeel calibrate --fresh --only send_recv"},
		lender.Title():          {step(lent), none, ", on which attn_bwd of mine rests; to settle it, on mine: evenkeel calibrate --fresh --only attn_bwd"},
		"collectives over rdma": {InTurn(none, step(wire)), none, ", on which all_gather of 2 mine over rdma rests; to settle it, on 2 mine over rdma: evenkeel calibrate --fresh --only all_gather"},
		contentionTitle():       {none, step(own), "; to settle it: evenkeel replay of the plan, then check"},
		"the weather":           {step(own), step(lent), ""},
	} {
		if got := Settle(c.a, c.b, reason); got != c.want {
			t.Errorf("%s: %q, want %q", reason, got, c.want)
		}
	}
}

// Of processors through torch, and of gloo's links, calibrate takes another backend unless
// told, which measures neither; and how messages slow computing only that one measures.
func TestADoubtOfTorchIsSettledThroughTorch(t *testing.T) {
	law := doubtful("torch_cpu:1@sse4", 1.4)
	link := &Law{Op: op.KindSendRecv, Group: "2 cpu over gloo_tcp", Spread: Spread{Lo: 0.5, Hi: 2}}
	gpu := doubtful("h100", 1.4)
	step := func(laws ...*Law) *Step {
		of := map[*Law]Estimate{}
		for _, l := range laws {
			of[l] = l.at(10)
		}
		return stepOf(of)
	}
	for _, c := range []struct {
		a, b         *Step
		reason, want string
	}{
		{step(law), step(gpu), law.Title(), "; to settle it, on torch_cpu:1@sse4: evenkeel calibrate --fresh --only attn_bwd --backend torch"},
		{step(link), step(gpu), link.Title(), "; to settle it, on 2 cpu over gloo_tcp: evenkeel calibrate --fresh --only send_recv --backend torch"},
		{step(law), step(law), contentionTitle(), "; to settle it: evenkeel calibrate --fresh --backend torch"},
		{InTurn(step(law), step(gpu)), step(law), contentionTitle(), "; to settle it: on processors evenkeel calibrate --fresh --backend torch, on the others evenkeel replay of the plan, then check"},
	} {
		if got := Settle(c.a, c.b, c.reason); got != c.want {
			t.Errorf("%s: %q, want %q", c.reason, got, c.want)
		}
	}
}

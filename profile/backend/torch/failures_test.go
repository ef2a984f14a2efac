package torch

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
)

var gemm = op.GEMM{Pass: op.Forward, M: 64, N: 64, K: 64, DType: op.F32}

// run prepares and runs a shape on a device or group.
func run(ctx context.Context, b *Backend, on string, s op.Shape) (profile.Batch, error) {
	x, err := b.Open(ctx, on, "")
	if err != nil {
		return profile.Batch{}, err
	}
	if err := x.Ready(ctx); err != nil {
		return profile.Batch{}, err
	}
	if err := x.Prepare(ctx, s, 1); err != nil {
		return profile.Batch{}, err
	}
	return x.Run(ctx, 2, 3)
}

// Every way a worker can fail ends in a named error of the right class before
// the deadline, and the next call finds a worker that works.
func TestEveryFailureOfAWorkerHasAClassAndAFreshWorkerFollows(t *testing.T) {
	for behaviour, want := range map[string]struct {
		class profile.Class
		lost  bool
		text  string
	}{
		"hang":                {profile.Hung, true, "no answer to run gemm before the deadline; the worker was killed"},
		"stop":                {profile.Hung, true, "no sign of life for 400ms while it worked on run gemm"},
		"segv":                {profile.Crashed, true, "SIGSEGV"},
		"exit":                {profile.Crashed, true, "exit status 9: the last words"},
		"oom":                 {profile.OutOfMemory, false, "requested oom"},
		"unsupported":         {profile.Unsupported, false, "requested unsupported"},
		"wrong":               {profile.Wrong, false, "requested wrong"},
		"throttled":           {profile.Throttled, false, "requested throttled"},
		"internal":            {profile.Failed, false, "requested internal"},
		"cuda":                {profile.Crashed, true, "an illegal memory access"},
		"torn":                {profile.Crashed, true, "no frame of the protocol: \"{\\\"t\\\":\\\"result\\\",\\\"id\""},
		"noise":               {profile.Crashed, true, "this is no frame"},
		"flood":               {profile.Crashed, true, "sent a line of more than 1048576 bytes"},
		"few":                 {profile.Crashed, true, "returned 1 samples, was asked for 3"},
		"nan":                 {profile.Crashed, true, "no frame of the protocol"},
		"prepare-unsupported": {profile.Unsupported, false, "requested unsupported"},
		"prepare-segv":        {profile.Crashed, true, "SIGSEGV"},
	} {
		t.Run(behaviour, func(t *testing.T) {
			t.Parallel()
			b := fakeBackend(t, behaviour+":gemm", Config{GroupSizes: []int{2}}, onceFile(t))
			discover(t, b)
			for _, r := range b.ranks {
				if err := r.ready(t.Context()); err != nil {
					t.Fatal(err)
				}
				if behaviour == "stop" {
					r.client.silence = 400 * time.Millisecond
				}
			}
			limit := 20 * time.Second // what ends by itself does so long before
			if behaviour == "hang" {
				limit = time.Second
			}
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			_, err := run(ctx, b, "torch_cpu:1", gemm)
			var e *profile.OpError
			if !errors.As(err, &e) || e.Class != want.class || e.Lost != want.lost || !strings.Contains(e.Error(), want.text) {
				t.Fatalf("got %#v %v, want class %s (lost %v) with %q", e, err, want.class, want.lost, want.text)
			}
			if e.Lost {
				x, _ := b.Open(t.Context(), "torch_cpu:1", "")
				x.Close()
			}
			batch, err := run(t.Context(), b, "torch_cpu:1", gemm)
			if err != nil || len(batch.Ranks) != 1 || len(batch.Ranks[0]) != 3 || batch.Ranks[0][0] != 1e-3 || batch.Peak != 4096 {
				t.Errorf("after it: %+v, %v", batch, err)
			}
		})
	}
}

// A rank that fails inside a collective takes all ranks with it, within the
// deadline, and the message names it.
func TestTheRankThatFailsInACollectiveIsNamed(t *testing.T) {
	shape := op.AllReduce{Message: op.Message{Group: 3, Bytes: 1 << 20}}
	for behaviour, want := range map[string]struct {
		class profile.Class
		text  string
	}{
		"segv:all_reduce:1": {profile.Crashed, "rank 1 (n0/r1): worker: exit status 2: SIGSEGV"},
		"exit:all_reduce:2": {profile.Crashed, "rank 2 (n0/r2): worker: exit status 9"},
		"stop:all_reduce:1": {profile.Hung, "rank 1 (n0/r1)"},
		"hang:all_reduce:0": {profile.Hung, "rank 0 (n0/r0)"},
		"hang:all_reduce":   {profile.Hung, "no rank of 3 answered before the deadline"},
		"wrong:all_reduce":  {profile.Wrong, "rank 0 (n0/r0): requested wrong"},
	} {
		t.Run(behaviour, func(t *testing.T) {
			t.Parallel()
			b := fakeBackend(t, behaviour, Config{GroupSizes: []int{3}}, onceFileOf(t, behaviour))
			inv := discover(t, b)
			if len(inv.Groups) != 1 || inv.Groups[0].Name != "3 torch_cpu:1 over gloo_tcp" {
				t.Fatalf("%+v", inv.Groups)
			}
			ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
			defer cancel()
			start := time.Now()
			_, err := run(ctx, b, inv.Groups[0].Name, shape)
			var e *profile.OpError
			if !errors.As(err, &e) || e.Class != want.class || !strings.Contains(e.Error(), want.text) {
				t.Errorf("got %v, want class %s with %q", err, want.class, want.text)
			}
			if took := time.Since(start); took > 9*time.Second {
				t.Errorf("took %s", took)
			}
		})
	}
}

// onceFileOf lets a strike of one rank come once; one of all ranks always.
func onceFileOf(t *testing.T, behaviour string) string {
	if strings.Count(behaviour, ":") == 2 {
		return onceFile(t)
	}
	return "EVENKEEL_FAKE_ONCE="
}

// While its peers give up after their own timeout, the rank that never answers
// is the one they waited for.
func TestARankThatNeverComesIsNamedWhenItsPeersGiveUp(t *testing.T) {
	b := fakeBackend(t, "hang:all_reduce:1", Config{GroupSizes: []int{2}})
	inv := discover(t, b)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	if err := b.world(ctx); err != nil {
		t.Fatal(err)
	}
	// Rank 0 reports that it gave up, as gloo does after its timeout.
	b.ranks[0].client = newClient(&scripted{out: make(chan event, 1), answer: `{"t":"error","id":%d,"class":"internal","msg":"timed out","fatal":true}`})
	start := time.Now()
	_, err := run(ctx, b, inv.Groups[0].Name, op.AllReduce{Message: op.Message{Group: 2, Bytes: 1 << 10}})
	if err == nil || !strings.Contains(err.Error(), "rank 1 (n0/r1) did not answer while its peers gave up") || !strings.Contains(err.Error(), "timed out") {
		t.Errorf("%v", err)
	}
	if took := time.Since(start); took > grace+15*time.Second {
		t.Errorf("took %s", took)
	}
}

func TestANewWorldFollowsALostOne(t *testing.T) {
	b := fakeBackend(t, "segv:all_reduce:1", Config{GroupSizes: []int{2}}, onceFile(t))
	inv := discover(t, b)
	shape := op.AllReduce{Message: op.Message{Group: 2, Bytes: 1 << 10}}
	if _, err := run(t.Context(), b, inv.Groups[0].Name, shape); err == nil {
		t.Fatal("the requested failure did not come")
	}
	survivor := b.ranks[0].client
	batch, err := run(t.Context(), b, inv.Groups[0].Name, shape)
	if b.ranks[0].client == survivor {
		t.Error("a worker of the lost world is in the new one")
	}
	if err != nil || len(batch.Ranks) != 2 || b.epoch != 2 {
		t.Errorf("%+v, %v, world %d", batch, err, b.epoch)
	}
}

func TestCancellingStopsAtOnce(t *testing.T) {
	b := fakeBackend(t, "hang:gemm", Config{})
	discover(t, b)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	start := time.Now()
	_, err := run(ctx, b, "torch_cpu:1", gemm)
	if !errors.Is(err, context.Canceled) || time.Since(start) > 9*time.Second {
		t.Errorf("%v after %s", err, time.Since(start))
	}
}

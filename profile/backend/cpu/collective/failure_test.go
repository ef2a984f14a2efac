package collective

import (
	"context"
	"errors"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// die closes a rank's connections without a goodbye, which is what the end of its process looks like from outside.
func die(m *Mesh) {
	for _, p := range m.others() {
		p.data.Close()
		p.fate.Close()
	}
}

func loopback(t *testing.T, size int) []*Mesh {
	t.Helper()
	meshes, err := meshesHere(size)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, m := range meshes {
			_ = m.Close() // a dead rank's connections are closed already
		}
	})
	return meshes
}

// on runs do on the given ranks at once and returns their errors in that order.
func on(meshes []*Mesh, ranks []int, do func(m *Mesh) error) []error {
	errs := make([]error, len(ranks))
	var wg sync.WaitGroup
	for i, r := range ranks {
		wg.Go(func() { errs[i] = do(meshes[r]) })
	}
	wg.Wait()
	return errs
}

// Rank 0 exchanges nothing with rank 2 in a ring of four, yet must hear of its death as promptly as the neighbours; no
// deadline is set, so a rank that does not would hang this test.
func TestDeadPeerIsNamedOnAllRanks(t *testing.T) {
	meshes := loopback(t, 4)
	time.AfterFunc(30*time.Millisecond, func() { die(meshes[2]) })
	big := 1 << 20
	errs := on(meshes, []int{0, 1, 3}, func(m *Mesh) error { return m.AllReduce(context.Background(), make([]float32, big)) })
	for i, rank := range []int{0, 1, 3} {
		var peerErr *PeerError
		if !errors.As(errs[i], &peerErr) || peerErr.Rank != rank || peerErr.Peer != 2 {
			t.Errorf("rank %d: %v, want a PeerError for peer 2", rank, errs[i])
		} else if !strings.Contains(errs[i].Error(), "all_reduce: rank 2 died") {
			t.Errorf("rank %d says %q", rank, errs[i])
		}
		if err := meshes[rank].Barrier(context.Background()); !errors.As(err, &peerErr) || peerErr.Peer != 2 {
			t.Errorf("rank %d: the broken mesh ran a barrier: %v", rank, err)
		}
	}
}

func TestHangingPeerIsNamedAtTheDeadline(t *testing.T) {
	meshes := loopback(t, 2)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := meshes[1].RingShift(ctx, make([]float32, 10), make([]float32, 10))
	want := regexp.MustCompile(`^rank 1: send_recv: no data from rank 0 for \d+ms$`)
	if err == nil || !want.MatchString(err.Error()) {
		t.Errorf("got %v", err)
	}
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Error("not a context.DeadlineExceeded")
	}
}

// A peer that receives nothing blocks the sender once the sockets are full.
func TestHangingReceiverIsNamed(t *testing.T) {
	meshes := loopback(t, 3)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	err := meshes[0].RingShift(ctx, nil, make([]float32, 1<<20))
	if err == nil || !strings.HasPrefix(err.Error(), "rank 0: send_recv: rank 1 takes no data for ") {
		t.Errorf("got %v", err)
	}
}

// A rank that closes because of another's failure passes the blame on, so that nobody accuses the messenger.
func TestBlamePassesThroughClose(t *testing.T) {
	meshes := loopback(t, 3)
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
	defer cancel()
	errs := make(chan error, 1)
	// Rank 1 waits for rank 0, which waits for rank 2, which never comes. Rank 0 alone has a deadline.
	go func() { errs <- meshes[1].RingShift(context.Background(), make([]float32, 1), make([]float32, 1)) }()
	if err := meshes[0].RingShift(ctx, make([]float32, 1), nil); err == nil {
		t.Fatal("rank 0 received from nowhere")
	}
	meshes[0].Close()
	var peerErr *PeerError
	if err := <-errs; !errors.As(err, &peerErr) || peerErr.Peer != 2 || !strings.Contains(err.Error(), "rank 2 failed, says rank 0") {
		t.Errorf("rank 1 got %v, want blame on rank 2", err)
	}
}

// The first rank to finish may close while its data are still on their way to a slower one.
func TestEarlyGoodbyeLosesNothing(t *testing.T) {
	for range 50 {
		meshes := loopback(t, 2)
		errs := on(meshes, []int{0, 1}, func(m *Mesh) error {
			buf := data(m.Rank(), 1000)
			if err := m.AllReduce(context.Background(), buf); err != nil {
				return err
			}
			return errors.Join(expect("all_reduce", buf, sumOfAll(2, 1000)), m.Close())
		})
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
}

func TestGoodbyeDuringOperation(t *testing.T) {
	meshes := loopback(t, 2)
	time.AfterFunc(20*time.Millisecond, func() { meshes[1].Close() })
	err := meshes[0].Barrier(context.Background())
	if err == nil || err.Error() != "rank 0: barrier: rank 1 left before the end" {
		t.Errorf("got %v", err)
	}
}

func TestEndedContextSendsNothing(t *testing.T) {
	meshes := loopback(t, 2)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := meshes[0].Barrier(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	errs := on(meshes, []int{0, 1}, func(m *Mesh) error { return m.Barrier(context.Background()) })
	if err := errors.Join(errs...); err != nil {
		t.Errorf("the mesh was whole: %v", err)
	}
}

func TestRanksInDifferentOperations(t *testing.T) {
	meshes := loopback(t, 2)
	errs := on(meshes, []int{0, 1}, func(m *Mesh) error {
		if m.Rank() == 1 {
			m.barriers = 41 // as if it had been through 41 barriers more
		}
		err := m.Barrier(context.Background())
		return errors.Join(err, m.Close())
	})
	// Whoever notices first leaves, so the other may hear of the failure before it sees the wrong token itself.
	if errs[0] == nil || errs[1] == nil || !strings.Contains(errors.Join(errs...).Error(), "is in another operation") {
		t.Errorf("got %v", errs)
	}
}

func TestCancelledOperationSaysSo(t *testing.T) {
	meshes := loopback(t, 2)
	ctx, cancel := context.WithCancel(context.Background())
	time.AfterFunc(10*time.Millisecond, cancel)
	err := meshes[0].Barrier(ctx)
	if !errors.Is(err, context.Canceled) || !strings.HasSuffix(err.Error(), ": context canceled") {
		t.Errorf("got %v", err)
	}
}

func TestClosedMesh(t *testing.T) {
	meshes := loopback(t, 2)
	for range 2 {
		if err := meshes[0].Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if err := meshes[0].Barrier(context.Background()); err == nil {
		t.Error("a closed mesh ran a barrier")
	}
}

func TestNoGoroutinesLeft(t *testing.T) {
	before := runtime.NumGoroutine()
	for range 20 {
		everywhere(t, 3, func(ctx context.Context, m *Mesh) error { return m.AllReduce(ctx, make([]float32, 5000)) })
		meshes, err := meshesHere(3)
		if err != nil {
			t.Fatal(err)
		}
		die(meshes[0])
		on(meshes, []int{1, 2}, func(m *Mesh) error { return m.AllReduce(context.Background(), make([]float32, 1<<18)) })
		for _, m := range meshes {
			_ = m.Close()
		}
	}
	// Close waits for every goroutine of the mesh; those of finished tests' timers may need a moment.
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

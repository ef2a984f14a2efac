package serve

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/evenkeel/evenkeel/costmodel/groupcost"
	"github.com/evenkeel/evenkeel/costmodel/workload"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/results/profiles"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// Eight training jobs at once: each gets its own plans, whatever the others ask.
func TestEightClients(t *testing.T) {
	r := start(t, func(c *Config) { c.Limits.Cached = 8 })
	var clients sync.WaitGroup
	for client := range 8 {
		clients.Go(func() {
			for step := range 40 {
				// Jobs share steps, and every third batch, but no other one.
				lengths := []int{step + 1, 100 * (client + 1)}
				if step%3 == 0 {
					lengths[1] = 7
				}
				body := fmt.Sprintf(`{"batches":[{"step":%d,"lengths_tokens":[%d,%d]}]}`, step, lengths[0], lengths[1])
				if code, text := r.ask("POST", fmt.Sprintf("/v1/jobs/j%d/batches", client), body); code != 202 {
					t.Errorf("%d %s", code, text)
					return
				}
				code, text := r.ask("GET", fmt.Sprintf("/v1/jobs/j%d/plans/%d?wait_s=10", client, step), "")
				if want := fmt.Sprintf(`"step_s":%d}`, lengths[0]+lengths[1]); code != 200 || !strings.Contains(text, want) {
					t.Errorf("client %d step %d: %d %s, want %s", client, step, code, text, want)
				}
			}
		})
	}
	clients.Wait()
}

// A million requests leave the server as large as a hundred thousand do.
func TestServeAMillionRequests(t *testing.T) {
	if os.Getenv("EVENKEEL_LONG") != "1" {
		t.Skip("a million requests take minutes; EVENKEEL_LONG=1 sends them")
	}
	const requests, several = 1_000_000, 4
	var sent atomic.Int64
	r := start(t, nil)
	round := func(client, first int) bool {
		var batches []string
		for step := first; step < first+several; step++ {
			batches = append(batches, fmt.Sprintf(`{"step":%d,"lengths_tokens":[%d,%d]}`, step, 1000+step%100_003, client+1))
		}
		code, text := r.ask("POST", fmt.Sprintf("/v1/jobs/j%d/batches", client), `{"batches":[`+strings.Join(batches, ",")+`]}`)
		if code != 202 {
			t.Errorf("%d %s", code, text)
			return false
		}
		for step := first; step < first+several; step++ {
			code, text := r.ask("GET", fmt.Sprintf("/v1/jobs/j%d/plans/%d?wait_s=20", client, step), "")
			if want := fmt.Sprintf(`"step_s":%d}`, 1000+step%100_003+client+1); code != 200 || !strings.Contains(text, want) {
				t.Errorf("step %d: %d %s", step, code, text)
				return false
			}
		}
		sent.Add(several + 1)
		return true
	}
	until := func(n int64) {
		var clients sync.WaitGroup
		from := int(sent.Load()) // rises with every round, so steps do not repeat
		for client := range 8 {
			clients.Go(func() {
				for i := 0; sent.Load() < n && round(client, from+several*i); i++ {
				}
			})
		}
		clients.Wait()
	}
	until(requests / 10)
	heap, goroutines := settled()
	until(requests)
	heapEnd, goroutinesEnd := settled()
	t.Logf("%d requests: heap %d bytes after a tenth, %d at the end; goroutines %d and %d", sent.Load(), heap, heapEnd, goroutines, goroutinesEnd)
	if heapEnd > heap+heap/10+1<<20 {
		t.Errorf("the heap grew from %d to %d bytes", heap, heapEnd)
	}
	if goroutinesEnd > goroutines+4 {
		t.Errorf("goroutines grew from %d to %d", goroutines, goroutinesEnd)
	}
}

// settled is the heap and the goroutines when nothing is asked.
func settled() (heap uint64, goroutines int) {
	for range 3 {
		time.Sleep(100 * time.Millisecond)
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc, runtime.NumGoroutine()
}

// by plans with a strategy at given costs.
type by struct {
	batch.Strategy
	costs *groupcost.Costs
}

// Plan implements Planner.
func (b by) Plan(ctx context.Context, lengths []units.Tokens) (Planned, error) {
	p, err := batch.NewProblem(b.costs, lengths)
	if err != nil {
		return Planned{}, err
	}
	plan, err := b.Solve(ctx, p)
	return Planned{Plan: plan, Stopped: ctx.Err() != nil}, err
}

// BenchmarkServe: eight clients ask for plans of different batches of 512 sequences on
// 64 GPUs, each for the next one when it has the last. A planner of another kind is one
// more row.
func BenchmarkServe(b *testing.B) {
	costs := costsOf64(b)
	for name, planner := range map[string]func() Planner{
		"megatron-dynamic-cp": func() Planner { return by{batch.MegatronDynamicCP{}, costs} },
		"evenkeel":            func() Planner { return &ours{costs: costs, planner: batch.NewPlanner(batch.Options{})} },
	} {
		b.Run(name, func(b *testing.B) { benchServe(b, planner, "") })
		b.Run(name+"/journal", func(b *testing.B) { benchServe(b, planner, filepath.Join(b.TempDir(), "j")) })
	}
}

// ours plans as evenkeel serve does.
type ours struct {
	costs   *groupcost.Costs
	planner *batch.Planner
}

// Plan implements Planner.
func (o *ours) Plan(ctx context.Context, lengths []units.Tokens) (Planned, error) {
	p, err := batch.NewProblem(o.costs, lengths)
	if err != nil {
		return Planned{}, err
	}
	plan, err := o.planner.Plan(ctx, p)
	if err != nil {
		return Planned{}, err
	}
	return Planned{Plan: plan, Bound: o.planner.Bound()}, nil
}

// costsOf64 are FlexSP's of GPT-7B, at 30 GB of each of 64 GPUs.
func costsOf64(b *testing.B) *groupcost.Costs {
	g, err := profiles.LookupGroupCost("flexsp-gpt-7b")
	if err != nil {
		b.Fatal(err)
	}
	c, err := g.Model.Costs(groupcost.Parameters{Devices: 64, PerNode: 8, Memory: 30 * units.GiB, Context: 384000})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// bodies are submissions of one batch each, under steps from 0.
func bodies(b *testing.B, n int) []string {
	d, err := workload.ParseDistribution("flexsp-standin")
	if err != nil {
		b.Fatal(err)
	}
	lengths := d.Lengths(512 * n)
	out := make([]string, n)
	for i := range out {
		drawn, err := workload.Batch(lengths, 512, i)
		if err != nil {
			b.Fatal(err)
		}
		data, err := json.Marshal(Submission{Batches: []Batch{{Step: int64(i), Lengths: drawn}}})
		if err != nil {
			b.Fatal(err)
		}
		out[i] = string(data)
	}
	return out
}

func benchServe(b *testing.B, planner func() Planner, journal string) {
	r := start(b, func(c *Config) {
		c.Limits.Cached = 0 // every batch is planned
		c.Limits.Tokens = 384000
		c.Journal, c.Planners = journal, nil
		n := runtime.GOMAXPROCS(0)
		runtime.GOMAXPROCS(n + 1) // as evenkeel serve does
		b.Cleanup(func() { runtime.GOMAXPROCS(n) })
		for range n {
			c.Planners = append(c.Planners, planner())
		}
	})
	asks := bodies(b, min(b.N, 256))
	var next atomic.Int64
	var mu sync.Mutex
	var took []float64
	var clients sync.WaitGroup
	b.ResetTimer()
	for range 8 {
		clients.Go(func() {
			for i := int(next.Add(1)) - 1; i < b.N; i = int(next.Add(1)) - 1 {
				job, step := i/len(asks), i%len(asks)
				begin := time.Now()
				if code, text := r.ask("POST", fmt.Sprintf("/v1/jobs/j%d/batches", job), asks[step]); code != 202 {
					b.Errorf("%d %s", code, text)
				}
				code, text := r.ask("GET", fmt.Sprintf("/v1/jobs/j%d/plans/%d?wait_s=30", job, step), "")
				if code != 200 || !strings.Contains(text, `"done"`) {
					b.Errorf("%d %.300s", code, text)
				}
				mu.Lock()
				took = append(took, time.Since(begin).Seconds())
				mu.Unlock()
			}
		})
	}
	clients.Wait()
	b.StopTimer()
	slices.Sort(took)
	b.ReportMetric(float64(len(took))/b.Elapsed().Seconds(), "plans/s")
	b.ReportMetric(1e3*took[len(took)/2], "p50-ms")
	b.ReportMetric(1e3*took[len(took)*99/100], "p99-ms")
}

package serve

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"slices"
	"sync"
)

// metrics counts what the server does, in Prometheus' text format.
type metrics struct {
	mu       sync.Mutex
	requests map[counter]int64
	plans    map[string]int64
	answers  map[string]*histogram // by route
	planning histogram
	names    int64
}

type counter struct {
	route string
	code  int
}

// bounds of the buckets, in seconds.
func bounds() []float64 {
	return []float64{0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30}
}

type histogram struct {
	buckets []int64
	sum     float64
	count   int64
}

func (h *histogram) add(t float64) {
	if h.buckets == nil {
		h.buckets = make([]int64, len(bounds()))
	}
	for i, b := range bounds() {
		if t <= b {
			h.buckets[i]++
		}
	}
	h.sum += t
	h.count++
}

func newMetrics() *metrics {
	return &metrics{requests: map[counter]int64{}, plans: map[string]int64{}, answers: map[string]*histogram{}}
}

func (m *metrics) request(route string, code int, took float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests[counter{route, code}]++
	if m.answers[route] == nil {
		m.answers[route] = &histogram{}
	}
	m.answers[route].add(took)
}

func (m *metrics) planned(result string, took float64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.plans[result]++
	if result != "cached" {
		m.planning.add(took)
	}
}

// next is a name that no job has, for a batch that is planned at once: jobs come
// from paths, whose parts are never empty.
func (m *metrics) next() (job string, step int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.names++
	return "", m.names
}

// writeMetrics answers a scrape.
func (s *Server) writeMetrics(w http.ResponseWriter, _ *http.Request) error {
	var b bytes.Buffer
	queued, busy, kept, size := s.board.sizes()
	gauge := func(name, help string, v any) {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s gauge\n%s %v\n", name, help, name, name, v)
	}
	gauge("evenkeel_queue_length", "Batches that wait to be planned.", queued)
	gauge("evenkeel_planning", "Batches that are being planned.", busy)
	gauge("evenkeel_waiting", "Requests that wait for a plan.", s.waiting.Load())
	gauge("evenkeel_kept_plans", "Plans that are kept for their jobs.", kept)
	gauge("evenkeel_kept_bytes", "Size of the kept plans.", size)
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	gauge("evenkeel_heap_bytes", "Live and not yet collected heap.", memory.HeapAlloc)
	gauge("evenkeel_goroutines", "Goroutines.", runtime.NumGoroutine())
	s.metrics.write(&b)
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, err := w.Write(b.Bytes())
	return err
}

func (m *metrics) write(b *bytes.Buffer) {
	m.mu.Lock()
	defer m.mu.Unlock()
	fmt.Fprintf(b, "# HELP evenkeel_requests_total Requests by route and status.\n# TYPE evenkeel_requests_total counter\n")
	byName := func(x, y counter) int { return cmp.Or(cmp.Compare(x.route, y.route), cmp.Compare(x.code, y.code)) }
	for _, c := range slices.SortedFunc(maps.Keys(m.requests), byName) {
		fmt.Fprintf(b, "evenkeel_requests_total{route=%q,code=\"%d\"} %d\n", c.route, c.code, m.requests[c])
	}
	fmt.Fprintf(b, "# HELP evenkeel_plans_total Batches by how they were answered.\n# TYPE evenkeel_plans_total counter\n")
	for _, k := range slices.Sorted(maps.Keys(m.plans)) {
		fmt.Fprintf(b, "evenkeel_plans_total{result=%q} %d\n", k, m.plans[k])
	}
	histogramOf(b, "evenkeel_request_seconds", "Time to answer a request, waiting included, by route.")
	for _, route := range slices.Sorted(maps.Keys(m.answers)) {
		m.answers[route].write(b, "evenkeel_request_seconds", fmt.Sprintf("route=%q", route))
	}
	histogramOf(b, "evenkeel_planning_seconds", "Time to plan a batch.")
	m.planning.write(b, "evenkeel_planning_seconds", "")
}

func histogramOf(b *bytes.Buffer, name, help string) {
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s histogram\n", name, help, name)
}

// write adds one histogram, with its label if it has one.
func (h *histogram) write(b *bytes.Buffer, name, label string) {
	more, all := "", ""
	if label != "" {
		more, all = label+",", "{"+label+"}"
	}
	for i, le := range bounds() {
		n := int64(0)
		if h.buckets != nil {
			n = h.buckets[i]
		}
		fmt.Fprintf(b, "%s_bucket{%sle=\"%v\"} %d\n", name, more, le, n)
	}
	fmt.Fprintf(b, "%s_bucket{%sle=\"+Inf\"} %d\n%s_sum%s %v\n%s_count%s %d\n", name, more, h.count, name, all, h.sum, name, all, h.count)
}

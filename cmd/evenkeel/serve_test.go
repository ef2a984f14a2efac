package main

import (
	"bytes"
	"context"
	"math"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/serve"
	"github.com/evenkeel/evenkeel/solver/batch"
)

// served is a problem with the model and options of these tests.
func served(p problem) problem {
	p.model = filepath.Join("testdata", "config.json")
	p.recompute, p.zero, p.overlapZero, p.ringBuffers, p.lossChunk, p.accumulate = "none", string(costmodel.Zero3), true, 2, "1k", 1
	return p
}

// pricedFor are the prices that a server plans by, of laws or published ones.
func pricedFor(t *testing.T, o serving) priceList {
	t.Helper()
	o.problem = served(o.problem)
	a := &app{errOut: &bytes.Buffer{}}
	prices, err := a.prices(t.Context(), o.problem, 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	return prices
}

// A server says when it starts what plans across makers would say in their notes, and of one maker nothing.
func TestServersAcrossMakersSaySo(t *testing.T) {
	for cluster, warned := range map[string]bool{"1x1 h100_sxm + 1x1 mi300x": true, "1x1 h100_sxm + 1x1 a100_sxm": false} {
		said := &bytes.Buffer{}
		o := serving{problem: served(problem{}), limits: serve.DefaultLimits(), workers: 1}
		o.cluster, o.network = cluster, "net=100Gb/s"
		if _, err := (&app{errOut: said}).config(t.Context(), o); err != nil {
			t.Fatal(err)
		}
		if got := strings.Contains(said.String(), "talks to GPUs of another maker"); got != warned {
			t.Errorf("%s: %s", cluster, said)
		}
	}
}

// What a server takes no longer sequences for is what its answers say: the model or the fleet.
func TestServedLengthsEndForAReason(t *testing.T) {
	o := serving{limits: serve.DefaultLimits(), workers: 1}
	o.cluster = "1x2 h100_sxm"
	prices := pricedFor(t, o)
	c, err := o.config(prices)
	if err != nil || c.Limits.TokensOf != "" {
		t.Errorf("%q: %v", c.Limits.TokensOf, err)
	}
	limited := *prices.Costs
	prices.Costs, prices.beyond, limited.Longest = &limited, costmodel.Model{MaxLen: 4096}.TooLong(), 4096
	if c, err = o.config(prices); err != nil || c.Limits.Tokens != 4096 || !strings.Contains(c.Limits.TokensOf, "beyond the model's sliding window of 4096 tokens") {
		t.Errorf("%+v: %v", c.Limits, err)
	}
	limited.Longest = 1 << 30 // the fleet holds less
	if c, err = o.config(prices); err != nil || c.Limits.TokensOf != "" {
		t.Errorf("%+v: %v", c.Limits, err)
	}
	var published serving
	published.limits, published.workers, published.priced = serve.DefaultLimits(), 1, priced{costs: "flexsp-gpt-7b", devices: 64, perNode: 8, memory: "30GiB"}
	byDefault, err := published.priced.published(0)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = published.config(byDefault); err != nil || c.Limits.Tokens != 384000 || c.Limits.TokensOf != "the context by default is 384000 (--context states another)" {
		t.Errorf("%+v: %v", c.Limits, err)
	}
	o.model = filepath.Join("testdata", "config.json")
	if got := o.beyondContext([]units.Tokens{1 << 20}); got != nil {
		t.Errorf("of a model that states none: %q", got)
	}
}

// A plan by laws is served with the interval of its time, by published prices or when its
// deadline came first without.
func TestServedPlansHaveAnInterval(t *testing.T) {
	lengths := []units.Tokens{30000, 9000, 4000, 4000, 900, 80}
	var laws, published serving
	laws.cluster = "1x(2 h100_sxm + 2 a100_sxm)"
	published.priced.costs, published.priced.devices, published.priced.perNode, published.priced.memory = "flexsp-gpt-7b", 8, 8, "30GiB"
	ended, cancel := context.WithCancel(t.Context())
	prices := pricedFor(t, laws)
	planner := newOnline(prices)
	made, err := planner.Plan(t.Context(), lengths)
	if err != nil {
		t.Fatal(err)
	}
	p, err := batch.NewProblem(prices.Costs, lengths)
	if err != nil {
		t.Fatal(err)
	}
	e := made.Interval
	if want, err := batch.Interval(p, made.Plan); err != nil || e != want || !(e.Lo < e.Mid && e.Mid < e.Hi) || math.Abs(float64(e.Mid/made.Plan.Time)-1) > 1e-9 {
		t.Errorf("%+v of %v, want %+v: %v", e, made.Plan.Time, want, err)
	}
	cancel()
	if made, err = planner.Plan(ended, lengths); err != nil || !made.Stopped || made.Interval != (costmodel.Estimate{}) {
		t.Errorf("at the deadline: %+v, %v", made, err)
	}
	if made, err = newOnline(pricedFor(t, published)).Plan(t.Context(), lengths[3:]); err != nil || made.Plan == nil || made.Interval != (costmodel.Estimate{}) {
		t.Errorf("published: %+v, %v", made, err)
	}
}

// Who fetches plans of a mixed fleet learns from the setup how each kind of group lays
// out its sequences: as much as stands in the document of solve.
func TestSetupSaysHowGroupsAreLaidOut(t *testing.T) {
	o := serving{limits: serve.DefaultLimits(), workers: 1}
	o.cluster = "1x(2 h100_sxm + 2 a100_sxm)"
	prices := pricedFor(t, o)
	for i, k := range prices.Classes { // as prices of one length have it
		prices.Classes[i].OwnLast = len(k.Groups) > 1
	}
	c, err := o.config(prices)
	if err != nil {
		t.Fatal(err)
	}
	mixed, last := 0, 0
	for i, k := range c.Setup.Classes {
		degree := prices.Classes[i].Degree()
		seen := make([]bool, degree)
		if k.OwnLast != prices.Classes[i].OwnLast {
			t.Errorf("class %s: own blocks last %t, priced otherwise", k.Name, k.OwnLast)
		}
		if k.OwnLast {
			last++
		}
		for j, g := range k.Groups {
			for n, m := range g {
				if want := prices.Classes[i].Groups[j][n]; m.Rank != want.Rank || m.QHeads != want.QHeads {
					t.Errorf("class %s: %+v, priced as %+v", k.Name, m, want)
				}
				seen[m.Rank] = true
			}
		}
		for r, in := range seen {
			if !in {
				t.Errorf("class %s: nothing is said of device %d", k.Name, r)
			}
		}
		if k.Uses[0] > 0 && k.Uses[1] > 0 {
			mixed++
		}
	}
	if mixed == 0 || last == 0 {
		t.Errorf("of kinds of groups %d mix the types, %d have own blocks last", mixed, last)
	}
}

// Below plans of batches, and of a server, nothing is said of what is assumed, so nobody is
// told to look there; below that of one sequence it is.
func TestWhatIsAssumedIsSaidWhereItIs(t *testing.T) {
	for _, batch := range []bool{true, false} {
		var told bytes.Buffer
		a := &app{errOut: &told}
		laws, err := problem{cluster: "1x(2 h100_sxm + 2 l40s)", batch: batch}.laws()
		if err != nil {
			t.Fatal(err)
		}
		a.tell(laws)
		want, not := "is told by evenkeel show --references h100_sxm, evenkeel show --references l40s; measure your own: evenkeel calibrate\n", "said below"
		if !batch {
			want, not = not, want
		}
		if !strings.Contains(told.String(), want) || strings.Contains(told.String(), not) {
			t.Errorf("batch %v: %s", batch, &told)
		}
	}
}

// How long planning and waiting may take has ends, and an address that others can reach is known.
func TestServingFlags(t *testing.T) {
	for _, c := range []struct {
		wait, planning time.Duration
		want           string
	}{
		{30 * time.Second, time.Millisecond, ""},
		{time.Hour, time.Hour, ""},
		{29 * time.Second, time.Second, "--max-wait 29s: want 30s, which clients count on, to 1h0m0s"},
		{2 * time.Hour, time.Second, "--max-wait 2h0m0s: want 30s"},
		{30 * time.Second, 0, "--max-planning 0s: want 1ms to 1h0m0s"},
		{30 * time.Second, 2 * time.Hour, "--max-planning 2h0m0s: want 1ms"},
	} {
		o := serving{socket: "s", workers: 1, limits: serve.DefaultLimits(), maxPlanning: c.planning}
		o.limits.Wait = c.wait
		if err := o.validate(); (err == nil) != (c.want == "") || err != nil && !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v, want %q", err, c.want)
		}
	}
	for at, want := range map[net.Addr]bool{
		&net.TCPAddr{IP: net.IPv4zero}: true, &net.TCPAddr{IP: net.IPv6unspecified}: true, &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}: true,
		&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}: false, &net.TCPAddr{IP: net.IPv6loopback}: false, &net.UnixAddr{Name: "s"}: false,
	} {
		if exposed(at) != want {
			t.Errorf("%s: exposed is not %v", at, want)
		}
	}
}

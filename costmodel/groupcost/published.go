package groupcost

import (
	"fmt"
	"math"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
)

// Schema is the schema of a published cost model.
const Schema = "evenkeel.groupcost/v1"

// Document is a cost model of groups that others published: its form and its
// coefficients, in base units, and where they come from. It has exactly one form.
type Document struct {
	doc.Header
	Name     string             `json:"name"`
	Title    string             `json:"title"` // what was measured on what, in words
	Origins  []costmodel.Origin `json:"origins"`
	Warnings []string           `json:"warnings,omitempty"`
	AllToAll *AllToAll          `json:"all_to_all,omitempty"`
	Flexible *Flexible          `json:"flexible,omitempty"`
}

// Head implements doc.Document.
func (d *Document) Head() *doc.Header { return &d.Header }

// SchemaName implements doc.Document.
func (*Document) SchemaName() string { return Schema }

// Validate implements doc.Document.
func (d *Document) Validate() error {
	switch {
	case d.Name == "" || d.Title == "":
		return fmt.Errorf("name, title: %q, %q: name the model and say what it was measured on", d.Name, d.Title)
	case len(d.Origins) == 0:
		return fmt.Errorf("origins: none: say who published the coefficients")
	case (d.AllToAll == nil) == (d.Flexible == nil):
		return fmt.Errorf("all_to_all, flexible: want exactly one of the two forms")
	}
	for i, o := range d.Origins {
		if o.Title == "" || o.Repository == "" || o.Licence == "" || o.Commit == "" {
			return fmt.Errorf("origins[%d]: want title, repository, licence and commit", i)
		}
	}
	if d.AllToAll != nil {
		return named("all_to_all", d.AllToAll.validate())
	}
	return named("flexible", d.Flexible.validate())
}

func named(field string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s.%w", field, err)
}

// Parameters are the cluster and the settings that a published model is asked for.
type Parameters struct {
	Devices int         // of the cluster, all alike
	PerNode int         // devices of a node
	Memory  units.Bytes // that a device may use
	Context units.Tokens
	Zero    costmodel.ZeRO // empty is Zero3
	// Budget is how many tokens a device may hold, and MaxDegree the largest
	// group, of a model that has settings instead of memory; 0 leaves those of
	// the document.
	Budget    units.Tokens
	MaxDegree int
	// PowersOfTwo allows only such degrees where the model has any: with an
	// all-to-all over heads instead of a ring.
	PowersOfTwo bool
}

func (p Parameters) validate() error {
	switch {
	case p.Devices < 1 || p.Devices > costmodel.MaxRanks:
		return fmt.Errorf("devices: %d: want 1 to %d", p.Devices, costmodel.MaxRanks)
	case p.PerNode < 1 || p.PerNode > p.Devices:
		return fmt.Errorf("devices of a node: %d: want 1 to the cluster's %d", p.PerNode, p.Devices)
	case p.Budget < 0 || p.Budget > mostTokens:
		return fmt.Errorf("budget_tokens: %d: want 0 to %d", int64(p.Budget), int64(mostTokens))
	case p.MaxDegree < 0 || p.MaxDegree > p.Devices:
		return fmt.Errorf("max_degree: %d: want 0 to the cluster's %d devices", p.MaxDegree, p.Devices)
	}
	return nil
}

// Costs are the classes that the model has for a cluster. The document must be
// valid.
//
// Errors: a parameter out of range, or no memory for the model's states.
func (d *Document) Costs(p Parameters) (*Costs, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	c := &Costs{Pools: []Pool{{Device: d.Name}}}
	for r := range p.Devices {
		if r%p.PerNode == 0 {
			c.Pools[0].Ranks = append(c.Pools[0].Ranks, nil)
		}
		last := &c.Pools[0].Ranks[r/p.PerNode]
		*last = append(*last, r)
	}
	if d.AllToAll != nil {
		return c, d.AllToAll.classes(c, p)
	}
	d.Flexible.classes(c, p)
	return c, nil
}

// add appends a class of one pool.
func (c *Costs) add(degree int, one bool, base units.Seconds, tokens units.Tokens, heads int, of curve) {
	c.Classes = append(c.Classes, Class{Name: fmt.Sprint(degree), Uses: []int{degree}, One: one, Base: base, Cap: tokens, Heads: heads})
	c.curves = append(c.curves, of)
}

// AllToAll is the form of FlexSP (Wang et al., ASPLOS 2025): Ulysses groups of d
// devices, d a power of two, of a model whose states are sharded over all devices:
//
//	Time(s) = (SquareToken s² + Token s)/d + 16 L h s/(d v_d)
//	Base    = BaseTime
//	Cap     = d floor((memory - states)/Activation)
//
// 16 bytes are a layer's all-to-alls of one token and unit of width: of q, k, v and
// the output, forward and backward, at two bytes. There are none at d = 1.
type AllToAll struct {
	Layers      int           `json:"layers"`
	Hidden      int           `json:"hidden"`
	SquareToken float64       `json:"s_per_square_token"`
	Token       float64       `json:"s_per_token"`
	BaseTime    units.Seconds `json:"base_s"` // of a group's micro-batch
	// Activation is what a token takes, and Activations on so many devices where
	// another number is published.
	Activation  float64        `json:"activation_bytes_per_token"`
	Activations []ActivationOn `json:"activations,omitempty"`
	Parameters  []ContextSize  `json:"parameters_by_context"` // by rising context, two at least
	Bandwidth   []DegreeRate   `json:"bandwidth"`             // by degree: 2, 4, 8, ...
}

// ActivationOn is the activations of a token on a cluster of so many devices.
type ActivationOn struct {
	Devices    int     `json:"devices"`
	Activation float64 `json:"activation_bytes_per_token"`
}

// ContextSize is the number of a model's parameters for a context, whose table of
// positions is among them.
type ContextSize struct {
	Context    units.Tokens `json:"context_tokens"`
	Parameters float64      `json:"parameters"`
}

// DegreeRate is the rate of an all-to-all in a group of so many devices: bytes of
// a device's tensor by time.
type DegreeRate struct {
	Degree int             `json:"degree"`
	Rate   units.BytesPerS `json:"bytes_per_s"`
}

func (a *AllToAll) validate() error {
	positive := map[string]float64{"s_per_square_token": a.SquareToken, "s_per_token": a.Token, "activation_bytes_per_token": a.Activation}
	for _, field := range []string{"s_per_square_token", "s_per_token", "activation_bytes_per_token"} {
		if v := positive[field]; !(v > 0 && v < math.MaxFloat32) {
			return fmt.Errorf("%s: %v: want a number above 0", field, v)
		}
	}
	switch {
	case a.Layers < 1 || a.Layers > 1<<16 || a.Hidden < 1 || a.Hidden > 1<<24:
		return fmt.Errorf("layers, hidden: %d, %d: want numbers above 0", a.Layers, a.Hidden)
	case !(a.BaseTime >= 0 && a.BaseTime < math.MaxFloat32):
		return fmt.Errorf("base_s: %v: want a time of 0 or more", a.BaseTime)
	case len(a.Parameters) < 2:
		return fmt.Errorf("parameters_by_context: %d entries: want at least two, for a line through the last two gives the others", len(a.Parameters))
	case len(a.Bandwidth) == 0:
		return fmt.Errorf("bandwidth: none")
	}
	for i, x := range a.Activations {
		if x.Devices < 1 || !(x.Activation > 0 && x.Activation < math.MaxFloat32) {
			return fmt.Errorf("activations[%d]: %+v: want numbers above 0", i, x)
		}
	}
	for i, x := range a.Parameters {
		if !(x.Parameters > 0 && x.Parameters < math.MaxFloat32) || x.Context < 1 || i > 0 && x.Context <= a.Parameters[i-1].Context {
			return fmt.Errorf("parameters_by_context[%d]: %+v: want parameters, and contexts that rise from 1 on", i, x)
		}
	}
	for i, x := range a.Bandwidth {
		if x.Degree != 2<<i || !(x.Rate > 0 && x.Rate < math.MaxFloat32*1e9) {
			return fmt.Errorf("bandwidth[%d]: degree %d at %v: want degree %d and a rate above 0", i, x.Degree, x.Rate, 2<<i)
		}
	}
	return nil
}

// classes adds the powers of two up to all devices.
func (a *AllToAll) classes(c *Costs, p Parameters) error {
	if p.Context < 1 || p.Context > mostTokens {
		return fmt.Errorf("context_tokens: %d: want 1 to %d", int64(p.Context), int64(mostTokens))
	}
	share, err := stateShare(p.Zero, p.Devices)
	if err != nil {
		return err
	}
	const stateBytes = 16 // a parameter's, as of Rajbhandari et al. 2020 in two-byte precision
	states := stateBytes * share * a.parameters(p.Context)
	hold := units.Tokens(math.Floor((float64(p.Memory) - states) / a.activation(p.Devices)))
	if hold < 1 {
		return fmt.Errorf("memory: %v: the states of %.3g parameters, a table of %d positions among them, alone take %v of a device; give it more memory, more devices or a shorter context", p.Memory, a.parameters(p.Context), int64(p.Context), units.Bytes(states))
	}
	for d := 1; d <= p.Devices; d *= 2 {
		c.add(d, d <= p.PerNode, a.BaseTime, hold*units.Tokens(d), d, a.curve(d))
	}
	return nil
}

func (a *AllToAll) curve(d int) curve {
	exchange := 0.0
	if d > 1 {
		exchange = 16 * float64(a.Layers) * float64(a.Hidden) / float64(a.rate(d))
	}
	return curve{square: a.SquareToken / float64(d), linear: (a.Token + exchange) / float64(d)}
}

// rate is the published rate of a degree; beyond the largest it is that one's.
func (a *AllToAll) rate(d int) units.BytesPerS {
	for _, x := range a.Bandwidth {
		if x.Degree >= d {
			return x.Rate
		}
	}
	return a.Bandwidth[len(a.Bandwidth)-1].Rate
}

// parameters is the number for a context: as published, else on the line through
// the two longest contexts.
func (a *AllToAll) parameters(context units.Tokens) float64 {
	for _, x := range a.Parameters {
		if x.Context == context {
			return x.Parameters
		}
	}
	n := len(a.Parameters)
	x, y := a.Parameters[n-2], a.Parameters[n-1]
	return x.Parameters + (y.Parameters-x.Parameters)*float64(context-x.Context)/float64(y.Context-x.Context)
}

func (a *AllToAll) activation(devices int) float64 {
	for _, x := range a.Activations {
		if x.Devices == devices {
			return x.Activation
		}
	}
	return a.Activation
}

// stateShare is what of a parameter's 16 bytes of states each of n devices holds:
// of parameters (2), gradients (2) and optimizer (12) what the stage shards.
func stateShare(z costmodel.ZeRO, n int) (float64, error) {
	each := 1 / float64(n)
	switch z {
	case costmodel.Zero3, "":
		return each, nil
	case costmodel.Zero2:
		return 7.0/8*each + 1.0/8, nil
	case costmodel.Zero1:
		return 6.0/8*each + 2.0/8, nil
	case costmodel.Zero0:
		return 1, nil
	}
	return 0, fmt.Errorf("zero: %q: want zero0, zero1, zero2 or zero3", string(z))
}

// Flexible is the form of flexible context parallelism (FCP): groups of any
// number of devices c,
//
//	Time(s) = SquareToken s²/c + (Compute + Comm) s/c + Sequence
//	Cap     = Budget c
//
// as a public implementation has it, whose communication wrongly falls with c
// and whose memory is a budget of tokens alone.
type Flexible struct {
	SquareToken float64       `json:"s_per_square_token"`
	Compute     float64       `json:"compute_s_per_token"`
	Comm        float64       `json:"comm_s_per_token"`
	Sequence    units.Seconds `json:"sequence_s"` // of each
	Budget      units.Tokens  `json:"budget_tokens"`
	MaxDegree   int           `json:"max_degree"`
}

func (f *Flexible) validate() error {
	for _, x := range []struct {
		field string
		value float64
	}{{"s_per_square_token", f.SquareToken}, {"compute_s_per_token", f.Compute}, {"comm_s_per_token", f.Comm}, {"sequence_s", float64(f.Sequence)}} {
		if !(x.value >= 0 && x.value < math.MaxFloat32) {
			return fmt.Errorf("%s: %v: want a number of 0 or more", x.field, x.value)
		}
	}
	switch {
	case f.SquareToken+f.Compute+f.Comm == 0:
		return fmt.Errorf("s_per_square_token, compute_s_per_token, comm_s_per_token: all 0: a token must cost something")
	case f.Budget < 1 || f.Budget > mostTokens:
		return fmt.Errorf("budget_tokens: %d: want 1 to %d", int64(f.Budget), int64(mostTokens))
	case f.MaxDegree < 1 || f.MaxDegree > costmodel.MaxRanks:
		return fmt.Errorf("max_degree: %d: want 1 to %d", f.MaxDegree, costmodel.MaxRanks)
	}
	return nil
}

// classes adds every degree, whose devices may lie in any nodes: the model does
// not tell them apart.
func (f *Flexible) classes(c *Costs, p Parameters) {
	budget, most := f.Budget, f.MaxDegree
	if p.Budget > 0 {
		budget = p.Budget
	}
	if p.MaxDegree > 0 {
		most = p.MaxDegree
	}
	for d := 1; d <= min(most, p.Devices); d++ {
		if p.PowersOfTwo && d&(d-1) != 0 {
			continue
		}
		heads := 1
		if p.PowersOfTwo {
			heads = d
		}
		of := curve{square: f.SquareToken / float64(d), linear: (f.Compute + f.Comm) / float64(d), each: float64(f.Sequence)}
		c.add(d, false, 0, budget*units.Tokens(d), heads, of)
	}
}

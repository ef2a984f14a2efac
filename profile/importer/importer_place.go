package importer

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
)

// placer puts the rows of formats that name their GPU and software in words on
// device types and groups, which it declares.
type placer struct {
	*Sink
	devices map[[3]string]named
	lacking map[string]string // what is not known of a GPU, by its name in rows
	fatal   error             // ends the import
}

// mostTypes is far more device types, and groups, than any source has. They are
// kept in memory, so a file must not make them grow.
const mostTypes = 1000

type named struct {
	model  Model
	device op.DeviceType
}

func newPlacer(s *Sink) placer {
	return placer{Sink: s, devices: map[[3]string]named{}, lacking: map[string]string{}}
}

// onDevice hands a row of one GPU on, or says why it cannot be placed. After a
// failure of the whole import fatal is set.
func (p *placer) onDevice(where, gpu, stack string, shape op.Shape, seconds float64) (fault string) {
	_, d, fault := p.device(where, gpu, stack, "")
	if fault != "" || p.fatal != nil {
		return fault
	}
	p.Device(d)
	p.Point(where, d.Name, shape, seconds)
	return ""
}

// lacks is the reason to leave out a row of which something is not known that an option
// would say. If no row is left, the first such is why the import fails.
func (p *placer) lacks(where string, err error) (fault string) {
	if p.unplaced == nil {
		p.unplaced = fmt.Errorf("%s: %w", where, err)
	}
	return err.Error()
}

// timedCollective is a collective that a group is still to be made for.
type timedCollective struct {
	kind    op.Kind
	message op.Message
	perNode int    // GPUs a node; 0 where the source does not tell
	fills   bool   // where it does not, as many as the model's nodes have
	gpu     string // as the source names it
	stack   string
	way     string // "oneway" where the answer was not measured
	seconds float64
}

// onGroup hands a collective on, or says why it cannot be placed. After a
// failure of the whole import fatal is set.
func (p *placer) onGroup(where string, c timedCollective) (fault string) {
	if c.message.Group < 2 {
		return "a collective of fewer than two ranks"
	}
	m, d, fault := p.device(where, c.gpu, c.stack, c.way)
	if fault != "" || p.fatal != nil {
		return fault
	}
	nodes, fault := p.nodes(m, c)
	link := cmp.Or(p.Link, m.Fabric)
	if p.filled(m, c) {
		link = cmp.Or(p.Link, linkNet)
	}
	switch {
	case fault != "":
		return fault
	case link == "":
		return p.lacks(where, fmt.Errorf("what links the GPUs of a node of %s is not known; say it with --link, such as nvlink or pcie", m.Name))
	}
	if nodes > 1 && p.Link == "" && link != linkNet {
		const note = "the links of groups on several nodes are called %s, as those inside a node of %s: --link names what lies between the nodes"
		p.Note(fmt.Sprintf(note, link, m.Name))
	}
	if len(p.groups) == mostTypes {
		p.fatal = fmt.Errorf("%d groups; is the number of GPUs of every row another?", mostTypes)
		return ""
	}
	p.Device(d)
	g := op.NewGroupType([]op.Member{{Device: d.Name, Count: c.message.Group}}, nodes, link)
	p.Point(where, p.Group(g), op.OfMessage(c.kind, c.message), c.seconds)
	return ""
}

// nodes is how many nodes the ranks sit on: what the row says, then what the
// caller says, then one, if a node has as many GPUs, then those that such nodes fill.
func (p *placer) nodes(m Model, c timedCollective) (nodes int, fault string) {
	n := c.message.Group
	switch {
	case c.perNode > 0 && n > c.perNode && n%c.perNode != 0:
		return 0, "the ranks do not fill their nodes"
	case c.perNode > 0:
		return max(1, n/c.perNode), ""
	case p.Nodes > 0 && n%p.Nodes != 0:
		return 0, fmt.Sprintf("the ranks do not fill the %d nodes of --nodes", p.Nodes)
	case p.Nodes > 0:
		if p.Nodes > 1 && n <= m.PerNode {
			const note = "groups of %d are taken to sit on %d nodes, though one node of %s holds them: --nodes is for every group; import those inside a node apart"
			p.Note(fmt.Sprintf(note, n, p.Nodes, m.Name))
		}
		return p.Nodes, ""
	case p.filled(m, c):
		const note = "groups of %d %s are taken to fill %d nodes of %d GPUs, whose links are called %s: a column gpus_per_node says otherwise; --link names the links"
		p.Note(fmt.Sprintf(note, n, m.Name, n/m.PerNode, m.PerNode, cmp.Or(p.Link, linkNet)))
		return n / m.PerNode, ""
	case m.PerNode > 0 && n > m.PerNode:
		way := "say how many nodes with --nodes"
		if c.fills && inRacks([]Model{m}) {
			way += fmt.Sprintf(", or in a column gpus_per_node, where a rack of up to %d that %s joins is one node", mostInRack, m.Fabric)
		}
		return 0, fmt.Sprintf("more GPUs than a node of %s has (%d); %s", m.Name, m.PerNode, way)
	}
	return 1, ""
}

// filled says that neither row nor caller tell the nodes of a group of several, and that
// such of the model hold it exactly. Where a rack joins nodes by the GPUs' own links, these
// may be what was measured, so that of such models nothing is taken.
func (p *placer) filled(m Model, c timedCollective) bool {
	n := c.message.Group
	return c.fills && c.perNode == 0 && p.Nodes == 0 && m.PerNode > 0 && n > m.PerNode && n%m.PerNode == 0 && !inRacks([]Model{m})
}

// device finds the model that a row names and its device type under a stack, or
// says why there is none; way sets times of another protocol apart. After a failure
// of the whole import fatal is set.
//
// A name that is not known may be what its authors call a machine, such as
// a100_dgx: --device says which GPU it has, and the name becomes the stack where
// nothing else names the software, so that two machines are never pooled.
func (p *placer) device(where, called, stack, way string) (m Model, d op.DeviceType, fault string) {
	key := [3]string{called, stack, way}
	if d, ok := p.devices[key]; ok {
		return d.model, d.device, ""
	}
	m, label, fault := p.find(where, called)
	if p.fatal == nil && len(p.devices) == mostTypes {
		p.fatal = fmt.Errorf("more than %d device types; is the version of every row another? import the rows of one software at a time", mostTypes)
	}
	if fault != "" || p.fatal != nil {
		return Model{}, op.DeviceType{}, fault
	}
	n := named{m, m.Of(stackOf(cmp.Or(stack, stackOf(p.Stack), label), way))}
	p.devices[key] = n
	return m, n.device, ""
}

// find finds a model, and the name that --device stands for. A row whose GPU neither it
// nor --device tells is left out; that --device is wrong concerns all rows.
func (p *placer) find(where, called string) (m Model, label, fault string) {
	given := p.Options.Device
	if m, ok := p.model(called); ok {
		p.besides(called, m)
		return m, "", ""
	}
	switch {
	case given == "":
		return Model{}, "", p.unnamed(where, called)
	case p.stands != "" && called != "" && p.stands != called:
		p.fatal = fmt.Errorf("--device %s cannot stand for both %s and %s; import them apart", given, quoted(p.stands), quoted(called))
		return Model{}, "", ""
	}
	m, ok := p.model(given)
	if !ok {
		p.fatal = p.unknown(given)
		return Model{}, "", ""
	}
	p.stands = cmp.Or(called, p.stands)
	return m, stackOf(called), ""
}

// unnamed is why a row has no model. What names are near is worked out once a name.
func (p *placer) unnamed(where, called string) (fault string) {
	if fault, seen := p.lacking[called]; seen {
		return fault
	}
	if called != "" {
		fault = p.lacks(where, p.unknown(called))
	} else {
		p.lacks(where, errors.New("the file does not name its GPU; say it with --device"))
		fault = "a row that names no GPU; say it with --device"
	}
	if len(p.lacking) < mostTypes {
		p.lacking[called] = fault
	}
	return fault
}

// collectiveOf finds the op of a collective's name, and whether one direction
// of it was measured: Vidur's send_recv, not the ring shift of nccl-tests.
func collectiveOf(name string) (kind op.Kind, oneWay, known bool) {
	switch strings.NewReplacer("-", "_", " ", "_").Replace(strings.ToLower(name)) {
	case "all_reduce", "allreduce":
		return op.KindAllReduce, false, true
	case "all_gather", "allgather":
		return op.KindAllGather, false, true
	case "reduce_scatter", "reducescatter":
		return op.KindReduceScatter, false, true
	case "alltoall", "all_to_all", "all2all":
		return op.KindAllToAll, false, true
	case "sendrecv":
		return op.KindSendRecv, false, true
	case "send_recv", "p2p": // from one stage of a pipeline to the next
		return op.KindSendRecv, true, true
	}
	return "", false, false
}

// oneWayNote says how a send without its answer is filed.
const oneWayNote = "send_recv of this source is one message from one rank to another, not a shift of the whole ring: " +
	"its groups are named -oneway, so that no law pools the two; on links that carry both directions at full rate the two take about as long"

// noSuchCollective is the reason to leave out what no op is: broadcast, reduce.
const noSuchCollective = "no op of this vocabulary is such a collective"

// stackOf joins the parts of a stack's name with dashes and keeps it a short
// lower-case word that device names can hold.
func stackOf(parts ...string) string {
	var kept []string
	for _, p := range parts {
		if p = worded(strings.TrimSpace(p), "._-:", " +", 64); p != "" {
			kept = append(kept, p)
		}
	}
	return strings.Join(kept, "-")
}

// worded makes a text a word of at most so many letters: it lowers it and replaces what is
// no letter or digit a-z, 0-9, nor one of the others, by _. Case, and the spellings that are
// listed, tell no two names apart. Any other sign may, as the / of 1.0/cu126 and the ~ of 1.0~cu126
// do, so a word that lost one stays told apart by a hash, as one that was cut does.
func worded(text, others, spellings string, most int) string {
	plain := strings.Map(func(c rune) rune {
		if strings.ContainsRune(spellings, c) {
			return '_'
		}
		return c
	}, strings.ToLower(text))
	word := strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '_' || strings.ContainsRune(others, c) {
			return c
		}
		return '_'
	}, plain)
	const hashed = 8
	if word == plain && len(word) <= most {
		return word
	}
	return word[:min(len(word), most-hashed-1)] + "_" + profile.Fingerprint(plain)[:hashed]
}

// quoted shows a text of any length in a message.
func quoted(text string) string {
	const most = 60
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most-3], "") + "..."
	}
	return strconv.Quote(text)
}

// dtypeOf reads a precision. The two forms of 8-bit floats differ in range, not
// in speed.
func dtypeOf(name string) (op.DType, bool) {
	switch strings.TrimPrefix(strings.ToLower(name), "torch.") {
	case "fp16", "float16", "half", "f16":
		return op.F16, true
	case "bf16", "bfloat16":
		return op.BF16, true
	case "fp8", "f8", "fp8_e4m3", "fp8_e5m2", "float8_e4m3fn", "float8_e5m2", "e4m3", "e4m3fn", "e5m2", "float8_e4m3", "float8":
		return op.FP8, true
	case "fp32", "float32", "float", "f32":
		return op.F32, true
	case "fp64", "float64", "double", "f64":
		return op.F64, true
	case "int8", "uint8", "i8":
		return op.I8, true
	case "int32", "i32":
		return op.I32, true
	case "int64", "i64":
		return op.I64, true
	}
	return "", false
}

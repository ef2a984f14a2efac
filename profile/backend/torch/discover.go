package torch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// Discover implements profile.Backend: it finds an interpreter, greets a worker
// on every device of every task of the job, and lists what can be measured.
func (b *Backend) Discover(ctx context.Context) (*profile.Inventory, error) {
	if b.found != nil {
		return b.found, nil
	}
	mine, err := b.here(ctx)
	if err != nil {
		return nil, err
	}
	tasks := []task{mine}
	if b.config.World != nil && b.config.World.Tasks > 1 {
		if tasks, err = b.gather(ctx, mine); err != nil {
			return nil, err
		}
	}
	b.place(tasks)
	if err := b.mayMeasure(); err != nil {
		return nil, err
	}
	b.comm = b.communication()
	b.groups = findGroups(b.ranks, b.config.GroupSizes, b.link)
	apart, err := b.meet(ctx)
	if err != nil {
		return nil, err
	}
	b.found = b.inventory(tasks)
	b.found.Notes = append(append(b.found.Notes, b.warnings...), apart...)
	return b.found, nil
}

// meet lets all ranks meet once before anything is measured, so that what keeps
// them apart (another version of NCCL on one node, say) is known at once. Their
// devices can be measured all the same; what is not is returned.
func (b *Backend) meet(ctx context.Context) ([]string, error) {
	if len(b.groups) == 0 {
		return nil, nil
	}
	err := b.world(ctx)
	var e *profile.OpError
	if errors.As(err, &e) && e.Class == profile.Unsupported {
		b.groups = nil
		return []string{fmt.Sprintf("no collective is measured: %v", e.Err)}, nil
	}
	return nil, err
}

// task is what one agent of the job offers: the devices of its node, or those
// of them that are its own.
type task struct {
	Node    string          `json:"node"`
	Host    string          `json:"host"`
	Machine profile.Machine `json:"machine"`
	Locals  []local         `json:"locals"`
	Notes   []string        `json:"notes"`
}

// here finds an interpreter and the devices of this task.
func (b *Backend) here(ctx context.Context) (task, error) {
	t := task{Machine: b.config.Machine, Host: b.config.Machine.Host, Node: b.config.Machine.Host}
	if w := b.config.World; w != nil && w.Node != "" {
		t.Node = w.Node
	}
	if b.config.Worker == nil {
		var err error
		if b.folder, b.parent, err = unpack(); err != nil {
			return t, err
		}
	}
	p, refused, err := b.probe(ctx)
	if err != nil {
		return t, err
	}
	b.python, b.first = p.path, p.client
	for _, r := range refused {
		t.Notes = append(t.Notes, "not used: "+r)
	}
	t.Notes = append(t.Notes, fmt.Sprintf("%s runs the kernels: Python %s, torch %s", p.path, p.hello.Python, p.hello.Torch))
	if n := len(b.config.Machine.NVIDIA); n > 0 && p.cores != nil {
		t.Notes = append(t.Notes, fmt.Sprintf("the processors are measured, not %s of this machine: %v", units.Count(n, "GPU"), plain(p.cores)))
	}
	if p.hello.Device.Kind != "cuda" {
		t.Locals, err = b.processors(ctx, p.hello)
		return t, err
	}
	// It sees all GPUs and would count as somebody else on the first.
	b.first.close()
	b.first = nil
	t.Locals, err = b.gpus(ctx)
	return t, err
}

// gpus greets a worker on each GPU of this task that its environment shows.
func (b *Backend) gpus(ctx context.Context) ([]local, error) {
	tokens := b.visible()
	if len(b.config.Partitions) > 0 {
		return b.partitions(ctx, tokens)
	}
	// A launcher that gives every task its own GPU shows it that one alone.
	if w := b.config.World; w != nil && w.LocalTasks > 1 && len(tokens) > 1 {
		if w.LocalTask >= len(tokens) {
			return nil, fmt.Errorf("this is task %d of %d on its node, which shows %s: start at most one task a GPU", w.LocalTask, w.LocalTasks, units.Count(len(tokens), "GPU"))
		}
		tokens = tokens[w.LocalTask : w.LocalTask+1]
	}
	if w := b.config.World; w != nil && w.Workers > 0 && w.Workers < len(tokens) {
		tokens = tokens[:w.Workers] // as many as the job was told to use on a node
	}
	list := make([]local, len(tokens))
	errs := make([]error, len(tokens))
	done := make(chan int)
	for i, token := range tokens {
		go func() {
			list[i] = local{On: "cuda:0", Visible: token}
			var c *client
			if c, list[i].Greeting, errs[i] = b.greet(ctx, b.python, list[i].slot()); errs[i] == nil {
				c.close()
			}
			list[i].Identity = b.identity(list[i].Greeting.Device.UUID, token)
			done <- i
		}()
	}
	for range tokens {
		<-done
	}
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("GPU %s: %w", tokens[i], plain(err))
		}
	}
	return list, nil
}

// visible lists the GPUs this process may use, as CUDA_VISIBLE_DEVICES names
// them: what that says where it is set, else all that NVML lists (a partitioned
// GPU by its instances), else the one that the first worker found.
func (b *Backend) visible() []string {
	if v, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok && v != "" {
		return strings.Split(v, ",")
	}
	var tokens []string
	for _, d := range b.config.Machine.NVIDIA {
		for _, part := range d.Instances() {
			tokens = append(tokens, part.UUID)
		}
	}
	if len(tokens) == 0 {
		tokens = []string{"0"}
	}
	return tokens
}

// identity is what NVML knows about a GPU that moves its times; "" where it
// does not know the GPU. Numbers in CUDA_VISIBLE_DEVICES count in CUDA's order,
// not in NVML's, so only what the worker says of its GPU tells which it is.
func (b *Backend) identity(uuid, token string) string {
	for _, d := range b.config.Machine.NVIDIA {
		for _, part := range d.Instances() {
			if part.UUID != "" && (part.UUID == uuid || part.UUID == token) {
				return part.Identity()
			}
		}
	}
	return ""
}

// place gives every device of every task its rank, type and name. Tasks on one
// node share its number.
func (b *Backend) place(tasks []task) {
	var nodes []string
	count := map[int]int{}
	for t, one := range tasks {
		node := slices.Index(nodes, one.Node)
		if node < 0 {
			node = len(nodes)
			nodes = append(nodes, one.Node)
		}
		for i, l := range one.Locals {
			letter := "r"
			if l.Greeting.Device.Kind == "cuda" {
				letter = "g"
			}
			r := &rank{place: fmt.Sprintf("n%d/%s%d", node, letter, count[node]), node: node, host: one.Host, greeting: l.Greeting, own: l.Own, sms: l.SMs, device: b.deviceType(l, one.Machine)}
			r.dial = b.dialer(t, i, l)
			if t == 0 && i == 0 && l.Cores == 1 && l.ISA == "" && l.Own == nil {
				r.client, b.first = b.first, nil // it was greeted as just such a worker
			}
			count[node]++
			b.ranks = append(b.ranks, r)
		}
	}
	b.nameTypes()
	if b.first != nil {
		b.first.close() // its rank has cores of its own, which it was not started on
		b.first = nil
	}
}

// dialer starts the worker of a device of a task, here or through its agent.
func (b *Backend) dialer(task, index int, l local) func(context.Context) (*client, greeting, error) {
	if task > 0 {
		return func(ctx context.Context) (*client, greeting, error) { return b.bus.dial(ctx, task, index, l) }
	}
	return func(ctx context.Context) (*client, greeting, error) { return b.greet(ctx, b.python, l.slot()) }
}

// nameTypes makes device types of one name that differ in their stack or
// limits distinct: h100, h100_2.
func (b *Backend) nameTypes() {
	kinds := map[string][]string{} // name: fingerprints in order
	for _, r := range b.ranks {
		name := r.device.Name
		i := slices.Index(kinds[name], r.device.Fingerprint)
		if i < 0 {
			i = len(kinds[name])
			kinds[name] = append(kinds[name], r.device.Fingerprint)
		}
		if i > 0 {
			r.device.Name = fmt.Sprintf("%s_%d", name, i+1)
		}
	}
}

// mayMeasure refuses GPUs on which others compute: their times would be lies.
func (b *Backend) mayMeasure() error {
	for _, r := range b.ranks {
		if busy := r.greeting.Busy; len(busy) > 0 && !b.config.AllowShared {
			return fmt.Errorf("%s (%s): other processes compute on it (pids %v): wait for them, choose other GPUs with CUDA_VISIBLE_DEVICES, or pass --allow-shared to measure what is left", r.place, r.device.Name, busy)
		}
	}
	return nil
}

// communication is the library that carries collectives: NCCL where every rank
// has it and a GPU of its own, else gloo.
func (b *Backend) communication() string {
	if b.shared() {
		return "gloo"
	}
	for _, r := range b.ranks {
		if r.greeting.Device.Kind != "cuda" || !r.greeting.Comm["nccl"].OK {
			return "gloo"
		}
	}
	return "nccl"
}

// link is the class of the links inside a set of ranks.
func (b *Backend) link(set []int) string {
	if b.comm == "gloo" {
		if b.oversubscribed(set) {
			return "gloo_tcp" + op.Oversubscribed
		}
		return "gloo_tcp"
	}
	for _, r := range set {
		if b.ranks[r].node != b.ranks[set[0]].node {
			return network()
		}
	}
	links := b.linksOf(set)
	for _, l := range links {
		if !strings.HasPrefix(l.Link, "NV") {
			return "pcie"
		}
	}
	if len(links) == 0 {
		return "nccl" // the topology could not be read
	}
	return "nvlink"
}

// linksOf are the links between the GPUs of a set, of those of this machine: a card for
// displays, or pairs that a bridge joins, say nothing of the others. They are all of the
// machine's where a GPU of the set is not in its list, as those of another node.
func (b *Backend) linksOf(set []int) []profile.NVIDIALink {
	m, in := b.config.Machine, map[int]bool{}
	for _, r := range set {
		uuid := b.ranks[r].greeting.Device.UUID
		i := slices.IndexFunc(m.NVIDIA, func(d profile.NVIDIADevice) bool { return uuid != "" && d.UUID == uuid })
		if i < 0 {
			return m.NVIDIALinks
		}
		in[m.NVIDIA[i].Index] = true
	}
	var links []profile.NVIDIALink
	for _, l := range m.NVIDIALinks {
		if in[l.A] && in[l.B] {
			links = append(links, l)
		}
	}
	return links
}

// transport is the threads that gloo adds to a rank: its event loop runs for half
// of the time while small messages go to and fro, and among ranks that share
// cores a rank waits for a slice of 4 ms now and then. On cores of its own a rank
// sleeps while its transport works.
const transport = 1

// oversubscribed says whether ranks of a set on one machine (several nodes of a
// test cluster may be one) have fewer cores than threads: what they measure
// holds for nothing but such a machine.
func (b *Backend) oversubscribed(set []int) bool {
	threads := map[string]int{}
	for _, r := range set {
		if b.ranks[r].own != nil {
			return false // the same on any machine, however many cores it has
		}
		threads[b.ranks[r].host] += b.ranks[r].device.Parallel + transport
	}
	for _, n := range threads {
		if b.ranks[set[0]].greeting.Device.Kind != "cuda" && n > b.config.Machine.Cores {
			return true
		}
	}
	return false
}

// network names the class of links between nodes by what this node has; the
// folder lists InfiniBand and RoCE cards alike.
func network() string {
	if cards, err := os.ReadDir("/sys/class/infiniband"); err == nil && len(cards) > 0 {
		return "rdma"
	}
	return "ethernet"
}

// Extents of the shapes: what a planner may ask of a rank. How far into them a
// calibration reaches is a matter of its budget.
const (
	gpuLen, cpuLen     = 128 << 10, 32 << 10
	gpuHeads, cpuHeads = 64, 32
	gpuWidth, cpuWidth = 32 << 10, 8 << 10
	gpuWire, cpuWire   = units.GiB, 64 * units.MiB
	gpuCopy            = units.GiB
)

// inventory lists the device types and groups with their families of shapes.
func (b *Backend) inventory(tasks []task) *profile.Inventory {
	inv := &profile.Inventory{Backend: "torch", Machine: b.config.Machine, Notes: b.notes(tasks), PeersWait: b.config.collectiveTimeout()}
	for _, t := range tasks[1:] {
		if !slices.ContainsFunc(append(inv.Others, inv.Machine), func(m profile.Machine) bool { return m.Host == t.Host }) {
			inv.Others = append(inv.Others, t.Machine)
		}
	}
	first := map[string]bool{}
	several := map[string]int{}
	for _, r := range b.ranks {
		several[r.device.Name]++
	}
	for _, r := range b.ranks {
		inv.Unguarded = inv.Unguarded || r.greeting.Device.Kind == "cuda" && !r.greeting.NVML
		if several[r.device.Name] > 1 {
			inv.Places = append(inv.Places, profile.Place{On: r.device.Name, Name: r.place, Ranks: []string{r.place}})
		}
		if !first[r.device.Name] {
			first[r.device.Name] = true
			inv.Devices = append(inv.Devices, r.device)
			inv.Spaces = append(inv.Spaces, b.computeSpaces(r)...)
			inv.Once = append(inv.Once, b.once(r)...)
		}
	}
	for _, g := range b.groups {
		inv.Groups = append(inv.Groups, g.GroupType)
		inv.Spaces = append(inv.Spaces, b.groupSpaces(g)...)
		for _, set := range g.sets {
			inv.Places = append(inv.Places, profile.Place{On: g.Name, Name: b.placeOf(set), Ranks: b.namesOf(set)})
		}
	}
	return inv
}

// notes say what the ranks are, what cannot be measured and why, each once.
func (b *Backend) notes(tasks []task) []string {
	var notes []string
	add := func(more ...string) {
		for _, s := range more {
			if !slices.Contains(notes, s) {
				notes = append(notes, s)
			}
		}
	}
	for i, t := range tasks {
		if len(tasks) > 1 {
			add(fmt.Sprintf("task %d runs on %s (%s)", i, t.Node, t.Host))
		}
		add(t.Notes...)
	}
	for _, r := range b.ranks {
		add(r.notes()...)
	}
	add(processorNotes(b.ranks)...)
	add(partitionNotes(b.ranks)...)
	for i, r := range b.ranks {
		if i > 0 && r.host == b.ranks[0].host && r.node != b.ranks[0].node {
			add(fmt.Sprintf("the nodes of %s and %s are one machine (%s): times between them say nothing about a network", b.ranks[0].place, r.place, r.host))
			break
		}
	}
	for _, g := range b.groups {
		if g.Oversubscribed() {
			add(fmt.Sprintf("%s: fewer cores than threads (gloo's transport is one a rank): its times hold for nothing but such a machine", g.Name))
		}
	}
	if len(b.ranks) > 1 {
		add("collectives run through " + b.comm)
	}
	return notes
}

// notes say what a rank's worker found: its device, and which kernels and ops it has or
// refuses and why.
func (r *rank) notes() []string {
	var notes []string
	add := func(format string, args ...any) { notes = append(notes, fmt.Sprintf(format, args...)) }
	g := &r.greeting
	if g.Device.UUID != "" {
		add("%s is %s, %s", r.place, g.Device.Name, g.Device.UUID)
	}
	for _, name := range sortedKeys(g.Kernels) {
		if k := g.Kernels[name]; k.OK {
			add("attention kernel %s works: %s", name, k.Schema)
		} else {
			add("attention kernel %s: %s", name, k.Why)
		}
	}
	for _, name := range sortedKeys(g.Refused) {
		add("%s: %s", name, g.Refused[name])
	}
	if g.Device.Kind == "cuda" && !g.NVML {
		add("%s: clocks and throttling cannot be read (%s); repeated points (canaries) show drift instead", r.place, g.NVMLWhy)
	}
	return notes
}

func sortedKeys[K cmp.Ordered, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

// able keeps the families that a worker says it can run.
func able(spaces []profile.Space, g greeting) []profile.Space {
	return slices.DeleteFunc(spaces, func(s profile.Space) bool { return !slices.Contains(g.Ops, s.Kind) })
}

package torch

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Partition is a number of multiprocessors (SMs) of a GPU: what a rank computes
// with that shares the GPU with others. Its kernels run on these alone (a green
// context, see worker/confine.py); memory bandwidth, the second-level cache and
// copy engines are the whole card's. Like the number of a processor's threads it
// is a resource: nothing is delayed or repeated.
//
// Processes take turns on a GPU, so a partition is measured while the others
// idle, and holds for computing while the others do not. Replay places the ranks
// of a plan on partitions of one GPU, its first.
type Partition struct {
	GPU int // among those this process may use
	SMs int
}

// partitionMark stands before the number of multiprocessors in the name of a
// device type: "h200_sxm@sm80".
const partitionMark = "@sm"

// String is how the command line names it: "0@sm80".
func (p Partition) String() string { return strconv.Itoa(p.GPU) + partitionMark + strconv.Itoa(p.SMs) }

// ParsePartition reads what String writes.
func ParsePartition(s string) (Partition, error) {
	gpu, sms, _ := strings.Cut(s, partitionMark)
	p := Partition{}
	var a, b error
	p.GPU, a = strconv.Atoi(gpu)
	p.SMs, b = strconv.Atoi(sms)
	if a != nil || b != nil || p.GPU < 0 || p.SMs < 1 || s != p.String() {
		return Partition{}, fmt.Errorf("%q: want the number of a GPU and how many of its multiprocessors, such as 0@sm80", s)
	}
	return p, nil
}

// Multiprocessors reads the name of a device type: how many multiprocessors of
// its GPU a rank of it is confined to, 0 for all.
func Multiprocessors(name string) int {
	_, rest, found := strings.Cut(name, partitionMark)
	rest, _, _ = strings.Cut(rest, "_") // the second of a name has _2 (nameTypes)
	n, err := strconv.Atoi(rest)
	if !found || err != nil || n < 1 {
		return 0
	}
	return n
}

// partitions greets a worker on every partition asked for, one after another:
// together they would take each other for strangers on the GPU.
func (b *Backend) partitions(ctx context.Context, tokens []string) ([]local, error) {
	if b.several() {
		return nil, fmt.Errorf("gpu:%s: partitions of a GPU are measured by one process on its machine, and this job has %d tasks: start it without a launcher", b.config.Partitions[0], b.config.World.Tasks)
	}
	var list []local
	for _, p := range b.config.Partitions {
		if p.GPU >= len(tokens) {
			return nil, fmt.Errorf("gpu:%s: this process may use %s: name 0 to %d", p, units.Count(len(tokens), "GPU"), len(tokens)-1)
		}
		l := local{On: "cuda:0", Visible: tokens[p.GPU], SMs: p.SMs, Sharing: b.sharing(p)}
		c, hello, err := b.greet(ctx, b.python, l.slot())
		if err != nil {
			return nil, fmt.Errorf("gpu:%s: %w", p, plain(err))
		}
		c.close()
		l.Greeting, l.Identity = hello, b.identity(hello.Device.UUID, tokens[p.GPU])
		list = append(list, l)
	}
	return list, b.tooMany(list)
}

// sharing is how many partitions there are of a partition's GPU.
func (b *Backend) sharing(p Partition) int {
	n := 0
	for _, x := range b.config.Partitions {
		if x.GPU == p.GPU {
			n++
		}
	}
	return n
}

// tooMany refuses partitions that a GPU cannot have side by side.
func (b *Backend) tooMany(list []local) error {
	sum := map[int]int{}
	for i, p := range b.config.Partitions {
		sum[p.GPU] += p.SMs
		if have := list[i].Greeting.Device.CardSMs; sum[p.GPU] > have {
			return fmt.Errorf("gpu:%s: with it the ranks of this GPU have %d multiprocessors, of which it has %d: name fewer", p, sum[p.GPU], have)
		}
	}
	return nil
}

// confined says whether a worker took the partition it was asked to: one that
// knows nothing of it would measure the whole GPU.
func (d deviceFacts) confined(sms int) error {
	if sms > 0 && (d.SMs != sms || d.CardSMs < sms) {
		return fmt.Errorf("%s%d: the worker has %d of %d multiprocessors: its times would be another device's", partitionMark, sms, d.SMs, d.CardSMs)
	}
	return nil
}

// shared says whether ranks share GPUs, which NCCL does not connect.
func (b *Backend) shared() bool {
	return slices.ContainsFunc(b.ranks, func(r *rank) bool { return r.sms > 0 })
}

// partitionNotes say what ranks on partitions have and what they share.
func partitionNotes(ranks []*rank) []string {
	var list []string
	for _, r := range ranks {
		if r.sms > 0 {
			list = append(list, fmt.Sprintf("%s has %d of %d", r.place, r.sms, r.greeting.Device.CardSMs))
		}
	}
	if len(list) == 0 {
		return nil
	}
	return []string{
		"ranks are confined to multiprocessors of their GPU by green contexts, and a kernel ran on just as many (" + strings.Join(list, ", ") + ")",
		"memory bandwidth, second-level cache and copy engines are the whole GPU's; a partition is measured while the others idle, and its memory is the GPU's divided by the ranks that share it",
	}
}

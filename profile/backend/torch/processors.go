package torch

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// processors are the ranks of this task on its cores: those asked for, and more
// of the first kind up to the largest group asked for. Without sizes asked for
// there are as many as have cores, four at most, and two at least. In a job of
// several tasks it is one, or as many as the job was told to use on a node.
func (b *Backend) processors(ctx context.Context, g greeting) ([]local, error) {
	cores := slices.Clone(b.config.Cores)
	if len(cores) == 0 {
		cores = []Cores{{Threads: 1}}
	}
	for b.wantsMore(cores) {
		cores = append(cores, cores[0])
	}
	var list []local
	for _, c := range cores {
		list = append(list, local{On: "cpu", Cores: c.Threads, ISA: c.ISA, Greeting: g})
	}
	have := b.config.Machine.Cores
	if n := len(g.Device.Cores); n > 0 {
		have = min(have, n) // fewer where an affinity or cpuset is set
	}
	if !b.several() && allThreads(cores) <= have {
		own(list)
	}
	return list, b.greetLimited(ctx, list)
}

// several says whether this is a job of several tasks.
func (b *Backend) several() bool { return b.config.World != nil && b.config.World.Tasks > 1 }

// wantsMore says whether there are to be more ranks on processors than these.
func (b *Backend) wantsMore(have []Cores) bool {
	switch {
	case b.several():
		return len(have) < b.config.World.Workers
	case len(b.config.GroupSizes) > 0:
		return len(have) < slices.Max(b.config.GroupSizes)
	case b.config.Machine.Cores < 2:
		return false
	}
	return len(have) < 2 || len(have) < 4 && allThreads(have)+have[0].Threads <= b.config.Machine.Cores
}

func allThreads(cores []Cores) int {
	n := 0
	for _, c := range cores {
		n += c.Threads
	}
	return n
}

// own gives every rank cores that no other has, the next ones in the order of
// the ranks. Left to the system two ranks of one thread each, on two cores, ran
// attention three times slower at once than alone and waited for a core for most
// of that time; with a core each they took no longer than alone, within the
// noise of 5 %.
func own(list []local) {
	next := 0
	for i := range list {
		for range list[i].Cores {
			list[i].Own = append(list[i].Own, next)
			next++
		}
	}
}

// greetLimited asks one rank of every limited kind what its libraries say of
// themselves, for the others' word holds for the widest vector units.
func (b *Backend) greetLimited(ctx context.Context, list []local) error {
	known := map[ISA]greeting{"": {}}
	for i := range list {
		l := &list[i]
		g, asked := known[l.ISA]
		if !asked {
			c, hello, err := b.greet(ctx, b.python, l.slot())
			if err != nil {
				return fmt.Errorf("%s: %w", Cores{l.Cores, l.ISA}.TypeName(), plain(err))
			}
			c.close()
			g, known[l.ISA] = hello, hello
		}
		if l.ISA != "" {
			l.Greeting = g
		}
	}
	return nil
}

// processorNotes say what ranks on processors have and how they are measured.
func processorNotes(ranks []*rank) []string {
	var own, crowded, notes []string
	for _, r := range ranks {
		if r.greeting.Device.Kind == "cuda" {
			continue
		}
		if file := r.greeting.Device.Vectors.Reference; file != "" && len(notes) == 0 {
			notes = append(notes, fmt.Sprintf("%s: torch multiplies matrices with the reference BLAS (%s), which is tens of times slower than an optimised one: install OpenBLAS (Debian: apt-get install libopenblas0-pthread) and calibrate again", r.place, file))
		}
		if len(r.own) > 0 {
			own = append(own, fmt.Sprintf("%s has %v", r.place, r.own))
		} else {
			crowded = append(crowded, r.place)
		}
	}
	if len(own) > 0 {
		notes = append(notes, "every rank has cores of its own, its transport's thread with it ("+strings.Join(own, ", ")+", counted among those this process may use); a device is measured while the others idle")
	}
	if len(own)+len(crowded) > 1 && len(crowded) > 0 {
		notes = append(notes, "ranks share cores as the system sees fit ("+strings.Join(crowded, ", ")+"): a job of several tasks, or fewer cores than threads")
	}
	return notes
}

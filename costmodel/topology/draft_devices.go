package topology

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

// model is the GPU model that a GPU's own name means, "" for none or several.
func (o Options) model(name string) string {
	if name == "" || o.Model == nil {
		return ""
	}
	return o.Model(name)
}

// devices lists the GPUs by their models, in the file's order: each is what the file says of it,
// and where it says nothing, what the user does.
func (d *Draft) devices(m *Machine, o Options) []op.Member {
	var all []op.Member
	told, filled := 0, 0
	for _, g := range m.GPUs {
		model := cmp.Or(g.Model, o.model(g.Own))
		name := cmp.Or(model, o.Device, FillIn)
		if model != "" && costmodel.ModelOf(o.Device) == model {
			name = o.Device // the same model with its software
		}
		if g.Model != "" {
			told++
		}
		if model == "" {
			filled++
		}
		at := slices.IndexFunc(all, func(o op.Member) bool { return o.Device == name })
		if at < 0 {
			all, at = append(all, op.Member{Device: name}), len(all)
		}
		all[at].Count++
	}
	if told > 0 {
		d.read("the GPU model of %d of %d GPUs, by PCI device id", told, len(m.GPUs))
	}
	d.doubtNames(m, o, all, filled)
	return all
}

// doubtNames says where the file's names of GPUs and --device do not agree, or do not suffice for
// `filled` GPUs of which the file does not say what they are.
func (d *Draft) doubtNames(m *Machine, o Options, devices []op.Member, filled int) {
	var models, others, unknown []string
	for _, member := range devices {
		models = append(models, member.Device)
	}
	for _, name := range m.Named {
		model := o.model(name)
		if model == "" {
			unknown = append(unknown, name)
		}
		if model == "" || model != costmodel.ModelOf(o.Device) {
			others = append(others, name)
		}
	}
	given := o.Device != ""
	way := fmt.Sprintf("write the device type in the place of %s, or draft again with --device", FillIn)
	switch {
	case !given && filled > 0:
		d.remarks.Devices = "fill in the device type"
		why := "the file does not name the GPUs"
		switch {
		case len(unknown) > 0:
			why = "no one model is known that the file's names of GPUs, " + strings.Join(unknown, ", ") + ", mean"
		case len(m.Named) > 0 && m.NamedGPUs < len(m.GPUs):
			why = fmt.Sprintf("the file names %d of %d GPUs", m.NamedGPUs, len(m.GPUs))
		case len(m.Named) > 0:
			why = "the file's names of GPUs are not told to be of which"
		}
		d.FillIn = append(d.FillIn, "device: "+why+"; "+way)
	case given && filled > 0 && len(others) > 0:
		d.guess("device %s of %s: the file names %s (%d of %d GPUs), not known to be that; look which GPUs they are", o.Device, units.Count(filled, "GPU"), strings.Join(others, ", "), m.NamedGPUs, len(m.GPUs))
		d.remarks.Devices = "guessed: the file names " + strings.Join(others, ", ")
	case given && filled == 0 && !slices.Contains(models, o.Device):
		d.guess("the file names %s, so --device %s was not used; change the device types if you know better", strings.Join(models, " and "), o.Device)
	case given && filled == 0 && len(models) > 1:
		d.guess("the file names %s and which GPU is which, so --device %s was not used for all; change the device types if you know better", strings.Join(models, " and "), o.Device)
	}
}

// mostNVLinks is what a GPU of any kind that is known has.
const mostNVLinks = 18

// doubtDevice says of other NVLinks between GPUs than one has that the file and the device type
// cannot both be right, or some links are down. Fewer are told by switches alone: without them
// the other links may lead to GPUs that the file does not show. GPUs are joined by switches where
// their paths have more links than a GPU has, all of which each path then shows.
func (d *Draft) doubtDevice(w wires, o Options, devices []op.Member) {
	device := devices[0].Device
	has := o.Datasheet(costmodel.ModelOf(device)).Links
	switch {
	case w.fabric != nvlink:
	case w.most > cmp.Or(has, mostNVLinks) && has > 0:
		d.guess("device %s: by its datasheet it has %d NVLinks, and the file shows %d between two GPUs: look which GPUs they are", device, has, w.most)
		d.remarks.Devices = "guessed: the file shows more NVLinks than " + device + " has"
	case w.most > cmp.Or(has, mostNVLinks):
		d.guess("link class %s: the file shows %d NVLinks between two GPUs, and no GPU that is known has more than %d: look at the file", w.fabric, w.most, mostNVLinks)
	case len(devices) == 1 && w.ofOne > has && w.least < has && w.wired == w.pairs:
		d.nvlinks = float64(w.least) / float64(has)
		d.guess("device %s: by its datasheet it has %d NVLinks, and the file shows %s: look which GPUs they are, or whether links are down; the rate that is stated is of %d", device, has, w.counts(), w.least)
		d.remarks.Devices = "guessed: the file shows fewer NVLinks than " + device + " has"
	}
}

package torch

import (
	"crypto/sha256"
	"fmt"
	"sort"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/profile"
)

// local is a device of this task before it has a place in the job. It crosses
// the bus to task 0, so its keys are part of the agents' protocol.
type local struct {
	On       string   `json:"on"`      // "cpu" or "cuda:0"
	Cores    int      `json:"threads"` // of a rank on a processor
	ISA      ISA      `json:"isa,omitempty"`
	Own      []int    `json:"own_cores,omitempty"` // see slot.own
	Visible  string   `json:"visible"`             // what CUDA_VISIBLE_DEVICES is set to
	SMs      int      `json:"sms,omitempty"`       // to be confined to; 0: all
	Sharing  int      `json:"sharing,omitempty"`   // ranks on the GPU
	Identity string   `json:"identity"`
	Greeting greeting `json:"greeting"`
}

func (l local) slot() slot {
	return slot{on: l.On, cores: l.Cores, isa: l.ISA, own: l.Own, visible: l.Visible, sms: l.SMs, sharing: l.Sharing}
}

// deviceType names a device with its software stack. Everything that moves
// times is in the fingerprint: another driver, library or power limit, or a
// changed worker, is another device type.
func (b *Backend) deviceType(l local, m profile.Machine) op.DeviceType {
	g := l.Greeting
	d := op.DeviceType{
		Name: slug(g.Device.Name), Model: g.Device.Name, Stack: l.stack(),
		Parallel: max(1, g.Device.SMs), Memory: g.Device.MemBytes,
	}
	if known := b.known(g.Device); known.Name != "" {
		d.Name = known.Name
	}
	d.Sheet = b.sheet(g)
	if g.Device.Kind != "cuda" {
		d.Name, d.Parallel = Cores{l.Cores, l.ISA}.TypeName(), l.Cores
		d.Model = fmt.Sprintf("%s, %d of %d cores", m.CPU, l.Cores, m.Cores)
		if l.ISA != "" {
			d.Model += fmt.Sprintf(", vector units no wider than %s", l.ISA)
		}
	}
	if g.Device.MIG != "" {
		d.Name += "_" + slug(g.Device.MIG)
	}
	if l.SMs > 0 {
		d.Name += partitionMark + strconv.Itoa(l.SMs)
		d.Model += fmt.Sprintf(", %d of %d multiprocessors", l.SMs, g.Device.CardSMs)
	}
	h := sha256.New()
	fmt.Fprintln(h, d.Name, d.Model, d.Stack, l.Identity, workerHash(), g.Device.L2Bytes, d.Parallel, d.Memory)
	if l.Own != nil {
		fmt.Fprintln(h, "cores of its own") // elsewhere ranks may wait for each other's
	}
	d.Fingerprint = fmt.Sprintf("%x", h.Sum(nil))
	return d
}

// known is what is known of a device's model; nothing of a processor.
func (b *Backend) known(d deviceFacts) Known {
	if d.Kind != "cuda" || b.config.Known == nil {
		return Known{}
	}
	if k, ok := b.config.Known(d.Name); ok {
		return k
	}
	return Known{}
}

// sheet is the datasheet of a GPU, or of that part of one that a rank has: it computes
// with its multiprocessors, and memory, cache and links are the whole GPU's. What the
// driver says goes before what is known of the model, and is all that there is of another.
func (b *Backend) sheet(g greeting) op.Sheet {
	d := g.Device
	if d.Kind != "cuda" {
		return op.Sheet{}
	}
	known := b.known(d)
	s := known.Sheet
	if known.SMs > 0 {
		share := float64(d.SMs) / float64(known.SMs)
		s.BF16PerS *= share
		s.FP8PerS *= share
	}
	if g.HIP == "" && d.SM != [2]int{} {
		s.Arch = fmt.Sprintf("sm%d%d", d.SM[0], d.SM[1])
	}
	if d.L2Bytes > 0 {
		s.L2 = d.L2Bytes
	}
	return s
}

// slug makes a word of a product's name: "NVIDIA H100 80GB HBM3" is h100_80gb_hbm3.
func slug(name string) string {
	name = strings.TrimPrefix(strings.ToLower(name), "nvidia ")
	words := strings.FieldsFunc(name, func(r rune) bool { return !(r >= 'a' && r <= 'z' || r >= '0' && r <= '9') })
	if len(words) == 0 {
		return "device"
	}
	return strings.Join(words, "_")
}

// stack lists the software under a device: what a change of makes its old
// times worthless.
func (l local) stack() string {
	g := l.Greeting
	parts := []string{"torch " + g.Torch}
	for _, p := range [][2]string{{"CUDA", g.CUDA}, {"HIP", g.HIP}, {"cuDNN", g.CuDNN}, {"NCCL", g.NCCL}} {
		if p[1] != "" {
			parts = append(parts, p[0]+" "+p[1])
		}
	}
	for _, name := range kernels(g) {
		k := name
		if v := g.Kernels[name].Version; v != "" && v != g.Torch {
			k += " " + v
		}
		parts = append(parts, k)
	}
	if v := g.Device.Vectors.String(); v != "" {
		parts = append(parts, v)
	}
	return strings.Join(append(parts, "worker "+workerHash()[:12]), ", ")
}

// kernels lists the attention kernels that work, in order of name.
func kernels(g greeting) []string {
	var names []string
	for name, k := range g.Kernels {
		if k.OK {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	return names
}

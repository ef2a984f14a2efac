package results

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// machines prints what each machine of a measurement is, its GPUs with it.
func machines(p *printer, n *notes, all ...profile.Machine) {
	for _, m := range all {
		p.para("", fmt.Sprintf("machine %s: %s, %s, %s memory", orNone(m.Host), orNone(m.CPU), plural(m.Cores, "core"), m.Memory))
		gpus(p, n, m)
	}
}

// gpus prints the GPUs of a machine, the links between them, and in footnotes
// what of their state would spoil a measurement and what could not be read.
func gpus(p *printer, n *notes, m profile.Machine) {
	if len(m.NVIDIA) == 0 {
		if m.Missing != "" {
			n.add("no GPU: " + m.Missing)
		}
		return
	}
	gpuTable(p, n, m.NVIDIA)
	linkMatrix(p, m)
	if m.Missing != "" {
		n.add("the GPUs are not described in full: " + m.Missing)
	}
}

// gpuTable has a line for every GPU, and one for every part of a GPU in MIG mode.
func gpuTable(p *printer, n *notes, devices []profile.NVIDIADevice) {
	t := newTable(column{title: "GPU", number: true}, column{title: "model", most: 16}, column{title: "memory", number: true}, column{title: "SMs", number: true},
		column{title: "SM clock\n(MHz)", number: true}, column{title: "power\n(W)", number: true}, column{title: "temp\n(C)", number: true},
		column{title: "PCIe", number: true}, column{title: "NVLinks"}, column{title: "slowed by\npower / heat", number: true}, column{title: "notes", most: 7})
	for _, d := range devices {
		t.row(strconv.Itoa(d.Index), orNone(d.Name), size(d.Memory), count(d.SMs),
			ratio(d.SMClock/1e6, d.MaxSMClock/1e6, whole), ratio(d.Power, d.PowerLimit, whole), heat(d.Temperature),
			pcie(d.PCIe), nvlinks(d.NVLinks), slowed(d), strings.TrimSpace(gpuMarks(n, d)))
		for _, part := range d.MIGDevices {
			t.row("", "MIG "+orNone(part.Profile), size(part.Memory), count(part.SMs), "", "", "", "", "", "", "")
		}
	}
	p.printf("\n")
	t.render(p)
	p.para("", drivers(devices)+"; clock, power and PCIe (generation x lanes) are now / at most, and an idle GPU lowers them; slowed by power or heat: so long since the driver was loaded")
}

func drivers(devices []profile.NVIDIADevice) string {
	var all []string
	for _, d := range devices {
		if !slices.Contains(all, orNone(d.Driver)) {
			all = append(all, orNone(d.Driver))
		}
	}
	return "driver " + strings.Join(all, ", ")
}

func size(b units.Bytes) string {
	if b <= 0 {
		return none
	}
	return b.String()
}

func count(n int) string {
	if n <= 0 {
		return none
	}
	return strconv.Itoa(n)
}

// whole is enough for clocks in MHz and for W: they move by more between two looks.
func whole(v float64) string {
	if !(v > 0) {
		return none
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

// ratio prints what is against what could be, "345 / 1980".
func ratio[T any](now, most T, show func(T) string) string {
	a, b := show(now), show(most)
	if a == none && b == none {
		return none
	}
	return a + " / " + b
}

func heat(celsius *int) string {
	if celsius == nil {
		return none
	}
	return strconv.Itoa(*celsius)
}

func pcie(l profile.PCIe) string {
	show := func(l [2]int) string {
		if l == [2]int{} {
			return none
		}
		return count(l[0]) + "x" + count(l[1])
	}
	return ratio([2]int{l.Generation, l.Width}, [2]int{l.MaxGeneration, l.MaxWidth}, show)
}

// nvlinks counts the active links, with their version where it is one.
func nvlinks(links []profile.NVLink) string {
	switch {
	case links == nil:
		return none
	case len(links) == 0:
		return "0"
	}
	text := strconv.Itoa(len(links))
	for _, l := range links {
		if l.Version == "" || l.Version != links[0].Version {
			return text
		}
	}
	return text + " v" + links[0].Version
}

func slowed(d profile.NVIDIADevice) string {
	show := func(s *units.Seconds) string {
		if s == nil {
			return none
		}
		return seconds(*s)
	}
	return ratio(d.PowerViolation, d.ThermalViolation, show)
}

// slowing are the reasons for lower clocks that a measurement is discarded for;
// the power cap is the steady state of dense work.
var slowing = []string{"hw_slowdown", "sw_thermal_slowdown", "hw_thermal_slowdown", "hw_power_brake"}

// gpuMarks are footnotes for the state of a GPU, the same text for all that share it.
func gpuMarks(n *notes, d profile.NVIDIADevice) string {
	marks := ""
	mark := func(when bool, text string) {
		if when {
			marks += n.mark(text)
		}
	}
	slow := slices.DeleteFunc(slices.Clone(d.ClockReasons), func(r string) bool { return !slices.Contains(slowing, r) })
	mark(len(slow) > 0, "the GPU was slowing itself down when it was listed ("+strings.Join(slow, ", ")+"): let it cool, or see to its power supply, and measure again")
	fixed := slices.Contains(d.ClockReasons, "application_clocks") || slices.Contains(d.ClockReasons, "display_clocks")
	mark(fixed, "a setting of its driver held the GPU's clocks down when it was listed: its times hold for that setting")
	mark(d.ECCErrors != nil && *d.ECCErrors > 0, "the GPU counted uncorrected memory errors since its last reset: neither its results nor its times can be trusted")
	mark(len(d.Processes) > 0, "other processes computed on the GPU when it was listed: end them and measure again, for its times hold only for the company they had")
	mark(d.Persistence == profile.SwitchOff, "persistence mode is off: the driver is set up anew whenever the first process comes, and a setting made by hand is lost then")
	mark(d.PCIe.Width > 0 && d.PCIe.Width < d.PCIe.MaxWidth, "the PCIe link has fewer lanes than GPU and slot allow: see to its seat")
	mark(d.MIG == profile.SwitchOn && d.MIGDevices != nil && len(d.MIGDevices) == 0, "the GPU is in MIG mode and has no parts, so nothing can run on it")
	return marks
}

// matrixColumns is how many GPUs stand side by side.
const matrixColumns = 12

// linkMatrix prints the best path between every two GPUs as nvidia-smi does, in
// several tables where they are many, and where each has its host.
func linkMatrix(p *printer, m profile.Machine) {
	if len(m.NVIDIA) < 2 {
		return
	}
	words := map[[2]int]string{}
	for _, l := range m.NVIDIALinks {
		words[[2]int{l.A, l.B}], words[[2]int{l.B, l.A}] = l.Link, l.Link
	}
	for across := range slices.Chunk(m.NVIDIA, matrixColumns) {
		columns := []column{{title: "links"}}
		for _, d := range across {
			columns = append(columns, column{title: gpuName(d)})
		}
		t := newTable(append(columns, column{title: "NUMA", most: 8}, column{title: "near cores", most: 16})...)
		for _, d := range m.NVIDIA {
			t.row(linkRow(d, across, words)...)
		}
		p.printf("\n")
		t.render(p)
	}
	if text := legend(m.NVIDIALinks); text != "" {
		p.para("", text)
	}
}

func gpuName(d profile.NVIDIADevice) string { return fmt.Sprintf("GPU%d", d.Index) }

func linkRow(d profile.NVIDIADevice, across []profile.NVIDIADevice, words map[[2]int]string) []string {
	cells := []string{gpuName(d)}
	for _, other := range across {
		word := words[[2]int{d.Index, other.Index}]
		if other.Index == d.Index {
			word = "X"
		}
		cells = append(cells, orNone(word))
	}
	nodes := ""
	for _, n := range d.NUMANodes {
		nodes += fmt.Sprintf(" %d", n)
	}
	return append(cells, orNone(strings.TrimSpace(nodes)), orNone(strings.ReplaceAll(d.CPUAffinity, ",", ", ")))
}

// legend explains the words of the matrix that occur in it, from near to far.
func legend(links []profile.NVIDIALink) string {
	var said []string
	if slices.ContainsFunc(links, func(l profile.NVIDIALink) bool { return strings.HasPrefix(l.Link, "NV") }) {
		said = append(said, "NV# is a bond of so many NVLinks")
	}
	for _, w := range []struct{ word, means string }{
		{"PSB", "one switch on the board"},
		{"PIX", "one PCIe switch"},
		{"PXB", "several PCIe switches"},
		{"PHB", "a host bridge"},
		{"NODE", "several host bridges of a NUMA node"},
		{"SYS", "the link between NUMA nodes"},
	} {
		if slices.ContainsFunc(links, func(l profile.NVIDIALink) bool { return l.Link == w.word }) {
			said = append(said, w.word+" is across "+w.means)
		}
	}
	return strings.Join(said, "; ")
}

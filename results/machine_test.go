package results

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

func known[T any](v T) *T { return &v }

// testGPU is one of a made-up node, idle and well.
func testGPU(i int) profile.NVIDIADevice {
	var links []profile.NVLink
	for l := range 18 {
		links = append(links, profile.NVLink{Link: l, Kind: profile.RemoteSwitch, Version: "4.0"})
	}
	return profile.NVIDIADevice{
		Index: i, Name: "NVIDIA H100 80GB HBM3", Memory: 85520809984, Driver: "580.95.05", SMs: 132,
		SMClock: 345e6, MaxSMClock: 1980e6, Power: 75.3, PowerLimit: 700, Temperature: known(31),
		ClockReasons: []string{"gpu_idle"}, PowerViolation: known(units.Seconds(12.5)), ThermalViolation: known(units.Seconds(0)),
		Persistence: profile.SwitchOn, ECC: profile.SwitchOn, ECCErrors: known(uint64(0)), MIG: profile.SwitchOff,
		PCIe: profile.PCIe{Generation: 5, MaxGeneration: 5, Width: 16, MaxWidth: 16}, NVLinks: links,
		NUMANodes: []int{i / 2}, CPUAffinity: fmt.Sprintf("%d-%d,%d-%d", i/2*48, i/2*48+47, i/2*48+96, i/2*48+143),
	}
}

// testMachine has a GPU for every footnote: 0 is well, 1 is hot, shared and
// badly seated, 2 is divided, 3 tells next to nothing.
func testMachine() profile.Machine {
	m := profile.Machine{Missing: "the power of GPU 3 could not be read: Not Supported"}
	for i := range 4 {
		m.NVIDIA = append(m.NVIDIA, testGPU(i))
	}
	hot := &m.NVIDIA[1]
	hot.ClockReasons = []string{"sw_power_cap", "sw_thermal_slowdown", "hw_thermal_slowdown"}
	hot.SMClock, hot.Power, hot.Temperature = 1020e6, 698.7, known(88)
	hot.PowerViolation, hot.ThermalViolation = known(units.Seconds(4000)), known(units.Seconds(0.0015))
	hot.Processes, hot.ECCErrors, hot.PCIe.Width, hot.PCIe.Generation = []int{4711}, known(uint64(2)), 8, 1
	hot.Persistence = profile.SwitchOff
	split := &m.NVIDIA[2]
	split.MIG, split.NVLinks, split.ClockReasons = profile.SwitchOn, []profile.NVLink{}, []string{"application_clocks"}
	split.MIGDevices = []profile.MIGDevice{{Profile: "1g.10gb", Memory: 10 * units.GiB, SMs: 16}, {Profile: "3g.40gb", Memory: 40 * units.GiB}}
	m.NVIDIA[3] = profile.NVIDIADevice{Index: 3, Driver: "580.95.05"}
	for j := range 4 {
		for i := range j {
			word := map[bool]string{true: "NODE", false: "SYS"}[i/2 == j/2]
			if j == 1 {
				word = "NV18"
			}
			if i != 1 || j != 3 { // this pair could not be read
				m.NVIDIALinks = append(m.NVIDIALinks, profile.NVIDIALink{A: i, B: j, Link: word})
			}
		}
	}
	return m
}

func printed(m profile.Machine) string {
	var buf bytes.Buffer
	p, n := &printer{w: &buf}, &notes{}
	gpus(p, n, m)
	n.render(p)
	return buf.String()
}

func TestMachineGolden(t *testing.T) {
	const path = "testdata/machine.golden"
	got := printed(testMachine())
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("differs from %s (go test -update writes it anew):\n%s", path, diff)
	}
}

// TestMachinesFitTheWidth prints nodes of up to 32 GPUs whose every cell is wide.
func TestMachinesFitTheWidth(t *testing.T) {
	for _, size := range []int{1, 2, 8, 12, 13, 32} {
		m := profile.Machine{Missing: strings.Repeat("refused ", 40)}
		for i := range size {
			d := testMachine().NVIDIA[1]
			d.Index, d.Name = i, "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"
			d.PowerViolation, d.ThermalViolation = known(units.Seconds(1e5)), known(units.Seconds(700))
			d.SMClock, d.PowerLimit, d.Power = 2100e6, 1200, 1199
			d.ClockReasons = append(d.ClockReasons, "application_clocks")
			m.NVIDIA = append(m.NVIDIA, d)
			for j := range i {
				m.NVIDIALinks = append(m.NVIDIALinks, profile.NVIDIALink{A: j, B: i, Link: "NODE"})
			}
		}
		text := printed(m)
		for line := range strings.Lines(text) {
			if line = strings.TrimSuffix(line, "\n"); len(line) > Width || strings.TrimRight(line, " ") != line {
				t.Fatalf("%d GPUs: %d columns: %q", size, len(line), line)
			}
		}
		if n := strings.Count(text, " NODE "); n != size*(size-1) {
			t.Errorf("%d GPUs: the matrix has %d links, want %d", size, n, size*(size-1))
		}
	}
}

func TestNoGPUSaysWhy(t *testing.T) {
	if got := printed(profile.Machine{}); got != "" {
		t.Errorf("of a machine that was not asked: %q", got)
	}
	if got := printed(profile.Machine{Missing: "no driver"}); got != "\n(1) no GPU: no driver\n" {
		t.Errorf("got %q", got)
	}
}

func TestAWellGPUHasNoFootnote(t *testing.T) {
	n := &notes{}
	if marks := gpuMarks(n, testGPU(0)); marks != "" || len(n.texts) > 0 {
		t.Errorf("marks %q for %q", marks, n.texts)
	}
	d := testGPU(0)
	d.MIG, d.MIGDevices = profile.SwitchOn, []profile.MIGDevice{}
	if gpuMarks(n, d) == "" || !strings.Contains(n.texts[0], "no parts") {
		t.Errorf("a GPU that nothing can run on is not marked: %q", n.texts)
	}
}

func TestGPUCells(t *testing.T) {
	mixed := []profile.NVLink{{Version: "3.0"}, {Version: "4.0"}}
	for _, tt := range []struct{ what, got, want string }{
		{"no power", ratio(0, 0, whole), "-"},
		{"limit alone", ratio(0, 700, whole), "- / 700"},
		{"unread PCIe", pcie(profile.PCIe{}), "-"},
		{"PCIe of the moment", pcie(profile.PCIe{Generation: 4, Width: 8}), "4x8 / -"},
		{"unread links", nvlinks(nil), "-"},
		{"links down", nvlinks([]profile.NVLink{}), "0"},
		{"mixed links", nvlinks(mixed), "2"},
		{"a link", nvlinks(mixed[:1]), "1 v3.0"},
		{"unread violations", slowed(profile.NVIDIADevice{}), "-"},
		{"freezing", heat(known(0)), "0"},
		{"drivers", drivers([]profile.NVIDIADevice{{Driver: "1"}, {}, {Driver: "1"}}), "driver 1, -"},
		{"no links", legend(nil), ""},
		{"legend", legend([]profile.NVIDIALink{{Link: "SYS"}, {Link: "NV4"}, {Link: "PIX"}, {Link: "SYS"}}), "NV# is a bond of so many NVLinks; PIX is across one PCIe switch; SYS is across the link between NUMA nodes"},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %q, want %q", tt.what, tt.got, tt.want)
		}
	}
}

// TestMachineStandsInBothRenderings: a recording and a dry run show the GPUs.
func TestMachineStandsInBothRenderings(t *testing.T) {
	s := testRecording()
	s.Header.Machine = testMachine()
	var recording, dry bytes.Buffer
	if err := Recording(&recording, s); err != nil {
		t.Fatal(err)
	}
	if err := DryRun(&dry, &profile.Inventory{Backend: "cpu", Machine: testMachine()}, &profile.Outlook{}); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"recording": recording.String(), "dry run": dry.String()} {
		for _, want := range []string{"NVIDIA H100 80GB", "MIG 3g.40gb", "GPU0   X     NV18", "the GPUs are not described in full"} {
			if !strings.Contains(text, want) {
				t.Errorf("the %s does not show %q:\n%s", name, want, text)
			}
		}
	}
}

func TestEveryMachineOfAJobIsShown(t *testing.T) {
	var out bytes.Buffer
	p, n := &printer{w: &out}, &notes{}
	machines(p, n, profile.Machine{Host: "a", CPU: "one", Cores: 4}, profile.Machine{Host: "b", CPU: "two", Cores: 8, Missing: "no driver"})
	n.render(p)
	for _, want := range []string{"machine a: one, 4 cores", "machine b: two, 8 cores", "no GPU: no driver"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

//go:build cgo && linux

package nvml

import (
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/profile"
)

// spoiled is, by function of the library, what GPU 0 of the fake loses with it,
// by the name that the field has in the message and the JSON names of its Go
// fields. Whether a function refuses or is not there, the rest must survive.
var spoiled = []struct {
	symbol string
	what   string
	gone   func(d *profile.NVIDIADevice)
}{
	{"nvmlDeviceGetPciInfo_v3", "PCI bus id", func(d *profile.NVIDIADevice) { d.PCIBus = "" }},
	{"nvmlDeviceGetCudaComputeCapability", "compute capability", func(d *profile.NVIDIADevice) { d.Compute, d.SMs = "", 0 }},
	{"nvmlDeviceGetNumGpuCores", "number of CUDA cores", func(d *profile.NVIDIADevice) { d.Cores, d.SMs = 0, 0 }},
	{"nvmlDeviceGetClockInfo", "SM clock and memory clock", func(d *profile.NVIDIADevice) { d.SMClock, d.MemoryClock = 0, 0 }},
	{"nvmlDeviceGetMaxClockInfo", "largest SM clock and largest memory clock", func(d *profile.NVIDIADevice) { d.MaxSMClock, d.MaxMemoryClock = 0, 0 }},
	{"nvmlDeviceGetPowerUsage", "power", func(d *profile.NVIDIADevice) { d.Power = 0 }},
	{"nvmlDeviceGetEnforcedPowerLimit", "power limit", func(d *profile.NVIDIADevice) { d.PowerLimit = 0 }},
	{"nvmlDeviceGetTemperature", "temperature", func(d *profile.NVIDIADevice) { d.Temperature = nil }},
	{"nvmlDeviceGetCurrentClocksEventReasons", "clock event reasons", func(d *profile.NVIDIADevice) { d.ClockReasons = nil }},
	{"nvmlDeviceGetViolationStatus", "power violations and thermal violations", func(d *profile.NVIDIADevice) { d.PowerViolation, d.ThermalViolation = nil, nil }},
	{"nvmlDeviceGetPersistenceMode", "persistence mode", func(d *profile.NVIDIADevice) { d.Persistence = "" }},
	{"nvmlDeviceGetEccMode", "ECC mode", func(d *profile.NVIDIADevice) { d.ECC = "" }},
	{"nvmlDeviceGetTotalEccErrors", "ECC errors", func(d *profile.NVIDIADevice) { d.ECCErrors = nil }},
	{"nvmlDeviceGetMigMode", "MIG mode", func(d *profile.NVIDIADevice) { d.MIG = "" }},
	{"nvmlDeviceGetCurrPcieLinkGeneration", "PCIe generation", func(d *profile.NVIDIADevice) { d.PCIe.Generation = 0 }},
	{"nvmlDeviceGetMaxPcieLinkGeneration", "largest PCIe generation", func(d *profile.NVIDIADevice) { d.PCIe.MaxGeneration = 0 }},
	{"nvmlDeviceGetCurrPcieLinkWidth", "PCIe width", func(d *profile.NVIDIADevice) { d.PCIe.Width = 0 }},
	{"nvmlDeviceGetMaxPcieLinkWidth", "largest PCIe width", func(d *profile.NVIDIADevice) { d.PCIe.MaxWidth = 0 }},
	{"nvmlDeviceGetMemoryAffinity", "NUMA nodes", func(d *profile.NVIDIADevice) { d.NUMANodes = nil }},
	{"nvmlDeviceGetCpuAffinity", "CPU affinity", func(d *profile.NVIDIADevice) { d.CPUAffinity = "" }},
	{"nvmlDeviceGetComputeRunningProcesses_v3", "processes", func(d *profile.NVIDIADevice) { d.Processes = nil }},
}

// wired is GPU 0 as it stands alone in a machine with switches: with nothing
// refused, so that what a test spoils is all that is missing.
func wired() profile.NVIDIADevice {
	d := h200()
	d.NVLinks = switchedLinks(18)
	return d
}

func TestARefusedFieldIsLeftOutAndNamed(t *testing.T) {
	for _, tt := range spoiled {
		t.Run(tt.symbol, func(t *testing.T) {
			want := wired()
			tt.gone(&want)
			got := inChild(t, build(t, "COUNT=1", "SWITCHED", refuse(tt.symbol+"=4")))
			if diff := cmp.Diff([]profile.NVIDIADevice{want}, got.NVIDIA); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if why := "the " + tt.what + " of GPU 0 could not be read: fake error 4"; got.Missing != why {
				t.Errorf("missing %q, want %q", got.Missing, why)
			}
		})
	}
}

// TestALackingFunctionCostsItsFieldAlone takes all of them out at once, and
// three more that belong to NVLinks: a call of any would end the process.
func TestALackingFunctionCostsItsFieldAlone(t *testing.T) {
	macros := []string{"COUNT=1", "SWITCHED"}
	want := wired()
	for i := range want.NVLinks {
		want.NVLinks[i] = profile.NVLink{Link: i}
	}
	links := []string{"nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkVersion"}
	for _, symbol := range links {
		macros = append(macros, without(symbol))
	}
	for _, s := range spoiled {
		macros = append(macros, without(s.symbol))
		s.gone(&want)
	}
	got := inChild(t, build(t, macros...))
	if diff := cmp.Diff([]profile.NVIDIADevice{want}, got.NVIDIA); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	for _, s := range spoiled {
		why := fmt.Sprintf("the %s of GPU 0 could not be read: the driver library lacks %s", s.what, s.symbol)
		if strings.Count(got.Missing, why) != 1 {
			t.Errorf("want once %q in %q", why, got.Missing)
		}
	}
	if n := strings.Count(got.Missing, "; ") + 1; n != len(spoiled)+len(links) {
		t.Errorf("%d problems for %d functions: %s", n, len(spoiled)+len(links), got.Missing)
	}
}

// TestEveryFieldIsAsked: each field of a GPU can be filled by the fake, so that
// a field that is added and never read shows.
func TestEveryFieldIsAsked(t *testing.T) {
	elsewhere := []string{"MIGDevices", "MIGProfile", "NVLinks", "Index"} // by other tests, and 0
	v := reflect.ValueOf(h200())
	for i := range v.NumField() {
		if name := v.Type().Field(i).Name; v.Field(i).IsZero() && !slices.Contains(elsewhere, name) {
			t.Errorf("the fake has no %s", name)
		}
	}
	for _, f := range fields(func(string) bool { return true }) {
		if f.what == "" || len(f.needs) == 0 || slices.ContainsFunc(f.needs, func(n []string) bool { return len(n) == 0 }) {
			t.Errorf("field %q needs %v", f.what, f.needs)
		}
	}
}

func TestRefusalsOfManyGPUsAreSaidOnce(t *testing.T) {
	got := inChild(t, build(t, "COUNT=4", "ALIKE", "SWITCHED",
		refuse("nvmlDeviceGetPowerUsage=3 nvmlDeviceGetTemperature=3 nvmlDeviceGetEccMode@2=4 nvmlDeviceGetName@1=4")))
	want := "the power and temperature of GPUs 0-3 could not be read: fake error 3; " +
		"the name of GPU 1 could not be read: fake error 4; the ECC mode of GPU 2 could not be read: fake error 4"
	if got.Missing != want {
		t.Errorf("missing %q, want %q", got.Missing, want)
	}
}

func TestProblems(t *testing.T) {
	var p problems
	if p.String() != "" {
		t.Errorf("none are %q", p.String())
	}
	p.of(0, "name", "x")
	p.of(0, "UUID", "x")
	p.of(0, "power", "y")
	p.of(0, "memory", "x")
	p.of(2, "power", "y")
	p.of(2, "power", "y")
	p.of(3, "power", "y")
	p.say("the driver is old")
	want := "the driver is old; the name, UUID and memory of GPU 0 could not be read: x; the power of GPUs 0,2-3 could not be read: y"
	if p.String() != want {
		t.Errorf("got  %s\nwant %s", p.String(), want)
	}
}

func TestMembers(t *testing.T) {
	if got := members([]uint{1<<63 | 1, 0, 2}); !slices.Equal(got, []int{0, 63, 129}) {
		t.Errorf("members are %v", got)
	}
	if got := members(nil); got == nil || len(got) != 0 {
		t.Errorf("of an empty set: %#v", got)
	}
}

// The masks are those of nvmlClocksEventReasons in nvml.h.
func TestReasonWords(t *testing.T) {
	for mask, want := range map[uint64]string{
		0: "", 0x1: "gpu_idle", 0x2: "application_clocks", 0x4: "sw_power_cap", 0x8: "hw_slowdown", 0x10: "sync_boost",
		0x20: "sw_thermal_slowdown", 0x40: "hw_thermal_slowdown", 0x80: "hw_power_brake", 0x100: "display_clocks",
		0xc4: "sw_power_cap hw_thermal_slowdown hw_power_brake", 1 << 63: "bit_63",
	} {
		got := reasonWords(mask)
		if got == nil || strings.Join(got, " ") != want {
			t.Errorf("%#x is %#v, want %q", mask, got, want)
		}
	}
}

func TestOthersLeaveThisProcessOut(t *testing.T) {
	self := uint32(os.Getpid())
	got := others([]nvml.ProcessInfo{{Pid: self}, {Pid: self + 1}})
	if !slices.Equal(got, []int{int(self) + 1}) {
		t.Errorf("others of %d are %v", self, got)
	}
}

//go:build cgo && linux

package nvml

import (
	"fmt"
	"math"
	"math/bits"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// field is one thing that a GPU is asked. It is skipped and named as missing
// where the library lacks a function that it needs.
type field struct {
	what  string     // as in "the ... of GPU 0 could not be read"
	needs [][]string // functions, each by the names of its versions
	read  func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return
}

// fields is everything that a GPU is asked, in an order in which later ones may
// use what earlier ones found.
func fields(has func(symbol string) bool) []field {
	all := [][]field{identity(), {processors()}, clocks(), power(), {clockReasons(has)}, violations(), modes(), partitions(), pcie(), nvlinks(), placement()}
	var flat []field
	for _, group := range all {
		flat = append(flat, group...)
	}
	return flat
}

// one says that a field needs functions that have one version each.
func one(symbols ...string) [][]string {
	var needs [][]string
	for _, s := range symbols {
		needs = append(needs, []string{s})
	}
	return needs
}

// keep stores what a call of the binding returned, in the units of documents.
func keep[F, T any](to *T, convert func(F) T) func(F, nvml.Return) nvml.Return {
	return func(v F, ret nvml.Return) nvml.Return {
		if ret == nvml.SUCCESS {
			*to = convert(v)
		}
		return ret
	}
}

func same[T any](v T) T { return v }

func known[T any](v T) *T { return &v }

func identity() []field {
	return []field{
		{"name", one("nvmlDeviceGetName"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.Name, text)(g.GetName())
		}},
		{"UUID", one("nvmlDeviceGetUUID"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.UUID, text)(g.GetUUID())
		}},
		{"memory", one("nvmlDeviceGetMemoryInfo"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.Memory, totalMemory)(g.GetMemoryInfo())
		}},
		{"PCI bus id", pciVersions, func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.PCIBus, busID)(g.GetPciInfo())
		}},
		{"compute capability", one("nvmlDeviceGetCudaComputeCapability"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			major, minor, ret := g.GetCudaComputeCapability()
			if ret == nvml.SUCCESS {
				d.Compute = fmt.Sprintf("%d.%d", major, minor)
			}
			return ret
		}},
	}
}

var pciVersions = [][]string{{"nvmlDeviceGetPciInfo_v3", "nvmlDeviceGetPciInfo_v2", "nvmlDeviceGetPciInfo"}}

func totalMemory(m nvml.Memory) units.Bytes { return units.Bytes(min(m.Total, math.MaxInt64)) }

// busID is made from the numbers, because the text stands in another place, and
// shorter, in what the first versions of the functions fill in.
func busID(p nvml.PciInfo) string { return fmt.Sprintf("%08X:%02X:%02X.0", p.Domain, p.Bus, p.Device) }

func processors() field {
	return field{"number of CUDA cores", one("nvmlDeviceGetNumGpuCores"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
		ret := keep(&d.Cores, same[int])(g.GetNumGpuCores())
		d.SMs = profile.MultiprocessorsOf(d.Cores, d.Compute)
		return ret
	}}
}

func megahertz(v uint32) float64 { return float64(v) * 1e6 }

func milliwatts(v uint32) float64 { return float64(v) / 1e3 }

func clocks() []field {
	now, most := one("nvmlDeviceGetClockInfo"), one("nvmlDeviceGetMaxClockInfo")
	return []field{
		{"SM clock", now, func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.SMClock, megahertz)(g.GetClockInfo(nvml.CLOCK_SM))
		}},
		{"largest SM clock", most, func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.MaxSMClock, megahertz)(g.GetMaxClockInfo(nvml.CLOCK_SM))
		}},
		{"memory clock", now, func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.MemoryClock, megahertz)(g.GetClockInfo(nvml.CLOCK_MEM))
		}},
		{"largest memory clock", most, func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.MaxMemoryClock, megahertz)(g.GetMaxClockInfo(nvml.CLOCK_MEM))
		}},
	}
}

func power() []field {
	return []field{
		{"power", one("nvmlDeviceGetPowerUsage"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.Power, milliwatts)(g.GetPowerUsage())
		}},
		{"power limit", one("nvmlDeviceGetEnforcedPowerLimit"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.PowerLimit, milliwatts)(g.GetEnforcedPowerLimit())
		}},
		{"temperature", one("nvmlDeviceGetTemperature"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.Temperature, func(c uint32) *int { return known(int(c)) })(g.GetTemperature(nvml.TEMPERATURE_GPU))
		}},
	}
}

// clockReasons takes the function by the name that the library has: since
// driver 535 the reasons are those of events, before they were of throttling.
func clockReasons(has func(symbol string) bool) field {
	const current, old = "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
	return field{"clock event reasons", [][]string{{current, old}}, func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
		if has(current) {
			return keep(&d.ClockReasons, reasonWords)(g.GetCurrentClocksEventReasons())
		}
		return keep(&d.ClockReasons, reasonWords)(g.GetCurrentClocksThrottleReasons())
	}}
}

// reasonWords names the bits of nvmlClocksEventReasons; it is never nil.
func reasonWords(mask uint64) []string {
	names := map[int]string{
		0: "gpu_idle", 1: "application_clocks", 2: "sw_power_cap", 3: "hw_slowdown", 4: "sync_boost",
		5: "sw_thermal_slowdown", 6: "hw_thermal_slowdown", 7: "hw_power_brake", 8: "display_clocks",
	}
	words := []string{}
	for ; mask != 0; mask &= mask - 1 {
		bit := bits.TrailingZeros64(mask)
		word, ok := names[bit]
		if !ok {
			word = fmt.Sprintf("bit_%d", bit)
		}
		words = append(words, word)
	}
	return words
}

func violations() []field {
	needs := one("nvmlDeviceGetViolationStatus")
	return []field{
		{"power violations", needs, func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.PowerViolation, violated)(g.GetViolationStatus(nvml.PERF_POLICY_POWER))
		}},
		{"thermal violations", needs, func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.ThermalViolation, violated)(g.GetViolationStatus(nvml.PERF_POLICY_THERMAL))
		}},
	}
}

// violated is in ns for NVML, unlike the time stamp beside it, which is in us.
func violated(v nvml.ViolationTime) *units.Seconds {
	return known(units.Seconds(float64(v.ViolationTime) / 1e9))
}

func modes() []field {
	return []field{
		{"persistence mode", one("nvmlDeviceGetPersistenceMode"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.Persistence, switched)(g.GetPersistenceMode())
		}},
		{"ECC mode", one("nvmlDeviceGetEccMode"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			now, _, ret := g.GetEccMode()
			return keep(&d.ECC, switched)(now, ret)
		}},
		{"ECC errors", one("nvmlDeviceGetTotalEccErrors"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.ECCErrors, known[uint64])(g.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC))
		}},
	}
}

func switched(s nvml.EnableState) profile.Switch {
	if s == nvml.FEATURE_ENABLED {
		return profile.SwitchOn
	}
	return profile.SwitchOff
}

func pcie() []field {
	return []field{
		{"PCIe generation", one("nvmlDeviceGetCurrPcieLinkGeneration"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.PCIe.Generation, same[int])(g.GetCurrPcieLinkGeneration())
		}},
		{"largest PCIe generation", one("nvmlDeviceGetMaxPcieLinkGeneration"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.PCIe.MaxGeneration, same[int])(g.GetMaxPcieLinkGeneration())
		}},
		{"PCIe width", one("nvmlDeviceGetCurrPcieLinkWidth"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.PCIe.Width, same[int])(g.GetCurrPcieLinkWidth())
		}},
		{"largest PCIe width", one("nvmlDeviceGetMaxPcieLinkWidth"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.PCIe.MaxWidth, same[int])(g.GetMaxPcieLinkWidth())
		}},
	}
}

// The most processors and NUMA nodes that Linux is built for.
const (
	maxCPUs  = 8192
	maxNodes = 1024
)

func placement() []field {
	return []field{
		{"NUMA nodes", one("nvmlDeviceGetMemoryAffinity"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.NUMANodes, members)(g.GetMemoryAffinity(maxNodes, nvml.AFFINITY_SCOPE_NODE))
		}},
		{"CPU affinity", one("nvmlDeviceGetCpuAffinity"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.CPUAffinity, func(set []uint) string { return units.Spans(members(set)) })(g.GetCpuAffinity(maxCPUs))
		}},
		{"processes", [][]string{{"nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2", "nvmlDeviceGetComputeRunningProcesses"}}, func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return keep(&d.Processes, others)(g.GetComputeRunningProcesses())
		}},
	}
}

// members lists the bits of a set; it is never nil.
func members(set []uint) []int {
	numbers := []int{}
	for i, word := range set {
		for ; word != 0; word &= word - 1 {
			numbers = append(numbers, i*bits.UintSize+bits.TrailingZeros(word))
		}
	}
	return numbers
}

// others are the processes that are not this one; it is never nil.
func others(all []nvml.ProcessInfo) []int {
	pids := []int{}
	for _, p := range all {
		if int(p.Pid) != os.Getpid() {
			pids = append(pids, int(p.Pid))
		}
	}
	return pids
}

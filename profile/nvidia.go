package profile

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

// NVIDIADevice is one GPU as NVML describes it at the moment of the inventory.
// What NVML refuses to say is absent, never zero: a field whose zero is an
// answer is therefore a pointer, or a list that is absent where it is unknown
// and empty where there is nothing.
type NVIDIADevice struct {
	Index   int         `json:"index"` // NVML's, which follows PCI bus ids; CUDA's order may differ
	Name    string      `json:"name"`
	UUID    string      `json:"uuid"`
	Memory  units.Bytes `json:"memory_bytes"`
	Driver  string      `json:"driver"`
	PCIBus  string      `json:"pci_bus_id,omitzero"`         // domain:bus:device.function in upper-case hex, 00000000:3B:00.0
	Compute string      `json:"compute_capability,omitzero"` // "9.0"
	Cores   int         `json:"cuda_cores,omitzero"`
	// SMs is the number of multiprocessors: Cores over the cores that one has at
	// this compute capability; absent where either is unknown.
	SMs int `json:"multiprocessors,omitzero"`

	SMClock        float64 `json:"sm_clock_hz,omitzero"` // now; an idle GPU clocks down
	MaxSMClock     float64 `json:"sm_clock_max_hz,omitzero"`
	MemoryClock    float64 `json:"memory_clock_hz,omitzero"`
	MaxMemoryClock float64 `json:"memory_clock_max_hz,omitzero"`
	Power          float64 `json:"power_w,omitzero"`       // now
	PowerLimit     float64 `json:"power_limit_w,omitzero"` // as enforced, whoever set it
	Temperature    *int    `json:"temperature_c,omitzero"` // of the chip

	ClockReasons     []string       `json:"clock_reasons,omitzero"`     // why clocks are below the most now, see package nvml
	PowerViolation   *units.Seconds `json:"power_violation_s,omitzero"` // slowed down by the power limit so far, since the driver was loaded
	ThermalViolation *units.Seconds `json:"thermal_violation_s,omitzero"`
	Persistence      Switch         `json:"persistence_mode,omitzero"`
	ECC              Switch         `json:"ecc_mode,omitzero"`
	ECCErrors        *uint64        `json:"ecc_uncorrected_errors,omitzero"` // of all memories since the last reset

	MIG        Switch      `json:"mig_mode,omitzero"`
	MIGDevices []MIGDevice `json:"mig_devices,omitzero"`
	MIGProfile string      `json:"mig_profile,omitzero"` // of the part that Instances made of this GPU; "" on a whole one

	PCIe        PCIe     `json:"pcie,omitzero"`
	NVLinks     []NVLink `json:"nvlinks,omitzero"`      // active ones
	NUMANodes   []int    `json:"numa_nodes,omitzero"`   // whose memory is nearest
	CPUAffinity string   `json:"cpu_affinity,omitzero"` // nearest processors, "0-47,96-143"
	Processes   []int    `json:"processes,omitzero"`    // pids of others that compute on it, as the driver's namespace counts them
}

// Switch is a setting of a GPU that was read; empty where it could not be.
type Switch string

// The states of a Switch.
const (
	SwitchOn  Switch = "on"
	SwitchOff Switch = "off"
)

// MIGDevice is a part of a GPU that is partitioned, as processes see it.
type MIGDevice struct {
	UUID    string      `json:"uuid"`
	Profile string      `json:"profile,omitzero"` // "1g.18gb"
	Memory  units.Bytes `json:"memory_bytes,omitzero"`
	SMs     int         `json:"multiprocessors,omitzero"`
}

// PCIe is a GPU's link to the host. An idle GPU may hold it at a lower
// generation than it uses under load.
type PCIe struct {
	Generation    int `json:"generation,omitzero"`
	MaxGeneration int `json:"generation_max,omitzero"` // of GPU and slot together
	Width         int `json:"width_lanes,omitzero"`
	MaxWidth      int `json:"width_max_lanes,omitzero"`
}

// NVLink is one active link of a GPU.
type NVLink struct {
	Link    int        `json:"link"`
	Remote  string     `json:"remote_pci_bus_id,omitzero"`
	Kind    RemoteKind `json:"remote_kind,omitzero"`
	Version string     `json:"version,omitzero"` // "4.0"
}

// RemoteKind is what an NVLink ends at.
type RemoteKind string

// The kinds of remote ends that NVML tells apart.
const (
	RemoteGPU    RemoteKind = "gpu"
	RemoteNPU    RemoteKind = "npu" // an IBM POWER processor
	RemoteSwitch RemoteKind = "switch"
)

// NVIDIALink is the best path between two GPUs of a machine, by their NVML
// indices with A < B, in the words of `nvidia-smi topo -m`: NV18 for 18
// NVLinks, straight or through switches; else by where their PCIe paths meet,
// from near to far, PSB (one board), PIX (one PCIe switch), PXB (several),
// PHB (a host bridge), NODE (one NUMA node), SYS (across NUMA nodes).
type NVIDIALink struct {
	A    int    `json:"a"`
	B    int    `json:"b"`
	Link string `json:"link"`
}

// Instances are what a process can be put on: the parts of a GPU in MIG mode,
// else the GPU itself. A part has the GPU's clocks, power and host link, which
// it shares, and neither its NVLinks nor its processes. A GPU in MIG mode
// without parts has no instance, for nothing can run on it.
func (d NVIDIADevice) Instances() []NVIDIADevice {
	if d.MIG != SwitchOn {
		return []NVIDIADevice{d}
	}
	var parts []NVIDIADevice
	for _, m := range d.MIGDevices {
		part := d
		part.UUID, part.MIGProfile, part.Memory, part.SMs = m.UUID, m.Profile, m.Memory, m.SMs
		part.Cores, part.MIGDevices, part.NVLinks, part.Processes = 0, nil, nil, nil
		parts = append(parts, part)
	}
	return parts
}

// Identity says in one line what makes two GPUs, or two parts of GPUs, one
// device type: name, multiprocessors, memory, MIG profile, enforced power limit
// and driver. These move times and are the same on every
// card of a kind. Left out is what tells cards of a kind apart (UUID, bus,
// index, place on the board) or moves by itself (clocks, power, temperature,
// counters, the PCIe generation of the moment), and the ECC mode, which shows
// in the memory of the cards that it costs bandwidth. Unknown fields are
// named as such, so that they never equal known ones.
func (d NVIDIADevice) Identity() string {
	part := d.MIGProfile
	if part == "" {
		part = "whole"
		if d.MIG == SwitchOn {
			part = "in MIG mode"
		}
	}
	driver := "unknown driver"
	if d.Driver != "" {
		driver = "driver " + d.Driver
	}
	return strings.Join([]string{
		cmp.Or(d.Name, "unknown name"),
		counted(d.SMs, "multiprocessors"),
		counted(int(d.Memory), "bytes"),
		part,
		powerLimit(d.PowerLimit),
		driver,
	}, ", ")
}

func counted(n int, what string) string {
	if n <= 0 {
		return "unknown " + what
	}
	return fmt.Sprintf("%d %s", n, what)
}

// powerLimit rounds to whole watts: the driver reports mW, and what it enforces
// may differ from what was asked for by some of them.
func powerLimit(w float64) string {
	if w <= 0 {
		return "unknown power limit"
	}
	return fmt.Sprintf("%.0f W", w)
}

// MultiprocessorsOf is how many multiprocessors have so many CUDA cores at a
// compute capability such as "9.0". NVML counts cores only; the cores of a
// multiprocessor are the fp32 results per clock of the table "Throughput of
// Native Arithmetic Instructions" in the CUDA C++ programming guide. It is 0
// for a capability that is not known here, or a number of cores that does not
// divide: a guess would put unlike GPUs into one device type.
func MultiprocessorsOf(cores int, capability string) int {
	per := map[string]int{
		"5.0": 128, "5.2": 128, "5.3": 128, "6.0": 64, "6.1": 128, "6.2": 128,
		"7.0": 64, "7.2": 64, "7.5": 64, "8.0": 64, "8.6": 128, "8.7": 128, "8.9": 128,
		"9.0": 128, "10.0": 128, "10.3": 128, "12.0": 128, "12.1": 128,
	}[capability]
	if per == 0 || cores%per != 0 {
		return 0
	}
	return cores / per
}

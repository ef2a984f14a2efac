//go:build cgo && linux

package nvml

import (
	"errors"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel/evenkeel/profile"
)

// partitions asks how a GPU is divided. A part has no number of CUDA cores in
// NVML but has its multiprocessors in the attributes; a whole GPU is the reverse.
func partitions() []field {
	parts := []string{"nvmlDeviceGetMaxMigDeviceCount", "nvmlDeviceGetMigDeviceHandleByIndex"}
	attributes := append(one(parts...), []string{"nvmlDeviceGetAttributes_v2", "nvmlDeviceGetAttributes"})
	return []field{
		{"MIG mode", one("nvmlDeviceGetMigMode"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			now, _, ret := g.GetMigMode()
			return keep(&d.MIG, switched)(nvml.EnableState(now), ret)
		}},
		{"MIG devices", one(parts...), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			if d.MIG != profile.SwitchOn {
				return nvml.SUCCESS
			}
			d.MIGDevices = []profile.MIGDevice{}
			return eachPart(g, func(_ int, part nvml.Device) nvml.Return {
				m, ret := migDevice(part)
				d.MIGDevices = append(d.MIGDevices, m)
				return ret
			})
		}},
		{"MIG multiprocessors", attributes, func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			if len(d.MIGDevices) == 0 {
				return nvml.SUCCESS
			}
			return eachPart(g, func(n int, part nvml.Device) nvml.Return {
				a, ret := part.GetAttributes()
				if ret == nvml.SUCCESS && n < len(d.MIGDevices) {
					d.MIGDevices[n].SMs = int(a.MultiprocessorCount)
				}
				return ret
			})
		}},
	}
}

// eachPart calls f for the MIG devices of a GPU, numbered without the gaps that
// NVML leaves between them. It goes on after a refusal and returns the first one.
func eachPart(g nvml.Device, f func(n int, part nvml.Device) nvml.Return) nvml.Return {
	most, first := g.GetMaxMigDeviceCount()
	n := 0
	for i := range most {
		part, ret := g.GetMigDeviceHandleByIndex(i)
		if errors.Is(ret, nvml.ERROR_NOT_FOUND) {
			continue
		}
		if ret == nvml.SUCCESS {
			ret = f(n, part)
			n++
		}
		first = firstRefusal(first, ret)
	}
	return first
}

func firstRefusal(first, ret nvml.Return) nvml.Return {
	if first != nvml.SUCCESS {
		return first
	}
	return ret
}

func migDevice(part nvml.Device) (m profile.MIGDevice, first nvml.Return) {
	first = keep(&m.UUID, text)(part.GetUUID())
	first = firstRefusal(first, keep(&m.Profile, migProfile)(part.GetName()))
	first = firstRefusal(first, keep(&m.Memory, totalMemory)(part.GetMemoryInfo()))
	return m, first
}

// migProfile cuts "1g.18gb" out of "NVIDIA H200 MIG 1g.18gb". NVML has functions
// for it too, but those want an administrator.
func migProfile(name string) string {
	_, after, found := strings.Cut(text(name), " MIG ")
	if !found {
		return text(name)
	}
	return after
}

//go:build cgo && linux

package nvml

import (
	"errors"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/evenkeel/evenkeel/profile"
)

// nvlinks asks which NVLinks are up, and then where each of those ends.
func nvlinks() []field {
	return []field{
		{"NVLinks", one("nvmlDeviceGetNvLinkState"), func(g nvml.Device, d *profile.NVIDIADevice) (ret nvml.Return) {
			d.NVLinks, ret = activeLinks(g)
			return ret
		}},
		{"NVLink remotes", [][]string{{"nvmlDeviceGetNvLinkRemotePciInfo_v2", "nvmlDeviceGetNvLinkRemotePciInfo"}}, func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return eachLink(d, func(l *profile.NVLink) nvml.Return {
				return keep(&l.Remote, busID)(g.GetNvLinkRemotePciInfo(l.Link))
			})
		}},
		{"NVLink remote kinds", one("nvmlDeviceGetNvLinkRemoteDeviceType"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return eachLink(d, func(l *profile.NVLink) nvml.Return {
				return keep(&l.Kind, remoteKind)(g.GetNvLinkRemoteDeviceType(l.Link))
			})
		}},
		{"NVLink versions", one("nvmlDeviceGetNvLinkVersion"), func(g nvml.Device, d *profile.NVIDIADevice) nvml.Return {
			return eachLink(d, func(l *profile.NVLink) nvml.Return {
				return keep(&l.Version, linkVersion)(g.GetNvLinkVersion(l.Link))
			})
		}},
	}
}

// activeLinks is nil where the links are not known, and empty where none is up.
// A GPU that has fewer links than NVML can count calls the others invalid; some
// say of a link that is not wired that it is not supported, and one that says so
// of all has no NVLink.
func activeLinks(g nvml.Device) ([]profile.NVLink, nvml.Return) {
	links, refused := []profile.NVLink{}, 0
	for i := range nvml.NVLINK_MAX_LINKS {
		state, ret := g.GetNvLinkState(i)
		switch {
		case errors.Is(ret, nvml.ERROR_INVALID_ARGUMENT):
			return links, nvml.SUCCESS
		case errors.Is(ret, nvml.ERROR_NOT_SUPPORTED):
			refused++
		case ret != nvml.SUCCESS:
			return nil, ret
		case state == nvml.FEATURE_ENABLED:
			links = append(links, profile.NVLink{Link: i})
		}
	}
	if refused == nvml.NVLINK_MAX_LINKS {
		return nil, nvml.ERROR_NOT_SUPPORTED
	}
	return links, nvml.SUCCESS
}

// eachLink goes on after a refusal and returns the first one.
func eachLink(d *profile.NVIDIADevice, f func(*profile.NVLink) nvml.Return) nvml.Return {
	first := nvml.SUCCESS
	for i := range d.NVLinks {
		first = firstRefusal(first, f(&d.NVLinks[i]))
	}
	return first
}

func remoteKind(t nvml.IntNvLinkDeviceType) profile.RemoteKind {
	switch t {
	case nvml.NVLINK_DEVICE_TYPE_GPU:
		return profile.RemoteGPU
	case nvml.NVLINK_DEVICE_TYPE_IBMNPU:
		return profile.RemoteNPU
	case nvml.NVLINK_DEVICE_TYPE_SWITCH:
		return profile.RemoteSwitch
	}
	return ""
}

// linkVersion reads the values of NVML_NVLINK_VERSION_*, which are not the
// versions themselves.
func linkVersion(v uint32) string {
	names := []string{"", "1.0", "2.0", "2.2", "3.0", "3.1", "4.0", "5.0"}
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("code %d", v)
}

// links finds the best path between each two GPUs: what NVLink offers, else
// where their PCIe paths meet.
func (s *survey) links(devices []profile.NVIDIADevice) []profile.NVIDIALink {
	var links []profile.NVIDIALink
	for j := range devices {
		for i := range j {
			if word := s.path(devices, i, j); word != "" {
				links = append(links, profile.NVIDIALink{A: devices[i].Index, B: devices[j].Index, Link: word})
			}
		}
	}
	return links
}

func (s *survey) path(devices []profile.NVIDIADevice, i, j int) string {
	a, b := &devices[i], &devices[j]
	if n := bonded(a, b); n > 0 && !s.barred(i, j) {
		return fmt.Sprintf("NV%d", n)
	}
	word := ""
	s.try(a.Index, "paths to other GPUs", one("nvmlDeviceGetTopologyCommonAncestor"), func() nvml.Return {
		return keep(&word, pathWord)(s.handles[i].GetTopologyCommonAncestor(s.handles[j]))
	})
	return word
}

// bonded counts the NVLinks between two GPUs: those that end at the other one,
// else through switches as many as the one with fewer has. Parts of a GPU in
// MIG mode have no NVLink.
func bonded(a, b *profile.NVIDIADevice) int {
	if a.MIG == profile.SwitchOn || b.MIG == profile.SwitchOn {
		return 0
	}
	straight := 0
	for _, l := range a.NVLinks {
		if l.Remote != "" && l.Remote == b.PCIBus {
			straight++
		}
	}
	if straight > 0 {
		return straight
	}
	return min(switchLinks(a), switchLinks(b))
}

func switchLinks(d *profile.NVIDIADevice) int {
	n := 0
	for _, l := range d.NVLinks {
		if l.Kind == profile.RemoteSwitch {
			n++
		}
	}
	return n
}

// barred says whether the driver denies that two GPUs reach each other over
// NVLink, as where the fabric is not set up or divided between tenants. A
// library that cannot be asked denies nothing.
func (s *survey) barred(i, j int) bool {
	if !s.has("nvmlDeviceGetP2PStatus") {
		return false
	}
	status, ret := s.handles[i].GetP2PStatus(s.handles[j], nvml.P2P_CAPS_INDEX_NVLINK)
	return ret == nvml.SUCCESS && status != nvml.P2P_STATUS_OK
}

// pathWord is the word of `nvidia-smi topo -m` for where two PCIe paths meet.
func pathWord(level nvml.GpuTopologyLevel) string {
	switch level {
	case nvml.TOPOLOGY_INTERNAL:
		return "PSB"
	case nvml.TOPOLOGY_SINGLE:
		return "PIX"
	case nvml.TOPOLOGY_MULTIPLE:
		return "PXB"
	case nvml.TOPOLOGY_HOSTBRIDGE:
		return "PHB"
	case nvml.TOPOLOGY_NODE:
		return "NODE"
	case nvml.TOPOLOGY_SYSTEM:
		return "SYS"
	}
	return fmt.Sprintf("level %d", level)
}

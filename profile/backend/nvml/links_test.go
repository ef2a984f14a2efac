//go:build cgo && linux

package nvml

import (
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile"
)

// switchedLinks are the links of a GPU of the fake with switches: four of them,
// at the buses C0 to C3 in turn.
func switchedLinks(n int) []profile.NVLink {
	var links []profile.NVLink
	for i := range n {
		links = append(links, profile.NVLink{Link: i, Remote: fmt.Sprintf("00000000:%02X:00.0", 0xc0+i%4), Kind: profile.RemoteSwitch, Version: "4.0"})
	}
	return links
}

func directLinks(n int, remote string) []profile.NVLink {
	var links []profile.NVLink
	for i := range n {
		links = append(links, profile.NVLink{Link: i, Remote: remote, Kind: profile.RemoteGPU, Version: "3.0"})
	}
	return links
}

// matrix writes links in the order in which they stand: "0-1 NV4, 0-2 PHB".
func matrix(links []profile.NVIDIALink) string {
	var parts []string
	for _, l := range links {
		parts = append(parts, fmt.Sprintf("%d-%d %s", l.A, l.B, l.Link))
	}
	return strings.Join(parts, ", ")
}

// The PCIe levels of the fake's pairs: 0-1 PIX, 0-2 PHB, 1-2 NODE, 0-3 and 1-3
// SYS, 2-3 PXB.
func TestLinksBetweenFourGPUs(t *testing.T) {
	pcie := "0-1 PIX, 0-2 PHB, 1-2 NODE, 0-3 SYS, 1-3 SYS, 2-3 PXB"
	noNVLinks := "the NVLinks of GPUs 0-3 could not be read: fake error 3"
	refused := refuse("nvmlDeviceGetTopologyCommonAncestor@1=4")
	for _, tt := range []struct {
		name   string
		macros []string
		want   string
		why    string
	}{
		{"PCIe alone", nil, pcie, noNVLinks},
		{"straight", []string{"DIRECT"}, "0-1 NV4, 0-2 PHB, 1-2 NODE, 0-3 SYS, 1-3 SYS, 2-3 NV2", ""},
		{"through switches", []string{"SWITCHED"}, "0-1 NV18, 0-2 NV18, 1-2 NV18, 0-3 NV17, 1-3 NV17, 2-3 NV17", ""},
		{"fabric not set up", []string{"SWITCHED", "P2P=4"}, pcie, ""},
		{"P2P refused", []string{"DIRECT", refuse("nvmlDeviceGetP2PStatus=3")}, "0-1 NV4, 0-2 PHB, 1-2 NODE, 0-3 SYS, 1-3 SYS, 2-3 NV2", ""},
		{"P2P lacking", []string{"DIRECT", without("nvmlDeviceGetP2PStatus")}, "0-1 NV4, 0-2 PHB, 1-2 NODE, 0-3 SYS, 1-3 SYS, 2-3 NV2", ""},
		{
			"one GPU refuses its paths",
			[]string{refused},
			"0-1 PIX, 0-2 PHB, 0-3 SYS, 2-3 PXB",
			noNVLinks + "; the paths to other GPUs of GPU 1 could not be read: fake error 4",
		},
		{
			"paths lacking",
			[]string{"DIRECT", without("nvmlDeviceGetTopologyCommonAncestor")},
			"0-1 NV4, 2-3 NV2",
			"the paths to other GPUs of GPUs 0-1 could not be read: the driver library lacks nvmlDeviceGetTopologyCommonAncestor",
		},
		{"a GPU lost", []string{refuse("nvmlDeviceGetHandleByIndex_v2@1=15"), "SWITCHED"}, "0-2 NV18, 0-3 NV17, 2-3 NV17", "GPU 1 could not be read: fake error 15"},
		{"NVLinks lost", []string{refuse("nvmlDeviceGetNvLinkState=15"), "SWITCHED"}, pcie, "the NVLinks of GPUs 0-3 could not be read: fake error 15"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := inChild(t, build(t, append(tt.macros, "COUNT=4", "ALIKE")...))
			if m := matrix(got.NVIDIALinks); m != tt.want {
				t.Errorf("links %s\nwant  %s", m, tt.want)
			}
			if got.Missing != tt.why {
				t.Errorf("missing %q\nwant    %q", got.Missing, tt.why)
			}
		})
	}
}

func TestNVLinksOfAGPU(t *testing.T) {
	got := inChild(t, build(t, "COUNT=4", "ALIKE", "DIRECT"))
	for i, want := range [][]profile.NVLink{
		directLinks(4, "00000000:2A:00.0"), directLinks(4, "00000000:1A:00.0"),
		directLinks(2, "00000000:4A:00.0"), directLinks(2, "00000000:3A:00.0"),
	} {
		if diff := cmp.Diff(want, got.NVIDIA[i].NVLinks); diff != "" {
			t.Errorf("GPU %d, -want +got:\n%s", i, diff)
		}
	}
	got = inChild(t, build(t, "COUNT=4", "ALIKE", "SWITCHED"))
	for i, want := range []int{18, 18, 18, 17} {
		if diff := cmp.Diff(switchedLinks(want), got.NVIDIA[i].NVLinks); diff != "" {
			t.Errorf("GPU %d at switches, -want +got:\n%s", i, diff)
		}
	}
}

func TestLinkDetailsRefused(t *testing.T) {
	got := inChild(t, build(t, "COUNT=1", "SWITCHED", refuse("nvmlDeviceGetNvLinkRemotePciInfo_v2=3 nvmlDeviceGetNvLinkVersion=4")))
	want := "the NVLink remotes of GPU 0 could not be read: fake error 3; the NVLink versions of GPU 0 could not be read: fake error 4"
	if got.Missing != want {
		t.Errorf("missing %q, want %q", got.Missing, want)
	}
	if l := got.NVIDIA[0].NVLinks; len(l) != 18 || l[17] != (profile.NVLink{Link: 17, Kind: profile.RemoteSwitch}) {
		t.Errorf("links %+v", l)
	}
}

func TestPathWords(t *testing.T) {
	for level, want := range map[nvml.GpuTopologyLevel]string{0: "PSB", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS", 60: "level 60"} {
		if got := pathWord(level); got != want {
			t.Errorf("level %d is %q, want %q", level, got, want)
		}
	}
}

// The numbers are those of NVML_NVLINK_VERSION_* and nvmlIntNvLinkDeviceType_t.
func TestLinkWords(t *testing.T) {
	for v, want := range map[uint32]string{0: "", 1: "1.0", 3: "2.2", 6: "4.0", 7: "5.0", 8: "code 8"} {
		if got := linkVersion(v); got != want {
			t.Errorf("version %d is %q, want %q", v, got, want)
		}
	}
	for kind, want := range map[nvml.IntNvLinkDeviceType]profile.RemoteKind{0: "gpu", 1: "npu", 2: "switch", 255: ""} {
		if got := remoteKind(kind); got != want {
			t.Errorf("kind %d is %q, want %q", kind, got, want)
		}
	}
}

func TestMIG(t *testing.T) {
	want := []profile.MIGDevice{
		{UUID: "MIG-0000-1", Profile: "1g.18gb", Memory: 16 * units.GiB, SMs: 16},
		{UUID: "MIG-0000-2", Profile: "3g.71gb", Memory: 69 * units.GiB, SMs: 60},
	}
	got := inChild(t, build(t, "ALIKE", "MIG", "SWITCHED"))
	if d := got.NVIDIA[0]; d.MIG != profile.SwitchOn || !cmp.Equal(d.MIGDevices, want) {
		t.Errorf("MIG %q, devices %+v", d.MIG, d.MIGDevices)
	}
	if d := got.NVIDIA[1]; d.MIG != profile.SwitchOff || d.MIGDevices != nil {
		t.Errorf("GPU 1: MIG %q, devices %+v", d.MIG, d.MIGDevices)
	}
	if m := matrix(got.NVIDIALinks); m != "0-1 PIX" || got.Missing != "" {
		t.Errorf("a partitioned GPU has no NVLink: %s, missing %q", m, got.Missing)
	}
}

func TestMIGRefused(t *testing.T) {
	for _, tt := range []struct {
		macro string
		why   string
		parts int
		last  profile.MIGDevice
	}{
		{
			refuse("nvmlDeviceGetAttributes_v2=4"), "the MIG multiprocessors of GPU 0 could not be read: fake error 4",
			2,
			profile.MIGDevice{UUID: "MIG-0000-2", Profile: "3g.71gb", Memory: 69 * units.GiB},
		},
		{
			without("nvmlDeviceGetAttributes_v2"), "the MIG multiprocessors of GPU 0 could not be read: the driver library lacks nvmlDeviceGetAttributes_v2",
			2,
			profile.MIGDevice{UUID: "MIG-0000-2", Profile: "3g.71gb", Memory: 69 * units.GiB},
		},
		{refuse("nvmlDeviceGetMigDeviceHandleByIndex=4"), "the MIG devices of GPU 0 could not be read: fake error 4", 0, profile.MIGDevice{}},
		{without("nvmlDeviceGetMaxMigDeviceCount"), "the MIG devices and MIG multiprocessors of GPU 0 could not be read: the driver library lacks nvmlDeviceGetMaxMigDeviceCount", 0, profile.MIGDevice{}},
	} {
		t.Run(tt.macro, func(t *testing.T) {
			got := inChild(t, build(t, "COUNT=1", "MIG", "SWITCHED", tt.macro))
			if got.Missing != tt.why {
				t.Errorf("missing %q\nwant    %q", got.Missing, tt.why)
			}
			parts := got.NVIDIA[0].MIGDevices
			if len(parts) != tt.parts || tt.parts > 0 && parts[tt.parts-1] != tt.last {
				t.Errorf("parts %+v", parts)
			}
		})
	}
}

func TestMIGProfile(t *testing.T) {
	for name, want := range map[string]string{"NVIDIA A100-SXM4-40GB MIG 1g.5gb": "1g.5gb", "NVIDIA H200 MIG 1g.18gb+me": "1g.18gb+me", "odd": "odd"} {
		if got := migProfile(name); got != want {
			t.Errorf("%q is %q, want %q", name, got, want)
		}
	}
}

package importer

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestModelsAreFoundByWhatDriversPrint(t *testing.T) {
	for text, want := range map[string]string{
		"h100_sxm": "h100_sxm", "H100-SXM": "h100_sxm", "NVIDIA H100 80GB HBM3": "h100_sxm", "NVIDIA-H100-80GB-HBM3": "h100_sxm",
		"NVIDIA H100 PCIe": "h100_pcie", "NVIDIA H100 NVL": "h100_nvl", "NVIDIA H200": "h200_sxm", "NVIDIA H200 NVL": "h200_nvl",
		"A100-SXM4-40GB": "a100_sxm_40gb", "NVIDIA A100-SXM4-80GB": "a100_sxm", "A100-SXM-80GB": "a100_sxm", "NVIDIA A100 80GB PCIe": "a100_pcie",
		"A100-PCIE-40GB": "a100_pcie_40gb", "NVIDIA A800-SXM4-80GB": "a800_sxm", "NVIDIA A30": "a30", "NVIDIA A10": "a10", "NVIDIA A10G": "a10g", "A40": "a40",
		"NVIDIA RTX A6000": "a6000", "NVIDIA RTX 6000 Ada Generation": "rtx_6000_ada",
		"NVIDIA RTX PRO 6000 Blackwell Server Edition": "rtx_pro_6000_server", "NVIDIA RTX PRO 6000 Blackwell Workstation Edition": "rtx_pro_6000_workstation",
		"NVIDIA B200": "b200_sxm", "NVIDIA GB200": "gb200", "NVIDIA B300 SXM6 AC": "b300_sxm", "NVIDIA GB300": "gb300", "NVIDIA GH200 480GB": "gh200",
		"Intel(R) Arc(TM) Pro B60 Graphics": "b60", "NVIDIA L4": "l4", "NVIDIA L40S": "l40s", "NVIDIA L40": "l40", "Tesla T4": "t4",
		"Tesla V100-SXM2-16GB": "v100_sxm_16gb", "Tesla V100-SXM2-32GB": "v100_sxm_32gb", "Tesla V100-PCIE-32GB": "v100_pcie_32gb",
		"NVIDIA GeForce RTX 4090": "rtx_4090", "RTX 4090 PCIe": "rtx_4090", "NVIDIA GeForce RTX 4090 D": "rtx_4090d", "RTX 4090D": "rtx_4090d",
		"NVIDIA GeForce RTX 2080 Ti": "rtx_2080_ti", "NVIDIA GeForce RTX 5090": "rtx_5090",
		"AMD Instinct MI300X VF": "mi300x", "AMD Instinct MI300X OAM": "mi300x", "AMD Instinct MI250X": "mi250x", "AMD Instinct MI355X": "mi355x",
		// Several models, none, or a slice of one: nobody is named.
		"A100": "", "H100": "", "NVIDIA H100": "", "V100": "", "RTX 6000": "", "RTX PRO 6000 Blackwell": "", "A100-SXM4": "", "RTX": "", "80GB": "", "sxm": "",
		"AMD Radeon Graphics": "", "": "", " ": "", "Quadro RTX 6000": "", "NVIDIA A100-SXM4-80GB MIG 1g.10gb": "", "A40-48Q": "", "H100X": "", "a100_dgx": "",
	} {
		m, ok := Options{}.model(text)
		if m.Name != want || ok != (want != "") {
			t.Errorf("%q is %q, %v; want %q", text, m.Name, ok, want)
		}
	}
}

// Every name of the table leads to its own row, and every figure can be true.
func TestModelsTable(t *testing.T) {
	all := Models()
	if len(all) < 40 {
		t.Fatalf("%d models", len(all))
	}
	for _, m := range all {
		for _, text := range append([]string{m.Name, strings.ToUpper(m.Name)}, m.also...) {
			if got, ok := (Options{}).model(text); !ok || got.Name != m.Name {
				t.Errorf("%q leads to %q, not to %q", text, got.Name, m.Name)
			}
		}
		d := m.Of("stack-1")
		if err := d.Validate(); err != nil || d.Name != m.Name+"/stack-1" {
			t.Errorf("%s: %q, %v", m.Name, d.Name, err)
		}
		s := m.Sheet
		switch {
		case m.Parallel < 20 || m.Parallel > 400 || m.Memory < 11*gib || m.Memory > 300*gib:
			t.Errorf("%s: %d units, %s", m.Name, m.Parallel, m.Memory)
		case s.BF16PerS < 5e13 || s.BF16PerS > 3e15 || s.FP8PerS != 0 && (s.FP8PerS < s.BF16PerS || s.FP8PerS > 2.1*s.BF16PerS):
			t.Errorf("%s: peaks %g, %g", m.Name, s.BF16PerS, s.FP8PerS)
		case s.MemoryPerS < 3e11 || s.MemoryPerS > 9e12 || s.LinkPerS > 1e12 || s.HostPerS < 1.5e10:
			t.Errorf("%s: rates %g, %g, %g", m.Name, s.MemoryPerS, s.LinkPerS, s.HostPerS)
		case m.Fabric == "nvlink" && s.LinkPerS <= 0, s.Arch == "" && m.Name != "b60":
			t.Errorf("%s: %+v", m.Name, m)
		}
		// The ridge of every known GPU lies between 60 and 620 FLOPs a byte.
		if ridge := s.BF16PerS / s.MemoryPerS; ridge < 30 || ridge > 620 {
			t.Errorf("%s: %g FLOPs a byte", m.Name, ridge)
		}
	}
}

// Cards with GDDR keep the codes of ECC, which is on by default, in the memory itself: 1/16 of
// what the datasheet says is not there. MiB are what nvidia-smi prints of cards as delivered.
func TestMemoryIsWhatTheDriverLeaves(t *testing.T) {
	for name, mib := range map[string]float64{
		"NVIDIA A10 24GB": 23028, "NVIDIA A10G": 23028, "NVIDIA A40 48GB": 46068, "NVIDIA L4 24GB": 23034, "NVIDIA L40 48GB": 46068,
		"NVIDIA L40S 48GB": 46068, "Tesla T4 16GB": 15360,
		"GH200 96GB HBM3": 97871, "NVIDIA H20": 97871, "RTX 5090 32GB": 32607, "RTX PRO 6000 Workstation 96GB": 97887, "RTX PRO 6000 Server 96GB": 97887,
		// These have no such codes, or keep them apart.
		"NVIDIA A30": 24576, "NVIDIA A100-SXM4-80GB": 81920, "NVIDIA A100-SXM4-40GB": 40960, "NVIDIA GeForce RTX 3090": 24576,
	} {
		m, ok := ModelOf(name)
		if got := float64(m.Memory) / (1 << 20); !ok || got > mib*1.0002 || got < mib*0.9998 {
			t.Errorf("%s: %.0f MiB, want %.0f", name, got, mib)
		}
	}
}

func TestUnknownGPUsAreToldApart(t *testing.T) {
	for name, want := range map[string]string{
		"A100":                `the GPU "A100" could be a100_pcie or a100_pcie_40gb or a100_sxm or a100_sxm_40gb; say which with --device, or describe it in a table with --devices`,
		"h100_sxn":            `the GPU "h100_sxn" is not known; the nearest names are h100_sxm, `,
		"martian_9":           `is not known, nor is a name like it (evenkeel show --references lists those that are); say which with --device`,
		"mi300":               `the nearest names are mi300x, `,
		"AMD Instinct MI300A": `the nearest names are mi300x, mi3`,
		"Radeon RX 7900 XTX":  `nor is a name like it`,
		"":                    `say which with --device`,
	} {
		if err := (Options{}).unknown(name); !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// Whom --device itself names wrongly is not told to name a GPU with --device.
func TestAnUnknownDeviceFlagIsToldSo(t *testing.T) {
	want := `the GPU "h100" could be h100_pcie or h100_nvl or h100_sxm; give --device a name that is known and fits no other, or describe it in a table with --devices`
	if err := (Options{Device: "h100"}).unknown("h100"); err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestDevicesAddAndOverride(t *testing.T) {
	sheets, err := ReadDevices("d.csv", strings.NewReader("\ufeffgpu,sms,memory_gib,bf16_tflops,intra_node_gbytes_per_s_per_gpu_one_way,host_gbytes_per_s,sm_version,per_node\r\n"+
		"x1,64,48,200,400,64,91.0,4\r\nh100_sxm,66,,,,,,\r\n"))
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Sheets: sheets}
	m, ok := o.model("x1")
	if !ok || m.Parallel != 64 || m.Memory != 48*gib || m.Sheet.BF16PerS != 2e14 || m.Sheet.LinkPerS != 4e11 || m.Fabric != "nvlink" || m.Sheet.Arch != "sm91" || m.PerNode != 4 {
		t.Errorf("x1: %v %+v", ok, m)
	}
	// What joins GPUs goes by their rates only where both are given, and a known
	// model keeps its own.
	for text, want := range map[string]string{
		"gpu,link_gbytes_per_s,host_gbytes_per_s\nx,32,64\n":              "pcie",
		"gpu,link_gbytes_per_s\nx,400\n":                                  "",
		"gpu,link_gbytes_per_s,host_gbytes_per_s,arch\nx,400,64,gfx1\n":   "xgmi",
		"gpu,link_gbytes_per_s,host_gbytes_per_s,arch\nx,32,32,gfx1\n":    "",
		"gpu,link_gbytes_per_s,host_gbytes_per_s\nmi300x,448,64\n":        "xgmi",
		"gpu,link_gbytes_per_s,host_gbytes_per_s,fabric\nx,400,64,ub\n":   "ub",
		"gpu,link_gbytes_per_s,host_gbytes_per_s,fabric\nh100_sxm,,,ib\n": "ib",
	} {
		sheets, err := ReadDevices("d.csv", strings.NewReader(text))
		if err != nil || len(sheets) != 1 {
			t.Fatal(text, err)
		}
		for _, m := range sheets {
			if m.Fabric != want {
				t.Errorf("%q: %q, want %q", text, m.Fabric, want)
			}
		}
	}
	m, ok = o.model("NVIDIA H100 80GB HBM3")
	if !ok || m.Parallel != 66 || m.Sheet.BF16PerS != 9.89e14 || m.Memory != 80*gib {
		t.Errorf("h100_sxm was to be overridden in one figure: %v %+v", ok, m)
	}
	if err := o.unknown("x2"); !strings.Contains(err.Error(), "x1") {
		t.Errorf("given names are not suggested: %v", err)
	}
	for text, want := range map[string]string{
		"":                           "holds no complete line",
		"name,units\n":               "names no GPU",
		"units,memory_gib\n1,2\n":    "no column gpu",
		"gpu,units\nx,many\n":        `d.csv:2: units: "many": want a number`,
		"gpu,sm_count\nx,many\n":     `d.csv:2: sm_count: "many": want a number`,
		"gpu,units\nx,1\ny,1\nx,2\n": `d.csv:4: "x": a row above describes this GPU already`,
		"gpu,units\nx,-1\n":          `d.csv:2: units: "-1": want a number`,
		"gpu,units\nx,NaN\n":         `units: "NaN": want a number`,
		"gpu,units\nx y,4\n":         `d.csv:2: name: "x y": want a word`,
		"gpu,units\n,4\n":            `d.csv:2: name`,
		"gpu,units\nx,4,5\n":         "d.csv:2: the number of cells",
		"gpu,l2_mib\nx,9999999999\n": "want a number",
	} {
		if _, err := ReadDevices("d.csv", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// The file of devices beside the recordings says what the built-in table says, but for the
// memory of an L4, of which it has the part that ECC takes as well.
func TestRecordedDevicesAgreeWithTheKnown(t *testing.T) {
	path := filepath.Join(dataFolder(t, "recorded"), "aiconfigurator", "devices.csv")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	sheets, err := ReadDevices(path, f)
	if err != nil || len(sheets) != 14 {
		t.Fatal(len(sheets), err)
	}
	near := func(a, b float64) bool { return a == b || a/b < 1.001 && b/a < 1.001 }
	for name, m := range sheets {
		if strings.HasPrefix(name, "gb") { // the file counts PCIe alone, where their host is behind NVLink-C2C
			m.Sheet.HostPerS = 2.25e11
		}
		known, ok := Options{}.model(name)
		s, k := m.Sheet, known.Sheet
		if !ok || m.Parallel != known.Parallel || m.Memory != known.Memory && name != "l4" || m.Fabric != known.Fabric || m.PerNode != known.PerNode || s.Arch != k.Arch ||
			!near(s.BF16PerS, k.BF16PerS) || !near(s.FP8PerS, k.FP8PerS) || s.MemoryPerS != k.MemoryPerS || s.LinkPerS != k.LinkPerS || s.NetPerS != k.NetPerS || s.HostPerS != k.HostPerS {
			t.Errorf("%s: %+v, known as %+v", name, m, known)
		}
	}
}

func FuzzReadDevices(f *testing.F) {
	f.Add("gpu,units,sm_version\nx,4,90.0\n")
	f.Add("name,also,fabric\n\"a b\",c|d,nvlink\n")
	f.Fuzz(func(t *testing.T, text string) {
		sheets, err := ReadDevices("d.csv", strings.NewReader(text))
		if err != nil {
			return
		}
		for name, m := range sheets {
			if got, ok := (Options{Sheets: sheets}).model(name); !ok || got.Name != m.Name {
				t.Fatalf("%q is not found again", name)
			}
			if err := m.Of("").Validate(); err != nil {
				t.Fatalf("%q: %v", name, err)
			}
		}
	})
}

func FuzzModel(f *testing.F) {
	f.Add("NVIDIA H100 80GB HBM3")
	f.Add("(R) 6000")
	f.Fuzz(func(t *testing.T, text string) {
		m, ok := Options{}.model(text)
		if ok == (m.Name == "") {
			t.Fatalf("%q: %q, %v", text, m.Name, ok)
		}
		if err := (Options{}).unknown(text); err == nil {
			t.Fatal("no error")
		}
	})
}

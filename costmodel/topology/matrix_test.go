package topology

import (
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func read(format, text string) (*Machine, error) {
	return Read(format, "topo", strings.NewReader(text))
}

const two = `	GPU0	GPU1	NIC0	CPU Affinity	NUMA Affinity
GPU0	 X 	NV4	PIX	0-31	0
GPU1	NV4	 X 	SYS	32-63	1
NIC0	PIX	SYS	 X 		

Legend:

  X    = Self
  NV#  = Connection traversing a bonded set of # NVLinks
`

// Copies of one matrix say the same machine.
func TestMatrixVariants(t *testing.T) {
	spaces := strings.NewReplacer("\t", "     ", " X ", " X  ").Replace(two)
	for name, text := range map[string]string{
		"tabs":        two,
		"spaces":      spaces,
		"crlf":        strings.ReplaceAll(two, "\n", "\r\n"),
		"underlined":  strings.Replace(two, "GPU0	GPU1	NIC0	CPU Affinity	NUMA Affinity", "\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\x1b[0m", 1),
		"spelt out":   strings.Replace(two, "GPU0	GPU1	NIC0	CPU Affinity	NUMA Affinity", `\x1b[4mGPU0	GPU1	NIC0	CPU Affinity	NUMA Affinity\x1b[0m`, 1),
		"escape lost": strings.Replace(two, "GPU0	GPU1	NIC0	CPU Affinity	NUMA Affinity", "[4mGPU0	GPU1	NIC0	CPU Affinity	NUMA Affinity[0m", 1),
		"srun -l":     "0: " + strings.ReplaceAll(two, "\n", "\n0: "),
		"srun -l 16":  " 0: " + strings.ReplaceAll(two, "\n", "\n 0: "),
		"kubectl":     "2026-09-01T10:00:00.000000000Z " + strings.ReplaceAll(two, "\n", "\n2026-09-01T10:00:00.000000000Z "),
		"docker":      "2026-09-01T10:00:00.1+02:00 " + strings.ReplaceAll(two, "\n", "\n2026-09-01T10:00:00.1+02:00 "),
		"mpirun":      "[1,0]<stdout>:" + strings.ReplaceAll(two, "\n", "\n[1,0]<stdout>:"),
		"quoted":      "> " + strings.ReplaceAll(two, "\n", "\n> "),
		"bom":         "\ufeff" + two,
		"prompt":      "$ nvidia-smi topo -m\n" + two + "$ \n",
		"no legend":   two[:strings.Index(two, "\nLegend")],
		"no affinity": strings.NewReplacer("	CPU Affinity	NUMA Affinity", "", "	0-31	0", "", "	32-63	1", "").Replace(two),
		"list":        strings.Replace(two, "0-31	0", "0,2,4,6-31	0 N/A", 1),
		"p2p":         two + "\n \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n",
		"p2p first":   " \tGPU0\tGPU1\t\n GPU0\tX\tOK\t\n GPU1\tOK\tX\t\n\n" + two,
		"no nic row":  strings.Replace(two, "NIC0	PIX	SYS	 X 		\n", "", 1),
		"blank lines": strings.ReplaceAll(two, "\nGPU", "\n\nGPU"),
	} {
		m, err := read(Matrix, text)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if len(m.GPUs) != 2 || len(m.NICs) != 1 || !m.NICs[0].Near || m.Between[0][1] != (Path{Wires: 4, Fabric: "nvlink"}) || len(m.Read) != 0 {
			t.Errorf("%s: %+v", name, m)
		}
	}
	m, err := read(Matrix, "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n"+strings.ReplaceAll(two, "NV4", "SOC"))
	if err != nil || m.Between[1][0] != (Path{PCIe: SYS}) || len(m.Read) != 1 || !strings.Contains(m.Read[0], "NVIDIA H100 80GB HBM3") {
		t.Errorf("an old driver's SOC, and nvidia-smi -L: %+v, %v", m, err)
	}
	m, err = read(Matrix, "GPU 0,1: NVIDIA A30\nGPU 0,1 Compute Capability: 8.0\nGPU 0: 45 C\n"+two)
	if err != nil || len(m.Read) != 1 || m.Read[0] != "the GPUs call themselves NVIDIA A30" || m.NamedGPUs != 2 {
		t.Errorf("a framework's report: %+v, %v", m, err)
	}
	m, err = read(Matrix, "GPU 0: NVIDIA A30 (UUID: GPU-1)\n  MIG 2g.12gb     Device  0: (UUID: MIG-1)\n"+two)
	if err != nil || len(m.Read) != 2 || !strings.Contains(m.Read[1], "MIG devices") {
		t.Errorf("GPUs in parts: %+v, %v", m, err)
	}
	const one = "\tGPU0\tCPU Affinity\nGPU0\t X \t0-7\n\n"
	if m, err := read(Matrix, one+" \tGPU0\t\n GPU0\tX\t\n"); err != nil || len(m.GPUs) != 1 {
		t.Errorf("one GPU, and its topo -p2p: %+v, %v", m, err)
	}
	if _, err := read(Matrix, one+one); err == nil || !strings.Contains(err.Error(), "topo:4: a second matrix") {
		t.Errorf("two machines of one GPU: %v", err)
	}
}

// nvidia-smi -L counts GPUs as the matrix does; a framework's report counts those that its
// process may use, which are known where they are all. What contradicts itself names none.
func TestMatrixNamesGPUs(t *testing.T) {
	const a, b = "NVIDIA GeForce RTX 4090", "NVIDIA GeForce RTX 3090"
	for name, c := range map[string]struct{ text, first, second string }{
		"both":          {"GPU 0: " + a + " (UUID: GPU-1)\nGPU 1: " + b + " (UUID: GPU-2)\n", a, b},
		"both, no UUID": {"GPU 0: " + a + "\nGPU 1: " + b + "\n", a, b},
		"together":      {"GPU 0,1: " + a + "\n", a, a},
		"the second":    {"GPU 1: " + b + " (UUID: GPU-2)\n", "", b},
		"one, no UUID":  {"GPU 0: " + a + "\n", "", ""},
		"twice":         {"GPU 0: " + a + " (UUID: GPU-1)\nGPU 0: " + b + " (UUID: GPU-2)\n", "", ""},
		"said again":    {"GPU 0,1: " + a + "\nGPU 0: " + a + "\n", a, a},
		"one too many":  {"GPU 0: " + a + " (UUID: GPU-1)\nGPU 1: " + a + " (UUID: GPU-2)\nGPU 2: " + a + " (UUID: GPU-3)\n", "", ""},
	} {
		m, err := read(Matrix, c.text+two)
		if err != nil || m.GPUs[0].Own != c.first || m.GPUs[1].Own != c.second {
			t.Errorf("%s: %+v, %v", name, m, err)
		}
	}
}

func TestMatrixErrors(t *testing.T) {
	swap := func(old, new string) string { return strings.Replace(two, old, new, 1) }
	for name, c := range map[string]struct{ text, want string }{
		"empty":       {" \n", "topo: empty"},
		"other":       {"hello\n", "topo: no matrix of nvidia-smi topo -m"},
		"xml":         {"<system/>", "topo: is XML"},
		"binary":      {"\x00\x01", "topo: is no text"},
		"asymmetric":  {swap("GPU1	NV4", "GPU1	NV2"), `topo:2: GPU0 to GPU1 is "NV4", and back it is "NV2"; write it anew: nvidia-smi topo -m > topo.txt`},
		"self":        {swap("GPU1	NV4", "GPU1	 X "), `topo:2: GPU0 to GPU1 is "NV4", and back it is "X"`},
		"not self":    {swap(" X 	NV4", "PIX	NV4"), `topo:2: GPU0 to GPU0 is "PIX"`},
		"unknown":     {strings.ReplaceAll(two, "NV4", "NVX"), "topo:2: GPU0 to GPU1 is"},
		"no links":    {strings.ReplaceAll(two, "NV4", "NV0"), `topo:2: GPU0 to GPU1 is "NV0": want NV and a number of links`},
		"wrapped":     {swap("GPU1	NV4	 X 	SYS", "GPU1	NV4\n X 	SYS"), "topo:3: GPU1 has fewer than 3 cells; if the terminal wrapped"},
		"glued names": {"GPU0	NIC0NIC1	CPU Affinity\nGPU0	X	PIX	SYS	0-7\n", "topo:2: GPU0 has more than 2 cells, one for each column of line 1; if two names ran together"},
		"no cell":     {strings.ReplaceAll(two, "SYS", "ERR"), `topo:3: GPU1 has fewer than 3 cells, for "ERR" is none (want X, NV#`},
		"rocm-smi":    {"== Weight between two GPUs ==\n       GPU0  GPU1\nGPU0   0     15\nGPU1   15    0\n", "topo: is what rocm-smi or amd-smi print of AMD GPUs"},
		"amd-smi":     {"LINK TYPE TABLE:\n             0000:01:00.0\n0000:01:00.0 SELF\n", "read that file with --from nccl-topo"},
		"p2p alone":   {" \tGPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n", "topo: is nvidia-smi topo -p2p"},
		"missing row": {swap("GPU1	NV4", "GPU3	NV4"), `topo:3: "GPU3 NV4 X SYS 32-63 1" where the row of GPU1 should be`},
		"cut":         {two[:strings.Index(two, "GPU1	NV4")], "ends before the row of GPU1; write it anew: nvidia-smi topo -m > topo.txt"},
		"twice":       {two + two, "a second matrix; one file is one machine"},
		"same column": {swap("NIC0	CPU", "GPU1	CPU"), `topo:1: column "GPU1" stands twice`},
		"gap":         {swap("GPU1	NIC0", "GPU2	NIC0"), `topo:1: column "GPU2": GPUs are numbered from GPU0`},
		"many":        {"GPU0 " + strings.Repeat("n ", 300) + "CPU\n", "topo:1: 301 columns: at most 256 are read"},
		"large":       {strings.Repeat("\n", maxFile+1), "more than 8388608 bytes"},
	} {
		if _, err := read(Matrix, c.text); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

// A machine that is printed as nvidia-smi prints it reads back cell by cell.
func TestMatrixReadsBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		gpus, nics := rapid.IntRange(1, 12).Draw(t, "gpus"), rapid.IntRange(0, 4).Draw(t, "nics")
		sep := rapid.SampledFrom([]string{"\t", "    "}).Draw(t, "between columns")
		cells := make([][]string, gpus+nics)
		var names []string
		for i := range cells {
			cells[i] = make([]string, gpus+nics)
			cells[i][i] = " X "
			for j := range i {
				kinds := []string{"SYS", "NODE", "PHB", "PXB", "PIX"}
				if i < gpus {
					kinds = append(kinds, "NV1", "NV18")
				}
				cells[i][j] = rapid.SampledFrom(kinds).Draw(t, "cell")
				cells[j][i] = cells[i][j]
			}
			names = append(names, fmt.Sprintf("GPU%d", i))
			if i >= gpus {
				names[i] = fmt.Sprintf("mlx5_%d", i-gpus)
			}
		}
		var b strings.Builder
		fmt.Fprintf(&b, "%s%s%sCPU Affinity\n", sep, strings.Join(names, sep), sep)
		for i, row := range cells {
			fmt.Fprintf(&b, "%s%s%s%s0-7\n", names[i], sep, strings.Join(row, sep), sep)
		}
		m, err := read(Matrix, b.String())
		if err != nil || len(m.GPUs) != gpus || len(m.NICs) != nics {
			t.Fatalf("%v\n%s", err, b.String())
		}
		for i := range gpus {
			for j := range i {
				if want, _ := path(cells[i][j]); m.Between[i][j] != want || m.Between[j][i] != want {
					t.Fatalf("%d to %d: %+v, want %s", i, j, m.Between[i][j], cells[i][j])
				}
			}
		}
	})
}

func FuzzMatrix(f *testing.F) {
	f.Add(two)
	f.Add("\x1b[4mGPU0 GPU1 CPU Affinity\x1b[0m\nGPU0 X PHB 0-3\nGPU1 PHB X 0-3\n\n GPU0 GPU1\n GPU0 X GNS\n GPU1 GNS X\n")
	f.Add("GPU0 CPU\nGPU0 X")
	f.Fuzz(func(t *testing.T, text string) { drafts(t, Matrix, text) })
}

// drafts checks that what is read is drafted and what is drafted reads back.
func drafts(t *testing.T, format, text string) {
	m, err := read(format, text)
	if err != nil {
		if !strings.HasPrefix(err.Error(), "topo:") {
			t.Errorf("the error does not begin with the file: %v", err)
		}
		return
	}
	d, err := m.Draft(Options{Device: "gpu", Nodes: 2, Network: "net"})
	if err != nil {
		t.Fatal(err)
	}
	if gpus := len(d.Cluster.Ranks()); gpus != 2*len(m.GPUs) {
		t.Errorf("%d ranks of %d GPUs", gpus, len(m.GPUs))
	}
	readsBack(t, d)
}

package topology

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/evenkeel/evenkeel/internal/units"
)

// Limits of what is read: a DGX of 8 GPUs takes 3 KB as a table and 14 KB as XML,
// a rack of 72 GPUs about a hundred times that.
const (
	maxFile    = 8 << 20
	maxDevices = 256
)

// Machine lists the GPUs and network cards of one machine and the paths between the GPUs.
type Machine struct {
	GPUs []GPU
	NICs []NIC
	// Between[a][b] is the path from GPU a to GPU b; nil where the file does not
	// say what joins them.
	Between [][]Path
	// PCIePerS is the narrowest PCIe link between two GPUs that no links of their own join, in
	// one direction; 0 where the file does not tell.
	PCIePerS units.BytesPerS
	Named    []string // the GPUs' own names, each once, whether or not the file says which is whose
	// NamedGPUs is how many GPUs have one of these.
	NamedGPUs int
	Read      []string // what else the file says, in sentences
}

// GPU is a GPU as a file names it.
type GPU struct {
	Name  string // GPU0, or its PCI address
	Model string // GPU model as clusters name it; "" where the file does not tell
	Own   string // what it calls itself; "" where the file does not tell
}

// NIC is a network card.
type NIC struct {
	Name string
	Near bool            // it shares a PCIe bridge with a GPU, as cards for GPUs do
	Rate units.BytesPerS // one direction, of its ports or a slower PCIe link to it; 0 where those of its ports are unknown
	// Ports is the rate of its ports where Rate is that of the PCIe link to it, 0 elsewhere.
	Ports units.BytesPerS
}

// Path says how two GPUs are connected: by direct links (NVLink or xGMI), or over PCIe.
type Path struct {
	Wires  int    // number of parallel links
	Fabric string // kind of these links: nvlink or xgmi
	PCIe   Hop    // where they meet on PCIe; "" if the file lists direct links only
}

// Hop is the place where two devices meet on PCIe, by nvidia-smi's names.
type Hop string

// The hops, nearest first.
const (
	PIX  Hop = "PIX"  // at one PCIe bridge
	PXB  Hop = "PXB"  // over several bridges
	PHB  Hop = "PHB"  // at the host bridge, usually the CPU
	NODE Hop = "NODE" // between host bridges of a NUMA node
	SYS  Hop = "SYS"  // between NUMA nodes
)

// rank orders hops by distance; false for what is no hop.
func (h Hop) rank() (int, bool) {
	for i, known := range []Hop{PIX, PXB, PHB, NODE, SYS} {
		if h == known {
			return i, true
		}
	}
	return 0, false
}

// The formats that Read knows.
const (
	Matrix = "nvidia-smi-topo"
	XML    = "nccl-topo"
)

// Read reads a machine from a file in one of the formats.
//
// Errors begin with name and, where there is one, the line.
func Read(format, name string, r io.Reader) (*Machine, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxFile+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("%s: %w", name, err)
	case len(data) > maxFile:
		return nil, fmt.Errorf("%s: more than %d bytes; name a file with one machine's topology", name, maxFile)
	case len(bytes.TrimSpace(data)) == 0:
		return nil, fmt.Errorf("%s: empty; %s", name, anew(format))
	}
	var m *Machine
	switch format {
	case Matrix:
		m, err = readMatrix(string(data))
	case XML:
		m, err = readXML(data)
	default:
		return nil, fmt.Errorf("%s: format %q: want %s or %s", name, format, Matrix, XML)
	}
	if err == nil {
		return m, nil
	}
	way := ""
	if !strings.Contains(err.Error(), "; ") { // which some have
		way = "; " + anew(format)
	}
	var at *lineError
	if errors.As(err, &at) && at.line > 0 {
		return nil, fmt.Errorf("%s:%d: %s%s", name, at.line, at.what, way)
	}
	return nil, fmt.Errorf("%s: %w%s", name, err, way)
}

// anew is how a file of a format is written.
func anew(format string) string {
	if format == XML {
		return "write it anew by running a job with NCCL_TOPO_DUMP_FILE=topo.xml"
	}
	return "write it anew: nvidia-smi topo -m > topo.txt"
}

// lineError is what is wrong with a line of a file; line 0 is the whole of it.
type lineError struct {
	line int
	what string
}

// Error leaves the line to Read, which knows the file's name.
func (e *lineError) Error() string { return e.what }

func wrongf(line int, format string, args ...any) error {
	return &lineError{line, fmt.Sprintf(format, args...)}
}

// grid is a square of empty paths.
func grid(n int) [][]Path {
	g := make([][]Path, n)
	for i := range g {
		g[i] = make([]Path, n)
	}
	return g
}

func short(s string) string {
	if len(s) > 40 {
		s = strings.ToValidUTF8(s[:40], "") + ".."
	}
	return s
}

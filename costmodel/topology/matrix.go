package topology

import (
	"cmp"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// table is a square matrix as nvidia-smi prints it: `topo -m`, or one of the
// matrices of `topo -p2p` that people print behind it.
type table struct {
	line  int // of the header
	gpus  int
	names []string // of GPUs, then of network cards
	cells [][]string
	at    []int // line of each row
	// affinity says that the header goes on with columns that -p2p does not have.
	affinity bool
}

// readMatrix reads the output of nvidia-smi topo -m, with whatever stands around
// the table: prompts, legends, matrices of topo -p2p.
//
// Copies differ: tabs or columns of spaces, underlined headers, two words in one
// column, columns of affinity that are empty or run together. So a row is read by
// its words: a label, as many cells as the header has devices, and the rest is
// affinity, which nothing here needs.
func readMatrix(text string) (*Machine, error) {
	if strings.Contains(text, "\x00") {
		return nil, wrongf(0, "is no text; write it with: nvidia-smi topo -m > topo.txt")
	}
	if strings.Contains(text, "between two GPUs") || strings.Contains(text, "LINK TYPE TABLE") {
		return nil, wrongf(0, "is what rocm-smi or amd-smi print of AMD GPUs, not nvidia-smi topo -m; run a job with NCCL_TOPO_DUMP_FILE=topo.xml and read that file with --from %s", XML)
	}
	text = plain(text)
	lines := strings.Split(text, "\n")
	var m *Machine
	var peers []string
	p2p := false
	for at := 0; at < len(lines); {
		names, affinity, ok := header(lines[at])
		if !ok {
			at++
			continue
		}
		t := &table{line: at + 1, names: names, affinity: affinity}
		next, err := t.rows(lines)
		switch {
		case err != nil:
			return nil, err
		case t.isPeers(m != nil):
			p2p, peers = true, append(peers, t.refusals()...)
		case m != nil:
			return nil, wrongf(t.line, "a second matrix; one file is one machine: split it")
		default:
			if m, err = t.machine(); err != nil {
				return nil, err
			}
		}
		at = next
	}
	if m == nil && strings.HasPrefix(strings.TrimSpace(text), "<") {
		return nil, wrongf(0, "is XML, no output of nvidia-smi topo -m; NCCL's topologies are read with --from %s", XML)
	}
	if m == nil && p2p {
		return nil, wrongf(0, "is nvidia-smi topo -p2p, which says who may copy to whom, not what joins them; write nvidia-smi topo -m > topo.txt")
	}
	if m == nil {
		return nil, wrongf(0, "no matrix of nvidia-smi topo -m: no line begins with GPU0 and names the columns; write it with: nvidia-smi topo -m > topo.txt")
	}
	m.name(text)
	m.Read = append(m.Read, around(text, m.Named)...)
	if len(peers) > 0 {
		slices.Sort(peers)
		m.Read = append(m.Read, fmt.Sprintf("a matrix of topo -p2p says %s between some GPUs: their copies go through host memory, slower than the path suggests", strings.Join(slices.Compact(peers), ", ")))
	}
	return m, nil
}

// plain is a text without the escapes that underline a header, which copies hold
// as they are, spelt out, or without their first character; and without what
// launchers (srun -l, mpirun --tag-output), logs with the time (kubectl logs --timestamps) and
// quoting put before each line.
func plain(text string) string {
	text = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]|(\x{fffd}|\^\[|\\u001b|\\x1b|\\033)?\[[0-9][0-9;]*m`).ReplaceAllString(text, " ")
	return regexp.MustCompile(`(?m)^( *\d+: |\[\d+,\d+\]<std(out|err)>: ?|\d{4}-\d\d-\d\dT[\d:.]+(Z|[+-]\d\d:\d\d) |[>#] )`).ReplaceAllString(text, "")
}

// fields are the words of a line.
func fields(line string) []string { return strings.Fields(strings.TrimPrefix(line, "\ufeff")) }

// header reads the line that names the columns, and whether columns of affinity
// follow; false for any other line.
func header(line string) (names []string, affinity, ok bool) {
	words := fields(line)
	if len(words) == 0 || words[0] != "GPU0" || len(words) > 1 && isCell(words[1]) {
		return nil, false, false
	}
	end := slices.IndexFunc(words, func(w string) bool { return w == "CPU" || w == "NUMA" })
	if end >= 0 {
		words = words[:end]
	}
	return words, end >= 0, true
}

// isCell says whether a word is a cell of topo -m or of topo -p2p.
func isCell(w string) bool {
	_, err := path(w)
	return w == "X" || err == nil || isPeer(w)
}

func isPeer(w string) bool {
	return slices.Contains([]string{"OK", "CNS", "GNS", "TNS", "NS", "DR", "U"}, w)
}

// path reads a cell that is not on the diagonal.
func path(cell string) (Path, error) {
	if count, ok := strings.CutPrefix(cell, "NV"); ok {
		n, err := strconv.Atoi(count)
		if err != nil || n < 1 || n > 1000 || count[0] == '+' {
			return Path{}, fmt.Errorf("%q: want NV and a number of links", short(cell))
		}
		return Path{Wires: n, Fabric: nvlink}, nil
	}
	if cell == "SOC" { // what drivers before 2017 call SYS
		return Path{PCIe: SYS}, nil
	}
	h := Hop(cell)
	if _, ok := h.rank(); !ok {
		return Path{}, fmt.Errorf("%q: want X, NV#, PIX, PXB, PHB, NODE or SYS", short(cell))
	}
	return Path{PCIe: h}, nil
}

// rows reads the rows below the header and says where the table ends. Rows of
// network cards may be missing, as people cut them off; rows of GPUs may not.
func (t *table) rows(lines []string) (next int, err error) {
	if err := t.columns(); err != nil {
		return 0, err
	}
	at, n := t.line, len(t.names)
	for ; at < len(lines) && len(t.cells) < n; at++ {
		words, row := fields(lines[at]), len(t.cells)
		if len(words) == 0 && row < t.gpus {
			continue
		}
		if len(words) == 0 || words[0] != t.names[row] {
			if row < t.gpus {
				return 0, wrongf(at+1, "%q where the row of %s should be", short(strings.Join(words, " ")), t.names[row])
			}
			break
		}
		if err := t.cellsOf(words, at+1); err != nil {
			return 0, err
		}
		t.cells, t.at = append(t.cells, words[1:1+n]), append(t.at, at+1)
	}
	if len(t.cells) < t.gpus {
		return 0, wrongf(at, "ends before the row of %s", t.names[len(t.cells)])
	}
	return at, t.check()
}

// cellsOf refuses a row with another number of cells than the header has columns.
func (t *table) cellsOf(words []string, line int) error {
	const again = "write a file: nvidia-smi topo -m > topo.txt"
	label, n := words[0], len(t.names)
	switch {
	case len(words) <= n:
		return wrongf(line, "%s has fewer than %d cells; if the terminal wrapped the lines, %s", label, n, again)
	case !isCell(words[n]):
		return wrongf(line, "%s has fewer than %d cells, for %q is none (want X, NV#, PIX, PXB, PHB, NODE or SYS); if the terminal wrapped the lines, %s", label, n, short(words[n]), again)
	case len(words) > n+1 && isCell(words[n+1]):
		return wrongf(line, "%s has more than %d cells, one for each column of line %d; if two names ran together there, part them or %s", label, n, t.line, again)
	}
	return nil
}

// columns tells GPUs from network cards.
func (t *table) columns() error {
	if len(t.names) > maxDevices {
		return wrongf(t.line, "%d columns: at most %d are read", len(t.names), maxDevices)
	}
	for t.gpus < len(t.names) && t.names[t.gpus] == "GPU"+strconv.Itoa(t.gpus) {
		t.gpus++
	}
	for i, n := range t.names {
		if slices.Contains(t.names[:i], n) {
			return wrongf(t.line, "column %q stands twice", short(n))
		}
		if i >= t.gpus && strings.HasPrefix(n, "GPU") {
			return wrongf(t.line, "column %q: GPUs are numbered from GPU0 on and stand before the network cards", short(n))
		}
	}
	return nil
}

// check compares every cell with its mirror image.
func (t *table) check() error {
	for i, row := range t.cells {
		for j, cell := range row {
			switch {
			case (cell == "X") != (i == j):
				return wrongf(t.at[i], "%s to %s is %q: X stands for a device and itself, nothing else", t.names[i], t.names[j], short(cell))
			case j < len(t.cells) && t.cells[j][i] != cell:
				return wrongf(t.at[i], "%s to %s is %q, and back it is %q", t.names[i], t.names[j], short(cell), short(t.cells[j][i]))
			}
		}
	}
	return nil
}

// isPeers says whether it is a matrix of topo -p2p. With one GPU it shows nothing
// but that GPU, and stands behind the topology.
func (t *table) isPeers(behind bool) bool {
	if len(t.names) == 1 {
		return behind && !t.affinity
	}
	return t.gpus > 1 && isPeer(t.cells[0][1])
}

// refusals lists the states of topo -p2p other than OK.
func (t *table) refusals() []string {
	var states []string
	for _, row := range t.cells {
		for _, cell := range row {
			if isPeer(cell) && cell != "OK" && !slices.Contains(states, cell) {
				states = append(states, cell)
			}
		}
	}
	return states
}

func (t *table) machine() (*Machine, error) {
	m := &Machine{Between: grid(t.gpus)}
	for i := range t.gpus {
		m.GPUs = append(m.GPUs, GPU{Name: t.names[i]})
	}
	for _, n := range t.names[t.gpus:] {
		m.NICs = append(m.NICs, NIC{Name: n})
	}
	for i := range t.gpus {
		for j, cell := range t.cells[i] {
			if i == j {
				continue
			}
			p, err := path(cell)
			switch {
			case err != nil:
				return nil, wrongf(t.at[i], "%s to %s is %s", t.names[i], t.names[j], err)
			case j < t.gpus:
				m.Between[i][j] = p
			case p.PCIe == PIX || p.PCIe == PXB:
				m.NICs[j-t.gpus].Near = true
			}
		}
	}
	return m, nil
}

// ownName is a line that names GPUs.
var ownName = regexp.MustCompile(`(?m)^GPU (\d[\d,]{0,400}): ([^\n(]{1,80}? \(UUID|(NVIDIA|Tesla|Quadro|TITAN) [^\n(]{1,70}?\s*$)`)

// name gives the GPUs their own names, which nvidia-smi -L, or the report of a framework's
// environment, has around the matrix: GPU 0: NVIDIA H100 80GB HBM3 (UUID: ..), or
// GPU 0,1: NVIDIA H20.
//
// nvidia-smi counts the GPUs as the matrix does. A report has those that its process may use,
// counted from 0: which these are is known where they are all.
func (m *Machine) name(text string) {
	own, listed := map[int]string{}, true
	certain := true
	for _, g := range ownName.FindAllStringSubmatch(text, maxDevices) {
		name, ok := strings.CutSuffix(g[2], "(UUID")
		listed = listed && ok
		if name = strings.TrimSpace(name); !slices.Contains(m.Named, name) {
			m.Named = append(m.Named, name)
		}
		for gpu := range strings.SplitSeq(strings.TrimSuffix(g[1], ","), ",") {
			at, err := strconv.Atoi(gpu)
			certain = certain && err == nil && at < len(m.GPUs) && cmp.Or(own[at], name) == name
			own[at] = name
		}
	}
	m.NamedGPUs = len(own)
	if certain && (listed || len(own) == len(m.GPUs)) {
		for at, name := range own {
			m.GPUs[at].Own = name
		}
	}
}

// around is what to say of the text around the matrix. Below the names of nvidia-smi -L
// stand the parts of a GPU in MIG mode.
func around(text string, names []string) (out []string) {
	if len(names) > 0 {
		out = append(out, "the GPUs call themselves "+strings.Join(names, ", "))
	}
	if regexp.MustCompile(`(?m)^\s+MIG \d+g\.\d+gb`).MatchString(text) {
		out = append(out, "some GPUs are split into MIG devices; the matrix, and so this draft, has them whole")
	}
	return out
}

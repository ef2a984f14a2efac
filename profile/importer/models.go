package importer

import (
	_ "embed"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"

	"github.com/agnivade/levenshtein"
	"github.com/evenkeel/evenkeel/costmodel/op"
	"github.com/evenkeel/evenkeel/internal/units"
)

//go:embed models.csv
var modelsCSV string

// knownModels reads the embedded table once; nothing changes it afterwards.
var knownModels = sync.OnceValue(func() []Model {
	models, err := readModels("models.csv", strings.NewReader(modelsCSV))
	if err != nil {
		panic("importer: " + err.Error()) // a mistake in the program's own table
	}
	return models
})

// Models lists the GPU models that are known without a file of devices.
func Models() []Model { return slices.Clone(knownModels()) }

// ModelOf finds the one model that a name may mean: one of its own, such as h100_sxm, or
// what its driver says, such as "NVIDIA H100 80GB HBM3".
func ModelOf(name string) (Model, bool) { return Options{}.model(name) }

// model finds a GPU model by what a file calls it: a name such as h100_sxm, or
// free text such as "NVIDIA H100 80GB HBM3". Sheets given by the user come
// first. Text that fits several models, such as "A100", finds none.
func (o Options) model(name string) (Model, bool) {
	if m, ok := o.Sheets[name]; ok {
		return m, true
	}
	fits := matching(name)
	if len(fits) != 1 {
		return Model{}, false
	}
	if m, ok := o.Sheets[fits[0].Name]; ok {
		return m, true
	}
	return fits[0], true
}

// besides flags a --device that is another GPU than the one that a file names, or none that
// is known: what the file says is taken. Text that fits several models agrees with each.
func (s *Sink) besides(where string, m Model) {
	given, ok := s.model(s.Options.Device)
	may := slices.ContainsFunc(matching(s.Options.Device), func(o Model) bool { return o.Name == m.Name })
	switch {
	case s.Options.Device == "" || ok && given.Name == m.Name || !ok && may:
	case ok:
		s.Flag(where, fmt.Sprintf("the file names the GPU %s, --device says %s: the file's is taken", m.Name, given.Name))
	default:
		s.Flag(where, fmt.Sprintf("the file names the GPU %s, which is taken, and --device says %s, which is no GPU that is known: leave it out, or describe it with --devices", m.Name, quoted(s.Options.Device)))
	}
}

// unknown says that a GPU is neither known nor given, and the way out.
func (o Options) unknown(name string) error {
	var near []string
	for _, m := range matching(name) {
		near = append(near, m.Name)
	}
	what := "could be " + strings.Join(near, " or ")
	if len(near) == 0 {
		what = "is not known, nor is a name like it (evenkeel show --references lists those that are)"
		if near = o.nearest(name); len(near) > 0 {
			what = "is not known; the nearest names are " + strings.Join(near, ", ")
		}
	}
	way := "say which with --device"
	if name != "" && name == o.Device {
		way = "give --device a name that is known and fits no other"
	}
	return fmt.Errorf("the GPU %s %s; %s, or describe it in a table with --devices", quoted(name), what, way)
}

// nearest lists up to three names that are like a name: those with the fewest edits, where
// every letter that both begin with makes up for one. Edits alone find gb300 nearer to
// mi300 than mi325x is, and to the name of another maker's GPU whatever is as long.
func (o Options) nearest(name string) []string {
	var all []string
	for _, m := range knownModels() {
		all = append(all, m.Name)
	}
	for given := range o.Sheets {
		if !slices.Contains(all, given) {
			all = append(all, given)
		}
	}
	slices.Sort(all)
	name = strings.Join(words(name[:min(len(name), 60)]), "_")
	off := func(s string) int { return levenshtein.ComputeDistance(name, s) - common(name, s) }
	all = slices.DeleteFunc(all, func(s string) bool { return off(s) > 0 })
	slices.SortStableFunc(all, func(a, b string) int { return off(a) - off(b) })
	return all[:min(len(all), 3)]
}

// common is the number of bytes that two names begin with.
func common(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}

// matching lists the models that a name may mean. Best is the name itself;
// then free text whose words are exactly those that the model's driver prints;
// then text with fewer words, if all of them belong to the model and its number
// (h100, 4090) is among them. A word that belongs to no name, such as the MIG
// of a slice, matches nothing.
func matching(name string) []Model {
	plain := strings.ReplaceAll(strings.ToLower(strings.TrimSpace(name)), "-", "_")
	for _, m := range knownModels() {
		if m.Name == plain {
			return []Model{m}
		}
	}
	said := words(name)
	var exact, part []Model
	for _, m := range knownModels() {
		if slices.ContainsFunc(m.also, func(text string) bool { return sameWords(words(text), said) }) {
			exact = append(exact, m)
		}
		if len(said) > 0 && subset(said, m.vocabulary()) && subset(m.number(), said) {
			part = append(part, m)
		}
	}
	if len(exact) > 0 {
		return exact
	}
	return part
}

// words splits free text into lower-case words without those that tell nothing
// apart.
func words(text string) []string {
	idle := []string{"nvidia", "amd", "intel", "r", "tm", "tesla", "geforce", "instinct", "graphics", "gpu", "vf", "edition", "generation"}
	fields := strings.FieldsFunc(strings.ToLower(text), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	return slices.DeleteFunc(fields, func(w string) bool { return slices.Contains(idle, w) })
}

func sameWords(a, b []string) bool { return len(a) == len(b) && subset(a, b) && subset(b, a) }

func subset(a, b []string) bool {
	return !slices.ContainsFunc(a, func(w string) bool { return !slices.Contains(b, w) })
}

// vocabulary is every word that may describe the model.
func (m Model) vocabulary() []string {
	all := []string{fmt.Sprintf("%dgb", int64(m.Memory/gib))}
	for _, text := range m.also {
		for _, w := range words(text) {
			all = append(all, w, strings.TrimRight(w, "0123456789")) // sxm of sxm4
		}
	}
	return all
}

// number is the words that the model is known by: h100, or 6000 of RTX PRO 6000.
func (m Model) number() []string {
	all := words(m.also[0])
	return slices.DeleteFunc(all, func(w string) bool {
		return !strings.ContainsAny(w, "0123456789") || strings.HasSuffix(w, "gb") || strings.HasPrefix(w, "hbm") || strings.HasPrefix(w, "sxm")
	})
}

// ReadDevices reads a table of GPU models, one a row, whose columns are named in
// the header: gpu or name, and any of those of models.csv or of the datasheet_*
// names. What a row leaves out of a known model is taken from there.
//
// Errors name the line and the cell.
func ReadDevices(name string, r io.Reader) (map[string]Model, error) {
	models, err := readModels(name, r)
	if err != nil {
		return nil, err
	}
	byName := map[string]Model{}
	for _, m := range models {
		if known, ok := ModelOf(m.Name); ok {
			m = m.over(known)
		}
		if m.Fabric == "" {
			m.Fabric = m.Sheet.Fabric()
		}
		byName[m.Name] = m
	}
	return byName, nil
}

// over fills what is not known of m from another description of the same model.
func (m Model) over(known Model) Model {
	fill(&m.Parallel, known.Parallel)
	fill(&m.Memory, known.Memory)
	fill(&m.PerNode, known.PerNode)
	fill(&m.Fabric, known.Fabric)
	fill(&m.Headroom, known.Headroom)
	fill(&m.Sheet.BF16PerS, known.Sheet.BF16PerS)
	fill(&m.Sheet.FP8PerS, known.Sheet.FP8PerS)
	fill(&m.Sheet.MemoryPerS, known.Sheet.MemoryPerS)
	fill(&m.Sheet.L2, known.Sheet.L2)
	fill(&m.Sheet.LinkPerS, known.Sheet.LinkPerS)
	fill(&m.Sheet.NetPerS, known.Sheet.NetPerS)
	fill(&m.Sheet.HostPerS, known.Sheet.HostPerS)
	fill(&m.Sheet.Arch, known.Sheet.Arch)
	m.also = known.also
	return m
}

func fill[T comparable](v *T, known T) {
	var zero T
	if *v == zero {
		*v = known
	}
}

// modelColumns lists the names that each column of a table of models may have.
func modelColumns() map[string][]string {
	return map[string][]string{
		"name":   {"gpu", "name"},
		"units":  {"units", "sms", "sm_count", "sm_count_not_from_source"},
		"memory": {"memory_gib", "datasheet_mem_gib"},
		"bf16":   {"bf16_tflops", "datasheet_bf16_tflops"},
		"fp8":    {"fp8_tflops", "datasheet_fp8_tflops"},
		"rate":   {"memory_gbytes_per_s", "datasheet_mem_bw_gbytes_per_s"},
		"l2":     {"l2_mib"},
		"link":   {"link_gbytes_per_s", "intra_node_gbytes_per_s_per_gpu_one_way"},
		"net":    {"net_gbytes_per_s", "inter_node_gbytes_per_s_per_gpu_one_way"},
		"host":   {"host_gbytes_per_s", "pcie_gbytes_per_s_one_way"},
		"node":   {"per_node", "gpus_per_node"},
		"arch":   {"arch"}, "sm": {"sm_version"}, "also": {"also"}, "fabric": {"fabric"}, "headroom": {"headroom"},
	}
}

func readModels(name string, r io.Reader) ([]Model, error) {
	var models []Model
	at, titles := map[string]int{}, []string{}
	err := readCSV(name, r, csvVisitor{
		head: func(columns []string) error {
			titles = columns
			for key, names := range modelColumns() {
				if i := slices.IndexFunc(columns, func(c string) bool { return slices.Contains(names, c) }); i >= 0 {
					at[key] = i
				}
			}
			if _, ok := at["name"]; !ok {
				return fmt.Errorf("%s:1: no column gpu: a table of devices has one GPU model a row and names its columns in the first line", name)
			}
			return nil
		},
		row: func(line int, cells []string) error {
			c := modelCells{cells: cells, at: at, titles: titles}
			m := c.model()
			if c.err != nil {
				return fmt.Errorf("%s:%d: %w", name, line, c.err)
			}
			if slices.ContainsFunc(models, func(o Model) bool { return o.Name == m.Name }) {
				return fmt.Errorf("%s:%d: %q: a row above describes this GPU already; a table of devices has one row a GPU model", name, line, m.Name)
			}
			models = append(models, m)
			return nil
		},
		bad: func(line int, why string) error { return fmt.Errorf("%s:%d: %s; mend the line", name, line, why) },
	})
	if err == nil && len(models) == 0 {
		err = fmt.Errorf("%s: names no GPU; give one a row", name)
	}
	return models, err
}

// modelCells reads one row of a table of models and keeps the first error.
type modelCells struct {
	cells  []string
	at     map[string]int
	titles []string // of the columns, as the file has them
	err    error
}

func (c *modelCells) text(key string) string {
	i, ok := c.at[key]
	if !ok {
		return ""
	}
	return c.cells[i]
}

// number is a figure of a row; one that is left out is unknown, which is 0.
func (c *modelCells) number(key string, scale float64) float64 {
	text := c.text(key)
	if text == "" {
		return 0
	}
	v, err := strconv.ParseFloat(text, 64)
	if (err != nil || !(v >= 0) || v > 1e9) && c.err == nil {
		c.err = fmt.Errorf("%s: %q: want a number, or nothing where it is not known", c.titles[c.at[key]], text)
	}
	return v * scale
}

func (c *modelCells) model() Model {
	m := Model{
		Name: c.text("name"), Parallel: int(c.number("units", 1)), Memory: units.Bytes(c.number("memory", float64(gib))),
		Sheet: op.Sheet{
			BF16PerS: c.number("bf16", 1e12), FP8PerS: c.number("fp8", 1e12), MemoryPerS: c.number("rate", 1e9),
			L2:       units.Bytes(c.number("l2", 1<<20)),
			LinkPerS: c.number("link", 1e9), NetPerS: c.number("net", 1e9), HostPerS: c.number("host", 1e9),
			Arch: c.arch(),
		},
		PerNode: int(c.number("node", 1)), Fabric: c.text("fabric"), Headroom: c.number("headroom", 1),
	}
	m.also = strings.Split(c.text("also"), "|")
	if err := m.Of("").Validate(); err != nil && c.err == nil {
		c.err = err
	}
	return m
}

// arch takes 90.0 for sm90.
func (c *modelCells) arch() string {
	if v := c.number("sm", 10); v > 0 {
		return fmt.Sprintf("sm%.0f", v/10)
	}
	return c.text("arch")
}

package main

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/evenkeel/evenkeel/costmodel"
	"github.com/evenkeel/evenkeel/costmodel/topology"
	"github.com/evenkeel/evenkeel/internal/doc"
	"github.com/evenkeel/evenkeel/internal/units"
	"github.com/evenkeel/evenkeel/profile/importer"
	"github.com/evenkeel/evenkeel/results/profiles"
)

// topologies lists the formats of which import drafts a cluster.
func topologies() []string { return []string{topology.Matrix, topology.XML} }

func isTopology(from string) bool { return slices.Contains(topologies(), from) }

func topologiesHelp() string {
	return fmt.Sprintf("  %-16s%s\n  %-16s%s\n", topology.Matrix, "what nvidia-smi topo -m prints",
		topology.XML, "what NCCL or RCCL write to NCCL_TOPO_DUMP_FILE, or a cloud ships for it")
}

// drafted is what import prints of a topology.
type drafted struct {
	File string `json:"file"`
	*topology.Draft
}

// runTopology drafts a cluster.yaml from one machine's topology.
func (a *app) runTopology(o importing, paths []string, given func(flag string) bool) error {
	if err := settleTopology(o, paths, given); err != nil {
		return err
	}
	if info, err := os.Stat(paths[0]); err == nil && info.IsDir() {
		return fmt.Errorf("%s: is a folder; name a file in it", paths[0])
	}
	device, err := deviceNamed(o.options.Device)
	if err != nil {
		return err
	}
	f, err := os.Open(paths[0])
	if err != nil {
		return openError(err)
	}
	defer f.Close()
	m, err := topology.Read(o.from, paths[0], f)
	if err != nil {
		return err
	}
	d, err := m.Draft(topology.Options{Device: device, Nodes: o.options.Nodes, Network: o.network, Datasheet: datasheet, Model: modelNamed})
	if err != nil {
		return usageError{err}
	}
	text := d.YAML(filepath.Base(paths[0]))
	if _, err := costmodel.ReadClusterYAML(o.out, text); err != nil {
		return fmt.Errorf("the draft cannot be read back; this is a bug of evenkeel: %w", err)
	}
	if err := doc.WriteAtomic(o.out, text); err != nil {
		return err
	}
	return a.print(drafted{o.out, d}, func(w io.Writer) error { return writeDraft(w, o.out, d) })
}

// settleTopology refuses flags that a topology has no use for.
func settleTopology(o importing, paths []string, given func(flag string) bool) error {
	for _, name := range []string{"ranks", "link", "collective", "stack", "dtype", "devices"} {
		if given(name) {
			return usagef("--%s: a topology has no use for it; with --from %s come --device, --nodes and --network", name, o.from)
		}
	}
	switch {
	case len(paths) != 1:
		return usagef("import: %d files: a cluster is drafted from one machine's; say with --nodes how many such machines there are", len(paths))
	case o.out == "":
		return usagef("import: -o is missing: name the cluster.yaml to write")
	case !strings.HasSuffix(o.out, ".yaml") && !strings.HasSuffix(o.out, ".yml"):
		return usagef("-o %s: name a file that ends in .yaml, by which solve tells it from a shorthand", o.out)
	}
	if err := (output{flag: "-o", path: o.out}).probe(); err != nil {
		return err
	}
	target, err := os.Stat(o.out)
	source, err2 := os.Stat(paths[0])
	if err == nil && err2 == nil && os.SameFile(target, source) {
		return usagef("-o %s: is the file to import; choose another name", o.out)
	}
	return output{"-o", o.out, drafts}.replaces()
}

// deviceNamed is the device type that --device means: a GPU model, in whatever spelling or by
// the GPU's own name, or a type of a profile of the user's. What may be a slip is refused here:
// solve would refuse the draft.
func deviceNamed(given string) (string, error) {
	model := costmodel.ModelOf(given)
	if m := modelNamed(model); m != "" {
		return m + given[len(model):], nil
	}
	if near := profiles.NearestModel(model, datasheets()); near != "" {
		return "", usagef("--device %q: is no GPU model that is known%s; of a type of your own that is called so, write it into the draft", given, near)
	}
	return given, nil
}

// modelNamed is the GPU model that a GPU's own name means.
func modelNamed(name string) string {
	m, _ := importer.ModelOf(name)
	return m.Name
}

// datasheet is what is known of a GPU model's links.
func datasheet(model string) topology.Datasheet {
	known := importer.Models()
	at := slices.IndexFunc(known, func(m importer.Model) bool { return m.Name == model })
	if at < 0 {
		return topology.Datasheet{}
	}
	s := known[at].Sheet
	sheet := topology.Datasheet{
		Fabric: known[at].Fabric, LinkPerS: units.BytesPerS(cmp.Or(s.LinkPerS, s.HostPerS)), NetPerS: units.BytesPerS(s.NetPerS),
		HostPerS: units.BytesPerS(s.HostPerS), Links: nvlinks(known[at]),
	}
	if r, err := referenceOf(model); err == nil {
		for _, g := range r.Profile.Groups {
			sheet.Laws = append(sheet.Laws, g.Link)
		}
	}
	return sheet
}

// nvlinks is how many NVLinks a datasheet's rate is of, 0 of other links: one has 25 GB/s in a
// direction from Volta to Hopper (sm70 to sm90) and 50 GB/s since Blackwell (sm100).
func nvlinks(m importer.Model) int {
	each := 25e9
	if strings.HasPrefix(m.Sheet.Arch, "sm10") {
		each = 50e9
	}
	if m.Fabric != "nvlink" {
		return 0
	}
	return int(m.Sheet.LinkPerS / each)
}

func writeDraft(w io.Writer, path string, d *topology.Draft) error {
	c := d.Cluster
	line := fmt.Sprintf("%s: %s", path, c)
	if link := c.Nodes[0].Link; link != "" {
		line += " over " + link
	}
	if c.Network != "" {
		line += ", nodes over " + c.Network
	}
	lines := []string{line}
	for _, part := range []struct {
		name  string
		lines []string
	}{{"read", d.Read}, {"guessed", d.Guessed}, {"fill in", d.FillIn}} {
		for _, l := range part.lines {
			lines = append(lines, fmt.Sprintf("  %-9s%s", part.name, l))
		}
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}

package topology

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/evenkeel/evenkeel/costmodel"
)

// recordings finds the folder of others' topologies, or skips the test; with
// CI=true a missing folder fails it.
func recordings(t testing.TB) string {
	dir := os.Getenv("EVENKEEL_DATA")
	if dir == "" {
		dir = filepath.Join("..", "..", "..", "shared", "data")
	}
	dir = filepath.Join(dir, "traces", "topology")
	if _, err := os.Stat(dir); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatalf("the topologies are missing: %v; set EVENKEEL_DATA", err)
		}
		t.Skipf("the topologies are missing: %v; set EVENKEEL_DATA to the folder above traces", err)
	}
	return dir
}

// published is what one of the published files is drafted as.
type published struct {
	cluster, link string
	nics          int
	says          string // in a note, or in the error
}

// publishedFiles are what a person drafts from them, with the counts and classes
// that the files show.
func publishedFiles() map[string]published {
	return map[string]published{
		"aws_p4d_a100_nccl_topo.xml":                {"1x8 a100_sxm_40gb", "nvlink", 4, "as the datasheet of a100_sxm_40gb has it"},
		"azure_ndv2_v100_nccl_topo.xml":             {"1x8 gpu", "", 1, "does not say what joins the GPUs"},
		"azure_ndv4_a100_nccl_topo.xml":             {"1x8 gpu", "", 8, "does not say what joins the GPUs"},
		"azure_ncv4_nccl_graph.xml":                 {says: "azure_ncv4_nccl_graph.xml:1: <graphs> is a file of NCCL_GRAPH_FILE"},
		"rccl_topo_3p_pcie.xml":                     {"1x3 mi210", "pcie", 1, "the farthest meet at SYS"},
		"rccl_topo_4p3l_2h.xml":                     {"1x8 gpu", "pcie", 1, "xgmi joins only the GPUs of each island (0000:43:00.0 0000:23:00.0 0000:26:00.0 0000:03:00.0) (0000:c3:00.0"},
		"rccl_topo_8p_940.xml":                      {"1x8 mi300x", "xgmi", 8, "every two GPUs are joined (links a pair: 1)"},
		"b200_8gpu_8nic_topo_m.txt":                 {"1x8 gpu", "nvlink", 8, "every two GPUs are joined (links a pair: 18)"},
		"rtx5090_2gpu_topo_m_and_p2p.txt":           {"1x2 gpu", "pcie", 0, "topo -p2p says GNS"},
		"v100_4gpu_c4140_topo_m.txt":                {"1x4 gpu", "nvlink", 1, "every two GPUs are joined (links a pair: 2)"},
		"unlicensed/v100_8gpu_mlx_topo_m_2020.txt":  {"1x8 gpu", "nvlink", 1, "only 16 of 28 pairs are joined (links a pair: 1 to 2); the others meet at SYS"},
		"unlicensed/v100_8gpu_topo_m_2019_tabs.txt": {"1x8 gpu", "nvlink", 0, "only 16 of 28 pairs are joined (links a pair: 1 to 2); the others meet at SYS"},
	}
}

// Every file that vendors and users published is drafted as a person would, or
// refused for what it is.
func TestRecordedTopologies(t *testing.T) {
	dir, want := recordings(t), publishedFiles()
	sheet := func(model string) Datasheet {
		if model == "a100_sxm_40gb" {
			return Datasheet{Fabric: "nvlink", LinkPerS: 300e9, NetPerS: 25e9}
		}
		return Datasheet{}
	}
	seen := 0
	err := filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		rel, _ := filepath.Rel(dir, path)
		w, ok := want[filepath.ToSlash(rel)]
		if !ok {
			t.Errorf("%s: a file that this test does not know", rel)
			return nil
		}
		seen++
		d, err := draft(path, Options{Device: "gpu", Datasheet: sheet})
		if w.cluster == "" {
			if err == nil || !strings.Contains(err.Error(), w.says) {
				t.Errorf("%s: %v, want %q", rel, err, w.says)
			}
			return nil
		}
		if err != nil {
			t.Error(err)
			return nil
		}
		n := d.Cluster.Nodes[0]
		if d.Cluster.String() != w.cluster || n.Link != w.link || n.NICs != w.nics {
			t.Errorf("%s: %s over %q with %d cards, want %s over %q with %d", rel, d.Cluster, n.Link, n.NICs, w.cluster, w.link, w.nics)
		}
		if notes := strings.Join(append(d.Read, d.Guessed...), "\n"); !strings.Contains(notes, w.says) {
			t.Errorf("%s: %q is not in\n%s", rel, w.says, notes)
		}
		readsBack(t, d)
		return nil
	})
	if err != nil || seen != len(want) {
		t.Errorf("%d files, want %d: %v", seen, len(want), err)
	}
}

// Clouds' files tell of their cards' slots, not of their rates: no draft states one.
func TestRecordedCardsWithoutRates(t *testing.T) {
	dir := recordings(t)
	for _, name := range []string{"aws_p4d_a100_nccl_topo.xml", "azure_ndv4_a100_nccl_topo.xml"} {
		d, err := draft(filepath.Join(dir, name), Options{Device: "gpu", Nodes: 2})
		if err != nil || len(d.Cluster.Links) > 0 || d.Cluster.Network != "" || !strings.Contains(strings.Join(d.FillIn, "\n"), "network: no file of one machine tells") {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
}

func draft(path string, o Options) (*Draft, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	format := Matrix
	if strings.HasSuffix(path, ".xml") {
		format = XML
	}
	m, err := Read(format, filepath.Base(path), f)
	if err != nil {
		return nil, err
	}
	return m.Draft(o)
}

// readsBack checks that a draft is the cluster.yaml that it says.
func readsBack(t testing.TB, d *Draft) {
	t.Helper()
	text := d.YAML("a file")
	got, err := costmodel.ReadClusterYAML("cluster.yaml", text)
	if err != nil || !cmp.Equal(got, d.Cluster, cmpopts.EquateEmpty()) {
		t.Errorf("%v\n%s\n%s", err, cmp.Diff(d.Cluster, got), text)
	}
}

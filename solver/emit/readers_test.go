package emit

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/evenkeel/evenkeel/internal/units"
)

// placed is where a framework would put what: of every one of its ranks the tokens that it
// owns, one by one, and the ranks it exchanges heads with and passes keys and values to.
type placed struct {
	tokens [][]int
	hp     [][]int // all-to-all groups
	ring   [][]int // rings
}

// reader loads a text of a plan of so many ranks and tokens, for a model with so many heads.
type reader func(t testing.TB, text string, ranks int, seq units.Tokens, q, kv int) placed

// readers load what is emitted the way the framework does: of its text alone, by its own rules
// of groups and chunks.
func readers() map[string]reader {
	return map[string]reader{
		"megatron": readMegatron, "usp": readUSP, "accelerate": readAccelerate, "magi": readMagi,
	}
}

// upTo are the numbers from a to b - 1.
func upTo(a, b int) []int {
	var all []int
	for i := a; i < b; i++ {
		all = append(all, i)
	}
	return all
}

// dualChunks gives rank r of n the chunks r and 2n - 1 - r of 2n.
func dualChunks(n, seq int) [][]int {
	if n == 1 {
		return [][]int{upTo(0, seq)}
	}
	all := make([][]int, n)
	chunk := seq / (2 * n)
	for c := range 2 * n {
		r := min(c, 2*n-1-c)
		all[r] = append(all[r], upTo(c*chunk, (c+1)*chunk)...)
	}
	return all
}

// nested makes the two levels of groups of n ranks: of neighbours, and across them.
func nested(n, inner int) (near, across [][]int) {
	near, across = make([][]int, n/inner), make([][]int, inner)
	for r := range n {
		near[r/inner] = append(near[r/inner], r)
		across[r%inner] = append(across[r%inner], r)
	}
	return near, across
}

// megatronArguments are the arguments that Megatron-LM knows of those that are emitted, and how
// many values each has.
func megatronArguments() map[string]int {
	return map[string]int{
		"--tensor-model-parallel-size": 1, "--pipeline-model-parallel-size": 1, "--context-parallel-size": 1, "--cp-comm-type": 1,
		"--hierarchical-context-parallel-sizes": 2, "--seq-length": 1, "--micro-batch-size": 1, "--global-batch-size": 1,
		"--recompute-granularity": 1, "--recompute-method": 1, "--recompute-num-layers": 1, "--bf16": 0, "--fp16": 0,
		"--use-megatron-fsdp": 0, "--data-parallel-sharding-strategy": 1, "--use-distributed-optimizer": 0,
		"--no-gradient-accumulation-fusion": 0, "--ckpt-format": 1, "--overlap-grad-reduce": 0, "--overlap-param-gather": 0,
	}
}

func readMegatron(t testing.TB, text string, ranks int, seq units.Tokens, q, kv int) placed {
	args := map[string][]string{}
	last := ""
	for _, word := range strings.Fields(text) {
		if strings.HasPrefix(word, "--") {
			last = word
			args[last] = nil
			continue
		}
		args[last] = append(args[last], word)
	}
	for name, values := range args {
		if want, ok := megatronArguments()[name]; !ok || len(values) != want {
			t.Fatalf("%s %v", name, values)
		}
	}
	one := func(name string) int {
		n, err := strconv.Atoi(strings.Join(args[name], " "))
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return n
	}
	if one("--tensor-model-parallel-size") != 1 || one("--pipeline-model-parallel-size") != 1 || one("--seq-length") != int(seq) || one("--micro-batch-size") != 1 {
		t.Fatal(text)
	}
	cp := one("--context-parallel-size")
	if cp != ranks || cp > 1 && int(seq)%(2*cp) != 0 {
		t.Fatalf("%d ranks, %d tokens: %s", ranks, int64(seq), text)
	}
	sizes := args["--hierarchical-context-parallel-sizes"]
	inner := 1
	switch kind := strings.Join(args["--cp-comm-type"], " "); kind {
	case "p2p":
	case "":
		if cp > 1 {
			t.Fatal("no way of exchange")
		}
	case "a2a":
		inner = cp
	case "a2a+p2p":
		if len(sizes) != 2 {
			t.Fatal(sizes)
		}
		a, _ := strconv.Atoi(sizes[0])
		p, _ := strconv.Atoi(sizes[1])
		if a < 2 || p < 2 || a*p != cp {
			t.Fatal(sizes)
		}
		inner = a
	default:
		t.Fatal(kind)
	}
	if q%inner != 0 || kv%inner != 0 {
		t.Fatalf("%d query and %d KV heads over %d", q, kv, inner)
	}
	near, across := nested(cp, inner)
	return placed{dualChunks(cp, int(seq)), near, across}
}

var uspCall = regexp.MustCompile(`set_seq_parallel_pg\(\s+sp_ulysses_degree=(\d+), sp_ring_degree=(\d+), rank=rank, world_size=world_size, use_ulysses_low=(True|False)\s+\)`)

func readUSP(t testing.TB, text string, ranks int, seq units.Tokens, q, kv int) placed {
	m := uspCall.FindStringSubmatch(text)
	if m == nil {
		t.Fatal(text)
	}
	u, _ := strconv.Atoi(m[1])
	r, _ := strconv.Atoi(m[2])
	if u*r != ranks || q%u != 0 || kv%u != 0 {
		t.Fatalf("%d query and %d KV heads, %d ranks: %s", q, kv, ranks, text)
	}
	var x placed
	if m[3] == "True" {
		x.hp, x.ring = nested(ranks, u)
	} else {
		x.ring, x.hp = nested(ranks, r)
	}
	x.tokens = make([][]int, ranks)
	pairs := dualChunks(r, int(seq))
	for ring, members := range x.ring { // the ring-th member of every all-to-all group
		for g, rank := range members {
			part := len(pairs[g]) / u
			own := slices.Clone(pairs[g][ring*part : (ring+1)*part])
			x.tokens[rank] = own
		}
	}
	return x
}

func readAccelerate(t testing.TB, text string, ranks int, seq units.Tokens, q, kv int) placed {
	var c struct {
		Distributed string         `yaml:"distributed_type"`
		DeepSpeed   map[string]int `yaml:"deepspeed_config"`
		FSDP        map[string]any `yaml:"fsdp_config"`
		Machines    int            `yaml:"num_machines"`
		Processes   int            `yaml:"num_processes"`
		Precision   string         `yaml:"mixed_precision"`
		Parallelism map[string]any `yaml:"parallelism_config"`
	}
	if err := yaml.UnmarshalWithOptions([]byte(text), &c, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	size := func(key string) int {
		if v, ok := c.Parallelism["parallelism_config_"+key]; ok {
			n, err := strconv.Atoi(fmt.Sprint(v))
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		return 1
	}
	cp, sp := size("cp_size"), size("sp_size")
	if c.Processes != ranks || c.Machines < 1 || c.Processes%c.Machines != 0 || c.Precision == "" || size("dp_replicate_size")*size("dp_shard_size")*cp*sp != ranks || cp > 1 && sp > 1 {
		t.Fatal(text)
	}
	if sp > 1 {
		if c.Distributed != "DEEPSPEED" || size("sp_seq_length") != int(seq) || int(seq)%sp != 0 || q%sp != 0 || kv%sp != 0 && sp%kv != 0 {
			t.Fatalf("%d query and %d KV heads: %s", q, kv, text)
		}
		x := placed{hp: [][]int{upTo(0, ranks)}}
		for r := range ranks {
			x.ring = append(x.ring, []int{r})
			x.tokens = append(x.tokens, upTo(r*int(seq)/ranks, (r+1)*int(seq)/ranks))
		}
		return x
	}
	if c.Distributed != "FSDP" || c.Parallelism["parallelism_config_cp_comm_strategy"] != "alltoall" {
		t.Fatal(text)
	}
	near, across := nested(ranks, 1)
	return placed{dualChunks(ranks, int(seq)), near, across}
}

func readMagi(t testing.TB, text string, ranks int, seq units.Tokens, q, kv int) placed {
	var m struct {
		Total      int     `json:"total_seqlen_tokens"`
		Chunk      int     `json:"chunk_size_tokens"`
		Uneven     bool    `json:"uneven_shard"`
		Partitions [][]int `json:"partitions"`
	}
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	const fewest = 8 // MAGI_ATTENTION_MIN_CHUNKS_PER_RANK caps chunks where they are larger
	if m.Total != int(seq) || len(m.Partitions) != ranks || !m.Uneven || m.Chunk > max(1, (m.Total+fewest*ranks-1)/(fewest*ranks)) {
		t.Fatal(text)
	}
	var x placed
	x.hp, x.ring = nested(ranks, 1)
	for _, chunks := range m.Partitions {
		var own []int
		for i, c := range chunks {
			if i > 0 && c <= chunks[i-1] {
				t.Fatalf("chunks %v do not rise", chunks)
			}
			own = append(own, upTo(c*m.Chunk, min((c+1)*m.Chunk, int(seq)))...)
		}
		x.tokens = append(x.tokens, own)
	}
	return x
}

// placedOf is the layout that was priced, in the framework's ranks.
func placedOf(e *Emission) placed {
	var x placed
	place := map[int]int{}
	for i, r := range e.Ranks {
		place[r] = i
	}
	for _, r := range e.Ranks {
		var own []int
		for _, s := range e.Layout.Shards[r].Segments {
			own = append(own, upTo(int(s.Start), int(s.End))...)
		}
		x.tokens = append(x.tokens, own)
	}
	size := len(e.Layout.Groups[0])
	x.ring = make([][]int, size)
	for _, g := range e.Layout.Groups {
		var members []int
		for i, m := range g {
			members = append(members, place[m.Rank])
			x.ring[i] = append(x.ring[i], place[m.Rank])
		}
		x.hp = append(x.hp, members)
	}
	return x
}

package serve

import (
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/evenkeel/evenkeel/internal/units"
)

// crashed starts a server on the journal of another as a crash would leave it now.
func (r *running) crashed(change func(*Config)) *running {
	r.t.Helper()
	data, err := os.ReadFile(r.config.Journal)
	if err != nil {
		r.t.Fatal(err)
	}
	path := filepath.Join(r.t.TempDir(), "j")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		r.t.Fatal(err)
	}
	return start(r.t, func(c *Config) {
		c.Journal = path
		if change != nil {
			change(c)
		}
	})
}

func journalled(t *testing.T) *running {
	path := filepath.Join(t.TempDir(), "folder", "j")
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	return start(t, func(c *Config) { c.Journal = path })
}

// Plans name devices by rank and groups by their place among the kinds: a server of
// others must not hand them out. One of the same takes them, whatever it costs.
func TestAJournalOfOtherDevicesIsRefused(t *testing.T) {
	r := journalled(t)
	r.submitted(1, 5)
	want := r.answer("/v1/jobs/a/plans/1?wait_s=5")
	if got := r.crashed(func(c *Config) { c.Setup.Costs = "other" }).answer("/v1/jobs/a/plans/1?wait_s=5"); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, not %+v", got, want)
	}
	data, err := os.ReadFile(r.config.Journal)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Setup){
		"devices": func(s *Setup) { s.Fleet = append(slices.Clone(s.Fleet), SetupPool{"d", [][]int{{99}}}) },
		"classes": func(s *Setup) { s.Classes = append(slices.Clone(s.Classes), SetupClass{Name: "x"}) },
	} {
		c := r.config
		if c.Journal = filepath.Join(t.TempDir(), "j"); os.WriteFile(c.Journal, data, 0o600) != nil {
			t.Fatal(name)
		}
		change(&c.Setup)
		was := c.Setup.Costs
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), " than this server's: "+was+", like this server's, but of another model or profile of that name, or by another evenkeel; start with the flags") {
			t.Errorf("%s: %v", name, err)
		}
		c.Setup.Costs = "prices of this one"
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), "j:1: its plans are for other devices or kinds of groups than this server's: "+was+"; this server's: prices of this one; start with the flags") {
			t.Errorf("%s: %v", name, err)
		}
		if left, err := os.ReadFile(c.Journal); err != nil || string(left) != string(data) {
			t.Errorf("%s: the journal was changed: %v", name, err)
		}
	}
}

// The digest of a setup is one for good: a journal outlives the evenkeel that wrote it, and
// a field that is new and not set is none of its devices and groups.
func TestTheDigestOfASetupStays(t *testing.T) {
	s := Setup{
		Fleet:   []SetupPool{{"a", [][]int{{0, 1}}}},
		Classes: []SetupClass{{Name: "2", Uses: []int{2}, Heads: 2, Cap: 100}},
	}
	of := s.planning().Groups
	if want := "908922aa2555864e060b775df92a83e4"; of != want {
		t.Errorf("%s, was %s", of, want)
	}
	if s.Classes[0].OwnLast = true; s.planning().Groups == of {
		t.Error("the order of blocks is none of the digest")
	}
}

// The journal is rewritten all the time while clients submit and fetch: nothing that
// was acknowledged is missing from it at any moment.
func TestRewritingLosesNothing(t *testing.T) {
	r := journalled(t)
	var clients sync.WaitGroup
	var mu sync.Mutex
	var acknowledged []int
	for client := range 4 {
		clients.Go(func() {
			for i := range 30 {
				r.submitted(100*client+i, 100*client+i+1)
				mu.Lock()
				acknowledged = append(acknowledged, 100*client+i)
				mu.Unlock()
				if i%3 == 0 {
					r.answer(fmt.Sprintf("/v1/jobs/a/plans/%d?wait_s=5", 100*client+i))
				}
			}
		})
	}
	end, rewriting := make(chan struct{}), sync.WaitGroup{}
	rewriting.Go(func() {
		for {
			select {
			case <-end:
				return
			default:
				if err := r.log.rewrite(r.board); err != nil {
					t.Error(err)
				}
				mu.Lock()
				before := slices.Clone(acknowledged)
				mu.Unlock()
				if lost := missing(t, r.config.Journal, before); len(lost) > 0 {
					t.Errorf("not in the journal: %v", lost)
					return
				}
			}
		}
	})
	clients.Wait()
	close(end)
	rewriting.Wait()
	second := r.crashed(nil)
	for client := range 4 {
		for i := range 30 {
			step := 100*client + i
			if a := second.answer(fmt.Sprintf("/v1/jobs/a/plans/%d?wait_s=5", step)); a.Plan.Time != units.Seconds(step+1) {
				t.Fatalf("step %d: %+v", step, a)
			}
		}
	}
}

// missing are the steps of which a journal has neither batch nor answer.
func missing(t *testing.T, path string, steps []int) (lost []int) {
	data, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	for _, step := range steps {
		if !strings.Contains(string(data), fmt.Sprintf(`"step":%d,`, step)) {
			lost = append(lost, step)
		}
	}
	return lost
}

// Between an answer's line in the journal and its place among the kept, a rewriting
// would drop the line.
func TestAnAnswerIsOnTheBoardWithItsLine(t *testing.T) {
	r := journalled(t)
	r.submitted(1, 4)
	r.answer("/v1/jobs/a/plans/1?wait_s=5")
	if err := r.log.rewrite(r.board); err != nil {
		t.Fatal(err)
	}
	data, _ := os.ReadFile(r.config.Journal)
	if n := strings.Count(string(data), `"t":"result"`); n != 1 {
		t.Fatalf("%d answers in\n%s", n, data)
	}
	seen := false
	err := r.log.commit(dropped{T: "drop", Job: "a", Step: 1}, func() {
		seen = true
		if r.log.mu.TryLock() {
			r.log.mu.Unlock()
			t.Error("a rewriting could come between the line and what it tells of")
		}
	})
	if err != nil || !seen {
		t.Fatal(err)
	}
}

// A batch that is submitted twice at once is acknowledged to neither client before it
// is on the disk.
func TestNobodyIsAcknowledgedBeforeTheDisk(t *testing.T) {
	r := journalled(t)
	r.log.mu.Lock() // the disk is slow
	codes := make(chan int, 2)
	for range 2 {
		go func() {
			code, _ := r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":1,"lengths_tokens":[4]}]}`)
			codes <- code
		}()
	}
	select {
	case code := <-codes:
		t.Errorf("acknowledged before the disk: %d", code)
		r.log.mu.Unlock()
		return
	case <-time.After(100 * time.Millisecond):
	}
	r.log.mu.Unlock()
	for range 2 {
		if code := <-codes; code != 202 {
			t.Error(code)
		}
	}
}

// What was dropped stays dropped, and its step may be used for another batch.
func TestADroppedPlanDoesNotComeBack(t *testing.T) {
	r := journalled(t)
	r.submitted(1, 4)
	r.answer("/v1/jobs/a/plans/1?wait_s=5")
	if code, body := r.ask("DELETE", "/v1/jobs/a/plans/1", ""); code != 204 {
		t.Fatalf("%d %s", code, body)
	}
	second := r.crashed(nil)
	if code, body := second.ask("GET", "/v1/jobs/a/plans/1", ""); code != 404 {
		t.Fatalf("%d %s", code, body)
	}
	second.submitted(1, 7)
	if a := second.crashed(nil).answer("/v1/jobs/a/plans/1?wait_s=5"); a.Plan.Time != 7 {
		t.Fatalf("%+v", a)
	}
}

// A submission that cannot be written is refused and leaves nothing behind, and once
// the disk is well again lines go to the file of the journal's name.
func TestADiskThatFailsAndRecovers(t *testing.T) {
	r := journalled(t)
	folder := filepath.Dir(r.config.Journal)
	if err := os.Rename(folder, folder+".away"); err != nil {
		t.Fatal(err)
	}
	if err := r.log.rewrite(r.board); err == nil {
		t.Fatal("rewritten without a folder")
	}
	if code, body := r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":1,"lengths_tokens":[4]}]}`); code != 500 || !strings.Contains(body, `"journal"`) {
		t.Fatalf("%d %s", code, body)
	}
	if code, _ := r.ask("GET", "/v1/jobs/a/plans/1", ""); code != 404 {
		t.Fatalf("it is there: %d", code)
	}
	if err := os.Rename(folder+".away", folder); err != nil {
		t.Fatal(err)
	}
	r.submitted(1, 5)
	if a := r.crashed(nil).answer("/v1/jobs/a/plans/1?wait_s=5"); a.Plan.Time != 5 {
		t.Fatalf("%+v", a)
	}
}

// A submission is one line: a crash leaves all of its batches or none.
func TestASubmissionIsOneLine(t *testing.T) {
	r := journalled(t)
	r.Server.log.mu.Lock()
	before := r.log.j.Size()
	r.Server.log.mu.Unlock()
	if code, body := r.ask("POST", "/v1/jobs/a/batches", `{"batches":[{"step":1,"lengths_tokens":[4]},{"step":2,"lengths_tokens":[5]}]}`); code != 202 {
		t.Fatalf("%d %s", code, body)
	}
	data, err := os.ReadFile(r.config.Journal)
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := strings.Cut(string(data[before:]), "\n")
	if !strings.Contains(line, `"step":1`) || !strings.Contains(line, `"step":2`) {
		t.Fatalf("%s", line)
	}
}

// A plan that the end of the server cut short is nobody's answer: the next server
// makes the whole one.
func TestAPlanCutShortByTheEndIsMadeAnew(t *testing.T) {
	path := filepath.Join(t.TempDir(), "j")
	first := start(t, func(c *Config) {
		c.Journal = path
		c.Planners = []Planner{oneGroup{takes: time.Hour}}
	})
	first.submitted(1, 4)
	eventually(t, "planning", func() bool { _, busy, _, _ := first.board.sizes(); return busy == 1 })
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := start(t, func(c *Config) { c.Journal = path })
	if a := second.answer("/v1/jobs/a/plans/1?wait_s=5"); a.Stopped || a.Plan.Time != 4 {
		t.Fatalf("%+v", a)
	}
}

// The same board makes the same journal: batches being planned come by job and step.
func TestARewrittenJournalHasAnOrder(t *testing.T) {
	r := start(t, func(c *Config) {
		c.Journal = filepath.Join(t.TempDir(), "j")
		c.Planners = slices.Repeat([]Planner{oneGroup{takes: time.Hour}}, 8)
	})
	for _, job := range []string{"b", "a"} {
		for _, step := range []int{11, 2, 8, 5} {
			if code, body := r.ask("POST", "/v1/jobs/"+job+"/batches", fmt.Sprintf(`{"batches":[{"step":%d,"lengths_tokens":[4]}]}`, step)); code != 202 {
				t.Fatalf("%d %s", code, body)
			}
		}
	}
	want := []string{"a 2", "a 5", "a 8", "a 11", "b 2", "b 5", "b 8", "b 11"}
	eventually(t, "planning", func() bool { _, busy, _, _ := r.board.sizes(); return busy == 8 })
	for range 20 {
		if err := r.log.rewrite(r.board); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(r.config.Journal)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range regexp.MustCompile(`"job":"(.)".*"step":(\d+)`).FindAllStringSubmatch(string(data), -1) {
			got = append(got, m[1]+" "+m[2])
		}
		if !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
}

// A journal with every kind of line is gone on with; half a line at its end is told and cut off.
func TestAJournalIsCheckedBeforePricing(t *testing.T) {
	r := journalled(t)
	r.submitted(1, 4)
	r.answer("/v1/jobs/a/plans/1?wait_s=5")
	r.submitted(2, 4)
	r.answer("/v1/jobs/a/plans/2?wait_s=5")
	if code, body := r.ask("DELETE", "/v1/jobs/a/plans/2", ""); code != 204 {
		t.Fatalf("%d %s", code, body)
	}
	data, err := os.ReadFile(r.config.Journal)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"for", "accept", "drop", "result"} {
		if !strings.Contains(string(data), `"t":"`+kind+`"`) {
			t.Fatalf("no line of %s in\n%s", kind, data)
		}
	}
	path := filepath.Join(t.TempDir(), "j")
	if note, err := CheckJournal(path); note != "" || err != nil {
		t.Errorf("one that is yet to be made: %q, %v", note, err)
	}
	if err := os.WriteFile(path, append(slices.Clone(data), `{"t":"acc`...), 0o600); err != nil {
		t.Fatal(err)
	}
	if note, err := CheckJournal(path); !strings.HasSuffix(note, "a last line of 9 bytes was torn and is cut off: if it was an answer, its batch is planned again, and if an acceptance, its batches were not acknowledged") || err != nil {
		t.Errorf("%q, %v", note, err)
	}
	if kept, _ := os.ReadFile(path); string(kept) != string(data) {
		t.Errorf("what was whole was changed: %s", kept)
	}
}

// Damage within a journal is told by its line, in words, with the ways out.
func TestADamagedJournalSaysWhereAndWhatToDo(t *testing.T) {
	const way = "; delete the line, and of what it held answers are planned again and accepted batches lost, or move the journal away to start without it"
	whole := `{"t":"accept","job":"a","batches":[{"step":1,"lengths_tokens":[1]}]}` + "\n"
	for line, want := range map[string]string{
		`{`:                         `:2:2: ends in the middle: it was cut short`,
		`{"t":"accept","job":"a`:    `:2:23: ends in the middle: it was cut short`,
		"\x00\x00\x00\x00":          `:2:1: `,
		`{"t":5}`:                   `:2: t: no such kind of line`,
		`{"t":"drop","job":"a",}`:   `:2:`,
		`{"t":"drop","job":["a"]}`:  `:2: job: [...]: want a string`,
		`{"t":"drop","t":"result"}`: `:2:13: key "t" is given twice`,
	} {
		path := filepath.Join(t.TempDir(), "j")
		if err := os.WriteFile(path, []byte(whole+line+"\n"+whole), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := CheckJournal(path)
		if err == nil || !strings.HasPrefix(err.Error(), path+want) || !strings.HasSuffix(err.Error(), way) || strings.Contains(err.Error(), "jsontext") {
			t.Errorf("%q: %v, want %s", line, err, want)
		}
	}
}

package serve

import (
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// view shows the journal of a running server, which has it locked.
func (r *running) view() *JournalView {
	r.t.Helper()
	data, err := os.ReadFile(r.config.Journal)
	if err != nil {
		r.t.Fatal(err)
	}
	if !IsJournal(data) {
		r.t.Errorf("no journal: %.80s", data)
	}
	v, err := ViewJournal("j", strings.NewReader(string(data)))
	if err != nil {
		r.t.Fatal(err)
	}
	return v
}

func TestAJournalIsShownAsItIs(t *testing.T) {
	r := journalled(t)
	costs := r.config.Setup.Costs
	if d := cmp.Diff(&JournalView{Costs: costs}, r.view()); d != "" {
		t.Error(d)
	}
	r.submitted(1, 5)
	r.submitted(7, 5)
	for _, step := range []string{"1", "7"} {
		r.answer("/v1/jobs/a/plans/" + step + "?wait_s=5")
	}
	if d := cmp.Diff(&JournalView{Costs: costs, Jobs: []JobInView{{Job: "a", First: 1, Last: 7, Plans: 2}}}, r.view()); d != "" {
		t.Error(d)
	}
}

func TestAJournalIsCounted(t *testing.T) {
	const lines = `{"t":"for","groups":"00","costs":"made up"}
{"t":"accept","job":"b","batches":[{"step":3,"lengths_tokens":[1]},{"step":4,"lengths_tokens":[1]},{"step":5,"lengths_tokens":[1]}]}
{"t":"accept","job":"a","batches":[{"step":9,"lengths_tokens":[1]}]}
{"t":"result","job":"b","step":3,"digest":"0","answer":{}}
{"t":"result","job":"b","step":4,"digest":"0","failed":true,"answer":{}}
{"t":"result","job":"a","step":9,"digest":"0","answer":{}}
{"t":"drop","job":"a","step":9}
{"t":"accept","jo`
	v, err := ViewJournal("j", strings.NewReader(lines))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&JournalView{Costs: "made up", Jobs: []JobInView{{Job: "b", First: 3, Last: 5, Plans: 1, Failed: 1, Waiting: 1}}, Torn: true}, v); d != "" {
		t.Error(d)
	}
	if _, err := ViewJournal("j", strings.NewReader(strings.Replace(lines, `"drop"`, `"dorp"`, 1))); err == nil || !strings.Contains(err.Error(), "j:7: t: dorp: no such kind of line") {
		t.Error(err)
	}
	for _, other := range []string{"", "{}", `{"t":"for"}`, `{"schema":"evenkeel.recording/v1"}`, "[1]"} {
		if IsJournal([]byte(other)) {
			t.Errorf("%q is taken for a journal", other)
		}
	}
}

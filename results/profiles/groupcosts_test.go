package profiles

import (
	"os"
	"strings"
	"testing"
)

func TestNoticeNamesPublishedCosts(t *testing.T) {
	notice, err := os.ReadFile("NOTICE")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range GroupCosts() {
		for _, o := range g.Model.Origins {
			if !strings.Contains(string(notice), o.Commit) || !strings.Contains(string(notice), o.Repository) {
				t.Errorf("%s: NOTICE lacks %s at %s", g.Name, o.Repository, o.Commit)
			}
		}
	}
}

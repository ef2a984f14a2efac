package main

import (
	"bytes"
	"strings"
	"sync"
	"time"
)

// lines keeps what a process writes, for those who wait for a part of it.
type lines struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *lines) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

// within waits for a text.
func (l *lines) within(limit time.Duration, text string) bool {
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		if strings.Contains(l.text(), text) {
			return true
		}
	}
	return false
}

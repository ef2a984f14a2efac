package serve

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-json-experiment/json"
)

// placed is a connection that gives its place back when it is closed, and that has a
// Problem for what never becomes a request: net/http answers bytes that are none in
// words of its own, and not at all to a header that does not end.
type placed struct {
	net.Conn
	free   chan struct{}
	once   sync.Once
	within time.Duration // that a request must have arrived in
	state  atomic.Int64  // http.ConnState
	heard  atomic.Bool   // bytes, since the state is that
}

// Close implements net.Conn.
func (p *placed) Close() error {
	p.once.Do(func() { <-p.free })
	return p.Conn.Close()
}

// follow is the hook by which a connection learns whether it is between requests.
func follow(c net.Conn, state http.ConnState) {
	if p, ok := c.(*placed); ok {
		p.state.Store(int64(state))
		p.heard.Store(false)
	}
}

// Read implements net.Conn. A request that has begun and does not go on is told so: a
// body by whoever reads it, a header here.
func (p *placed) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	if n > 0 {
		p.heard.Store(true)
	}
	if state := http.ConnState(p.state.Load()); errors.Is(err, os.ErrDeadlineExceeded) && p.heard.Load() && state != http.StateActive {
		_ = p.SetWriteDeadline(time.Now().Add(time.Second)) // sockets have deadlines
		_, _ = p.Conn.Write(refusal("HTTP/1.1 408 Request Timeout", &Problem{"timeout", "", fmt.Sprintf("the header of the request did not end within %s: send it whole", p.within)}))
	}
	return n, err
}

// unread ends the head of net/http's answer to bytes that it could not read as a
// request; no answer of ours has such a head.
const unread = "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n\r\n"

// Write implements net.Conn.
func (p *placed) Write(b []byte) (int, error) {
	head, words, found := bytes.Cut(b, []byte(unread))
	if !found || !bytes.HasPrefix(head, []byte("HTTP/1.1 ")) {
		return p.Conn.Write(b)
	}
	problem := &Problem{"bad_request", "", fmt.Sprintf("%s: want HTTP/1.1, as GET /openapi.yaml describes", words)}
	if strings.HasPrefix(string(words), "431 ") {
		problem = &Problem{"too_large", "", fmt.Sprintf("the header of the request: want at most %d bytes", headerBytes)}
	}
	if _, err := p.Conn.Write(refusal(string(head), problem)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// refusal is a whole answer, after which the connection is closed.
func refusal(status string, p *Problem) []byte {
	body, err := json.Marshal(p, json.Deterministic(true))
	if err != nil {
		body = []byte("{}")
	}
	return fmt.Appendf(nil, "%s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s\n", status, len(body)+1, body)
}

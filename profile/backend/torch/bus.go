package torch

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/go-json-experiment/json"
)

// message is what the agents of a job say to each other. Task 0 leads: it
// starts workers on the other tasks' devices and talks to them as to its own.
type message struct {
	Do     verb   `json:"do"`
	Worker int    `json:"worker"`         // index of the device in its task
	Age    int    `json:"age"`            // of the worker: what its predecessors still say is ignored
	Line   string `json:"line,omitzero"`  // a line to or from the worker
	End    string `json:"end,omitzero"`   // why it ended
	Task   *task  `json:"task,omitzero"`  // what the task offers
	Error  string `json:"error,omitzero"` // why it offers nothing
}

type verb string

const (
	doOffer verb = "offer" // a task says what it has
	doStart verb = "start"
	doLine  verb = "line"
	doKill  verb = "kill"
	doLeave verb = "leave" // the worker may end by itself
	doEnded verb = "ended"
	doEnd   verb = "end"  // of the job
	doGone  verb = "gone" // a task leaves before that
)

// bus carries messages between the tasks of a job, through a worker process
// that uses torch's store: nothing in this process opens a port.
type bus struct {
	wire wire
	task int

	mu      sync.Mutex
	remotes map[[2]int]*remoteWire // by task and worker
	age     int
	gone    map[int]bool // tasks that left
	offers  chan offered
	end     error // why the bus is no more
}

type offered struct {
	from int
	message
}

// meetTimeout is how long task 0 waits for the others: schedulers start the
// nodes of a job minutes apart.
const meetTimeout = 5 * time.Minute

// join starts the relay and meets the other tasks.
func (b *Backend) join(ctx context.Context) (*bus, error) {
	w := b.config.World
	serve := w.Task == 0 && !w.AgentStore
	host, port, err := b.meetingPoint(ctx)
	if err != nil {
		return nil, err
	}
	child, err := startChild(b.command(b.python, slot{}, "relay"))
	if err != nil {
		return nil, err
	}
	c := newClient(child)
	c.silence = b.config.greetTimeout()
	f, err := c.ask(ctx, request{T: "relay", Task: w.Task, Tasks: w.Tasks, Host: host, Port: port, Serve: serve, Job: w.RestartID})
	if err != nil {
		c.close()
		return nil, fmt.Errorf("the tasks of the job cannot meet at %s:%d: %w", host, port, plain(err))
	}
	if w.Host == "" && w.Task == 0 {
		if err := b.writeRendezvous(host, f.Port); err != nil {
			c.close()
			return nil, err
		}
	}
	b.host = host
	x := &bus{wire: child, task: w.Task, remotes: map[[2]int]*remoteWire{}, gone: map[int]bool{}, offers: make(chan offered, w.Tasks)}
	return x, nil
}

// meetingPoint is where task 0 opens the store that the tasks talk through.
func (b *Backend) meetingPoint(ctx context.Context) (host string, port int, err error) {
	w := b.config.World
	switch {
	case w.Host == "" && w.Task > 0:
		return b.awaitRendezvous(ctx)
	case w.Host == "":
		return b.config.Machine.Host, 0, nil
	}
	_, err = net.DefaultResolver.LookupHost(ctx, w.Host)
	if err == nil {
		return w.Host, w.Port, nil
	}
	if w.LaunchHost != "" {
		return w.LaunchHost, w.Port, nil
	}
	return "", 0, fmt.Errorf("%s, where task 0 of this job runs by %s, has no address (%w): set MASTER_ADDR to one", w.Host, w.Source, err)
}

// writeRendezvous tells tasks that no launcher told where task 0 is.
func (b *Backend) writeRendezvous(host string, port int) error {
	path := b.config.Rendezvous
	if path == "" {
		return errors.New("the launcher does not say where task 0 is, and no folder is shared to write it down: set MASTER_ADDR and MASTER_PORT")
	}
	return os.WriteFile(path, []byte(host+" "+strconv.Itoa(port)+"\n"), 0o600)
}

// awaitRendezvous reads what task 0 wrote.
func (b *Backend) awaitRendezvous(ctx context.Context) (host string, port int, err error) {
	deadline := time.Now().Add(meetTimeout)
	for {
		data, err := os.ReadFile(b.config.Rendezvous)
		if parts := strings.Fields(string(data)); err == nil && len(parts) == 2 && strings.HasSuffix(string(data), "\n") {
			port, err = strconv.Atoi(parts[1])
			return parts[0], port, err
		}
		if time.Now().After(deadline) {
			return "", 0, fmt.Errorf("task 0 did not write %s within %s: is that folder shared by all nodes? Set MASTER_ADDR and MASTER_PORT otherwise", b.config.Rendezvous, meetTimeout)
		}
		if err := b.Clock().Sleep(ctx, 100*time.Millisecond); err != nil {
			return "", 0, err
		}
	}
}

// tell sends a message to a task.
func (x *bus) tell(to int, m message) error {
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	line, err := json.Marshal(request{T: "to", Task: to, Body: string(body)})
	if err != nil {
		return err
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.end != nil {
		return x.end
	}
	return x.wire.send(line)
}

// next is the next message from another task, and who sent it.
func (x *bus) next() (int, message, error) {
	for e := range x.wire.events() {
		if e.end != nil {
			return 0, message{}, fmt.Errorf("the connection between the tasks is lost: %w", e.end)
		}
		f, err := decodeFrame(e.line)
		if err != nil {
			return 0, message{}, err
		}
		switch f.T {
		case "from":
			var m message
			err := json.Unmarshal([]byte(f.Body), &m)
			return f.Task, m, err
		case "error":
			return 0, message{}, fmt.Errorf("the connection between the tasks is lost: %s", f.Msg)
		}
	}
	return 0, message{}, errors.New("the connection between the tasks is closed")
}

// lead hands what the other tasks say to those who wait for it, until the bus ends.
func (x *bus) lead() {
	for {
		from, m, err := x.next()
		if err != nil {
			x.stop(err)
			return
		}
		switch m.Do {
		case doOffer:
			x.offers <- offered{from, m}
		case doGone:
			x.left(from)
		default:
			x.mu.Lock()
			r := x.remotes[[2]int{from, m.Worker}]
			x.mu.Unlock()
			if r != nil && r.age == m.Age {
				r.deliver(m)
			}
		}
	}
}

// left ends the workers of a task that is no longer there.
func (x *bus) left(task int) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.gone[task] = true
	for at, r := range x.remotes {
		if at[0] == task {
			r.deliver(message{Do: doEnded, End: fmt.Sprintf("task %d left the job", task)})
		}
	}
}

// stop ends all remote workers as far as this task can tell.
func (x *bus) stop(err error) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.end = err
	for _, r := range x.remotes {
		r.deliver(message{Do: doEnded, End: err.Error()})
	}
	close(x.offers)
}

// close dismisses the other tasks.
func (x *bus) close() {
	for _, t := range x.tasks() {
		_ = x.tell(t, message{Do: doEnd}) // a task that is gone needs no dismissal
	}
	x.wire.bye()
}

func (x *bus) tasks() []int {
	var list []int
	for t := 1; t < cap(x.offers) && x.task == 0; t++ {
		list = append(list, t)
	}
	return list
}

// gather starts to lead and collects what every task of the job offers.
func (b *Backend) gather(ctx context.Context, mine task) ([]task, error) {
	x, err := b.join(ctx)
	if err != nil {
		return nil, err
	}
	b.bus = x
	go x.lead()
	tasks := make([]task, b.config.World.Tasks)
	tasks[0] = mine
	here := map[int]bool{0: true}
	deadline := time.After(meetTimeout)
	for len(here) < len(tasks) {
		select {
		case o, ok := <-x.offers:
			switch {
			case !ok:
				return nil, x.end
			case o.Error != "":
				return nil, fmt.Errorf("task %d: %s", o.from, o.Error)
			case o.Task == nil || o.from >= len(tasks):
				return nil, fmt.Errorf("task %d offers nothing", o.from)
			}
			tasks[o.from], here[o.from] = *o.Task, true
		case <-deadline:
			return nil, fmt.Errorf("%d of %d tasks came within %s; missing: %v", len(here), len(tasks), meetTimeout, missing(here, len(tasks)))
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return tasks, nil
}

func missing(here map[int]bool, n int) []int {
	var list []int
	for i := range n {
		if !here[i] {
			list = append(list, i)
		}
	}
	return list
}

// dial starts a worker on a device of another task.
func (x *bus) dial(ctx context.Context, task, index int, l local) (*client, greeting, error) {
	x.mu.Lock()
	if x.gone[task] {
		x.mu.Unlock()
		return nil, greeting{}, fmt.Errorf("task %d left the job: start it again, it goes on where it stopped", task)
	}
	x.age++
	r := &remoteWire{bus: x, task: task, worker: index, age: x.age, out: make(chan event, 256)}
	x.remotes[[2]int{task, index}] = r
	x.mu.Unlock()
	if err := r.tell(message{Do: doStart}); err != nil {
		return nil, greeting{}, err
	}
	c := newClient(r)
	c.silence = greetTimeout
	f, err := c.ask(ctx, request{T: "hello", Proto: proto, On: l.On, Cores: l.Cores, Own: l.Own})
	if err != nil {
		return nil, greeting{}, err
	}
	c.silence = silence
	return c, f.greeting, nil
}

// remoteWire is a worker on another task's device.
type remoteWire struct {
	bus          *bus
	task, worker int
	age          int

	mu    sync.Mutex
	out   chan event
	ended bool
}

func (r *remoteWire) tell(m message) error {
	m.Worker, m.Age = r.worker, r.age
	return r.bus.tell(r.task, m)
}

func (r *remoteWire) send(line []byte) error { return r.tell(message{Do: doLine, Line: string(line)}) }

func (r *remoteWire) events() <-chan event { return r.out }

// kill ends the worker. Its task may be gone too, so its end is not waited for.
func (r *remoteWire) kill() {
	_ = r.tell(message{Do: doKill})
	r.deliver(message{Do: doEnded, End: "it was killed"})
}

func (r *remoteWire) bye() {
	_ = r.tell(message{Do: doLeave})
	r.deliver(message{Do: doEnded, End: "it was closed"})
}

// deliver hands a message from the worker on. A worker that says more than
// anybody listens to is out of order, and what it says is dropped.
func (r *remoteWire) deliver(m message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	if m.Do == doEnded {
		r.ended = true
		select {
		case r.out <- event{end: errors.New(m.End)}:
		default: // its reader sees the channel closed
		}
		close(r.out)
		return
	}
	select {
	case r.out <- event{line: []byte(m.Line)}:
	default:
	}
}

// Follow serves the devices of this task to task 0 until that ends the job.
//
// Errors: no usable interpreter or device here, or the connection to task 0 is
// lost; task 0 is told the former.
func (b *Backend) Follow(ctx context.Context) error {
	mine, err := b.here(ctx)
	offer := message{Do: doOffer, Task: &mine}
	if err != nil {
		offer = message{Do: doOffer, Error: err.Error()}
		if b.python == "" {
			return err // without an interpreter there is nobody to tell it through
		}
	}
	x, joinErr := b.join(ctx)
	if joinErr != nil {
		return joinErr
	}
	b.bus = x
	if tellErr := x.tell(0, offer); err != nil || tellErr != nil {
		return errors.Join(err, tellErr)
	}
	if b.first != nil {
		b.first.close()
		b.first = nil
	}
	stopped := context.AfterFunc(ctx, func() {
		_ = x.tell(0, message{Do: doGone}) // a task 0 that is gone needs no goodbye
		x.wire.bye()
	})
	defer stopped()
	return b.serve(ctx, x, mine.Locals)
}

// served is a worker of this task that task 0 talks to.
type served struct {
	wire wire
	age  int
}

// serve does what task 0 says.
func (b *Backend) serve(ctx context.Context, x *bus, locals []local) error {
	workers := map[int]served{}
	defer func() {
		for _, w := range workers {
			w.wire.kill()
		}
	}()
	for {
		_, m, err := x.next()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
		w, known := workers[m.Worker]
		switch {
		case m.Do == doEnd:
			return nil
		case m.Do == doStart && m.Worker >= 0 && m.Worker < len(locals):
			if known {
				w.wire.kill()
			}
			if w, err = b.startServed(x, m, locals[m.Worker]); err != nil {
				return err
			}
			if w.wire != nil {
				workers[m.Worker] = w
			}
		case known && w.age == m.Age:
			w.obey(m)
		}
	}
}

// startServed starts a worker and passes on what it says.
func (b *Backend) startServed(x *bus, m message, l local) (served, error) {
	back := message{Do: doEnded, Worker: m.Worker, Age: m.Age}
	c, err := startChild(b.command(b.python, l.slot()))
	if err != nil {
		back.End = err.Error()
		return served{}, x.tell(0, back)
	}
	go func() {
		for e := range c.events() {
			say := message{Do: doLine, Worker: m.Worker, Age: m.Age, Line: string(e.line)}
			if e.end != nil {
				say = back
				say.End = e.end.Error()
			}
			_ = x.tell(0, say) // task 0 is gone: serve notices
		}
	}()
	return served{c, m.Age}, nil
}

func (w served) obey(m message) {
	switch m.Do {
	case doLine:
		_ = w.wire.send([]byte(m.Line)) // a worker that is gone says so by its end
	case doKill:
		w.wire.kill()
	case doLeave:
		go w.wire.bye()
	}
}

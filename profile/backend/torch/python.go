package torch

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/evenkeel/evenkeel/profile"
)

// candidates lists the interpreters to try, the most wanted first: the one
// asked for and no other if one was; else what PATH says and the place where
// distributions put theirs.
func candidates(asked string, env func(string) string) []string {
	if asked == "" {
		asked = env("EVENKEEL_PYTHON")
	}
	if asked != "" {
		return []string{asked}
	}
	list := []string{"/usr/bin/python3"}
	if p, err := exec.LookPath("python3"); err == nil && p != list[0] {
		list = []string{p, list[0]}
	}
	return list
}

// interpreter is a Python that answered, and its first worker. cores is why it
// was asked for a processor after a GPU; nil if it was not.
type interpreter struct {
	path   string
	hello  greeting
	client *client
	cores  error
}

// greetTimeout is for the first answer of an interpreter: importing torch from
// a slow network disk takes its time.
const greetTimeout = 120 * time.Second

// NoTorchError says that no interpreter can run the worker, and why each cannot.
type NoTorchError struct{ Refused []string }

// Error lists the refusals and the ways out.
func (e *NoTorchError) Error() string {
	return "no Python can run the worker: " + strings.Join(e.Refused, "; ") +
		". Install torch (Debian: apt-get install python3-torch), or name an interpreter that has it with --python or EVENKEEL_PYTHON"
}

// probe starts a worker with each candidate until one says hello.
func (b *Backend) probe(ctx context.Context) (*interpreter, []string, error) {
	var refused []string
	for _, path := range candidates(b.config.Python, os.Getenv) {
		told := b.waiting(path)
		p, err := b.try(ctx, path)
		told()
		if ctx.Err() != nil {
			return nil, refused, ctx.Err()
		}
		if err == nil {
			return p, refused, nil
		}
		// What a program said at its end may have a full stop of its own.
		refused = append(refused, strings.TrimRight(fmt.Sprintf("%s: %v", path, plain(err)), "."))
	}
	return nil, refused, &NoTorchError{refused}
}

// waitingAfter is how long an interpreter is waited for without a word.
const waitingAfter = 5 * time.Second

// waiting tells of an interpreter that takes long, until stop is called, once: nothing is told
// any more when that returns.
func (b *Backend) waiting(path string) (stop func()) {
	if b.config.Waiting == nil {
		return func() {}
	}
	told := make(chan struct{})
	t := time.AfterFunc(min(waitingAfter, b.config.greetTimeout()/2), func() {
		defer close(told)
		b.config.Waiting(path, b.config.greetTimeout())
	})
	return func() {
		if !t.Stop() {
			<-told
		}
	}
}

// try starts a worker on the wanted device, or on the processor where no device
// was asked for and there is none.
func (b *Backend) try(ctx context.Context, python string) (*interpreter, error) {
	if info, err := os.Stat(python); err != nil || info.IsDir() {
		found, lookErr := exec.LookPath(python)
		if lookErr != nil {
			return nil, errors.New("no such program")
		}
		python = found
	}
	python, err := filepath.Abs(python) // a worker has a folder of its own
	if err != nil {
		return nil, err
	}
	var first error
	for _, on := range b.config.kinds() {
		c, hello, err := b.greet(ctx, python, slot{on: on, cores: 1})
		if err == nil {
			return &interpreter{path: python, hello: hello, client: c, cores: first}, nil
		}
		if first == nil {
			first = err
		}
		var e *profile.OpError
		if !errors.As(err, &e) || e.Class != profile.Unsupported {
			break
		}
	}
	return nil, first
}

// slot is where one worker runs: a processor with a number of threads, or a GPU.
type slot struct {
	on      string // "cpu" or "cuda:0"
	cores   int    // threads, on a processor
	isa     ISA    // its widest vector units
	own     []int  // cores that no other rank has, counted among those this process may use; nil: any
	visible string // what CUDA_VISIBLE_DEVICES is set to; "" leaves it alone
	sms     int    // multiprocessors of a GPU to be confined to; 0: all
	sharing int    // ranks on the GPU; 0: one
}

// greet starts a worker and waits for its hello.
func (b *Backend) greet(ctx context.Context, python string, s slot) (*client, greeting, error) {
	ctx, cancel := context.WithTimeout(ctx, b.config.greetTimeout())
	defer cancel()
	w, err := startChild(b.command(python, s))
	if err != nil {
		return nil, greeting{}, err
	}
	c := newClient(w)
	c.silence = 2 * b.config.greetTimeout() // an import holds the interpreter, and the beats with it
	f, err := c.ask(ctx, request{T: "hello", Proto: proto, On: s.on, Cores: s.cores, Own: s.own, SMs: s.sms, Sharing: s.sharing})
	if err != nil {
		c.close()
		return nil, greeting{}, err
	}
	if f.Proto != proto {
		c.close()
		return nil, greeting{}, fmt.Errorf("its worker speaks protocol %d, this is %d", f.Proto, proto)
	}
	if err := cmp.Or(f.Device.Vectors.obey(s.isa), f.Device.confined(s.sms)); err != nil {
		c.close()
		return nil, greeting{}, err
	}
	c.silence = silence
	return c, f.greeting, nil
}

// plain takes the class off an error: of hello it says nothing.
func plain(err error) error {
	var e *profile.OpError
	if errors.As(err, &e) {
		return e.Err
	}
	return err
}

// command makes the command that runs the worker: isolated from the user's own
// modules (-I), unbuffered (-u), writing no byte code (-B).
func (b *Backend) command(python string, s slot, args ...string) *exec.Cmd {
	var cmd *exec.Cmd
	if b.config.Worker != nil {
		cmd = b.config.Worker(python, args...)
	} else {
		cmd = exec.Command(python, append([]string{"-I", "-u", "-B", b.folder}, args...)...)
		cmd.Dir = filepath.Dir(b.folder)
	}
	cmd.Env = append(cmd.Environ(), s.env()...)
	return cmd
}

// env restricts a worker to its device.
func (s slot) env() []string {
	list := Cores{s.cores, s.isa}.env()
	if s.visible != "" {
		list = append(list, "CUDA_VISIBLE_DEVICES="+s.visible)
	}
	return list
}

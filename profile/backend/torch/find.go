package torch

import (
	"context"
	"errors"
	"time"

	"github.com/evenkeel/evenkeel/profile"
)

// FindPython returns the first interpreter with a torch that works on the
// processor: the one asked for, or see candidates. refused says which were tried
// before it and why each will not do; without any, the error is a *NoTorchError.
// waiting is told of one that takes long to answer.
func FindPython(ctx context.Context, asked string, waiting func(python string, longest time.Duration)) (path, version string, refused []string, err error) {
	b, err := New(Config{Python: asked, Waiting: waiting, Device: "cpu", Machine: profile.Machine{Cores: 1}})
	if err != nil {
		return "", "", nil, err
	}
	if b.folder, b.parent, err = unpack(); err != nil {
		return "", "", nil, errors.Join(err, b.Close())
	}
	p, refused, err := b.probe(ctx)
	if err == nil {
		p.client.close()
		path, version = p.path, p.hello.Torch
	}
	return path, version, refused, errors.Join(err, b.Close())
}

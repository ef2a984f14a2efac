package milp

import (
	"context"
	"fmt"
	"time"

	"github.com/tetratelabs/wazero/api"
)

// The module was compiled by Emscripten for a script, and calls what follows of
// it. There are no files and no environment: models go through the C interface.
const (
	badFile   = 8  // WASI's "bad file descriptor"
	noSuch    = 44 // WASI's "no such file", returned negative by system calls
	ioVector  = 8  // bytes of a WASI buffer: address and length, 32 bits each
	pageBytes = 1 << 16
	// mostPages is the 2 GiB of memory that the module's own script allows it.
	mostPages = 1 << 15
)

// clock is what an instance takes for time: it stands still until a limit is
// reached. Then years have passed, so that the engine's next look at its time limit
// ends the search, with the best solution so far. An instance that has been given up
// is ended by its next look. So nothing here reads a clock, and what the engine does
// up to the limit does not depend on one.
type clock struct {
	limit   context.Context
	givenUp context.Context
}

// The engine takes a clock that was started at 0 for one that stands.
const (
	firstTime   = time.Hour
	years       = 30 * 365 * 24 * time.Hour
	engineLimit = years / 2
)

func (c clock) now() time.Duration {
	if c.givenUp.Err() != nil {
		panic(c.givenUp.Err())
	}
	if c.limit.Err() != nil {
		return years
	}
	return firstTime
}

type clockKey struct{}

// elapsed is the time of the instance that runs under ctx; none while it is made.
func elapsed(ctx context.Context) time.Duration {
	c, ok := ctx.Value(clockKey{}).(clock)
	if !ok {
		return firstTime
	}
	return c.now()
}

// hostFunction is an import's types and body.
type hostFunction struct {
	params, results []api.ValueType
	run             api.GoModuleFunc
}

const (
	i32 = api.ValueTypeI32
	i64 = api.ValueTypeI64
	f64 = api.ValueTypeF64
)

func types(t ...api.ValueType) []api.ValueType { return t }

// answer is a function that always returns the same number.
func answer(params []api.ValueType, value int32) hostFunction {
	return hostFunction{params, types(i32), func(_ context.Context, _ api.Module, stack []uint64) { stack[0] = api.EncodeI32(value) }}
}

// fatal is a function that ends the instance: wazero turns the panic into an
// error of the call, and the instance is not used again.
func fatal(params []api.ValueType, why string) hostFunction {
	return hostFunction{params, nil, func(_ context.Context, _ api.Module, stack []uint64) {
		panic(fmt.Errorf("the engine ended itself: %s%v", why, stack[:len(params)]))
	}}
}

// hostFunctions is by name what the module may call.
func hostFunctions() map[string]hostFunction {
	return map[string]hostFunction{
		"cxa_throw":                          fatal(types(i32, i32, i32), "exception"),
		"exit":                               fatal(types(i32), "exit"),
		"proc_exit":                          fatal(types(i32), "exit"),
		"abort_js":                           fatal(nil, "abort"),
		"syscall_fcntl64":                    answer(types(i32, i32, i32), -noSuch),
		"syscall_ioctl":                      answer(types(i32, i32, i32), -noSuch),
		"syscall_openat":                     answer(types(i32, i32, i32, i32), -noSuch),
		"fd_close":                           answer(types(i32), badFile),
		"fd_read":                            answer(types(i32, i32, i32, i32), badFile),
		"fd_seek":                            answer(types(i32, i64, i32, i32), badFile),
		"fd_write":                           {types(i32, i32, i32, i32), types(i32), discard},
		"setitimer_js":                       answer(types(i32, f64), 0),
		"environ_get":                        answer(types(i32, i32), 0),
		"environ_sizes_get":                  {types(i32, i32), types(i32), noEnvironment},
		"tzset_js":                           {types(i32, i32, i32, i32), nil, func(context.Context, api.Module, []uint64) {}},
		"emscripten_runtime_keepalive_clear": {nil, nil, func(context.Context, api.Module, []uint64) {}},
		"emscripten_resize_heap":             {types(i32), types(i32), resize},
		"clock_time_get":                     {types(i32, i64, i32), types(i32), clockTime},
		"emscripten_date_now":                {nil, types(f64), milliseconds},
		"emscripten_get_now":                 {nil, types(f64), milliseconds},
	}
}

func milliseconds(ctx context.Context, _ api.Module, stack []uint64) {
	stack[0] = api.EncodeF64(elapsed(ctx).Seconds() * 1e3)
}

func clockTime(ctx context.Context, m api.Module, stack []uint64) {
	m.Memory().WriteUint64Le(api.DecodeU32(stack[2]), uint64(elapsed(ctx)))
	stack[0] = 0
}

// discard takes all that is written: the engine's log.
func discard(_ context.Context, m api.Module, stack []uint64) {
	vectors, count, written := api.DecodeU32(stack[1]), api.DecodeU32(stack[2]), api.DecodeU32(stack[3])
	total := uint32(0)
	for i := range count {
		n, _ := m.Memory().ReadUint32Le(vectors + i*ioVector + ioVector/2)
		total += n
	}
	m.Memory().WriteUint32Le(written, total)
	stack[0] = 0
}

func noEnvironment(_ context.Context, m api.Module, stack []uint64) {
	m.Memory().WriteUint32Le(api.DecodeU32(stack[0]), 0)
	m.Memory().WriteUint32Le(api.DecodeU32(stack[1]), 0)
	stack[0] = 0
}

// resize grows the memory to at least what is asked, by a fifth at least as the
// module's own script does, so that growing by small steps stays cheap.
func resize(_ context.Context, m api.Module, stack []uint64) {
	want := (uint64(api.DecodeU32(stack[0])) + pageBytes - 1) / pageBytes
	have := uint64(m.Memory().Size()) / pageBytes
	stack[0] = 0
	for _, pages := range []uint64{max(want, have+have/5), want} {
		if pages > mostPages || pages < have {
			continue
		}
		if _, ok := m.Memory().Grow(uint32(pages - have)); ok {
			stack[0] = 1
			return
		}
	}
}

package collective

import (
	"context"
	"fmt"
	"sync"
	"testing"
)

// benchmark times op between two ranks of this process. Bytes are the operation's own (see the package comment).
func benchmark(b *testing.B, op func(m *Mesh, x, y []float32) error) {
	for _, bytes := range []int{4 << 10, 1 << 20, 16 << 20} {
		b.Run(fmt.Sprintf("%dKiB", bytes>>10), func(b *testing.B) {
			meshes, err := meshesHere(2)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(bytes))
			var wg sync.WaitGroup
			for _, m := range meshes {
				wg.Go(func() {
					x, y := make([]float32, bytes/4), make([]float32, bytes/4)
					for range b.N {
						if err := op(m, x, y); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			for _, m := range meshes {
				m.Close()
			}
		})
	}
}

func BenchmarkRingShift(b *testing.B) {
	benchmark(b, func(m *Mesh, x, y []float32) error { return m.RingShift(context.Background(), x, y) })
}

func BenchmarkAllReduce(b *testing.B) {
	benchmark(b, func(m *Mesh, x, _ []float32) error { return m.AllReduce(context.Background(), x) })
}

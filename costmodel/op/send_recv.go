package op

// KindSendRecv is the send_recv collective.
const KindSendRecv Kind = "send_recv"

// SendRecv shifts `bytes` from every rank to the next in a ring, all at once.
type SendRecv struct{ Message }

var sendRecvSpec = Spec{
	Kind: KindSendRecv, Class: Collective, Measures: Time,
	Doc:     "ring shift: every rank sends bytes to the next and receives as many from the previous, at once",
	Example: SendRecv{Message{Group: 4, Bytes: 1 << 20}},
}

// Kind implements Shape.
func (SendRecv) Kind() Kind { return KindSendRecv }

// Validate implements Shape.
func (g SendRecv) Validate() error { return g.validate(KindSendRecv) }

// Work implements Shape: every rank sends its whole buffer.
func (g SendRecv) Work() Work { return onWire(g.Bytes) }

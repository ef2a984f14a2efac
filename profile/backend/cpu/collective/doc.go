// Package collective runs collective operations on float32 buffers between processes of one machine over Unix stream
// sockets: the real traffic that the CPU backend times.
//
// A Mesh connects every pair of ranks. All ranks of a mesh call the same operations in the same order with matching sizes;
// a mesh runs one operation at a time. Sending and receiving always run side by side, so no message size can deadlock on
// full socket buffers.
//
// What "the bytes" of an operation are follows nccl-tests, with n elements of 4 bytes and p ranks:
//
//	operation        bytes                                          sent by a rank if p divides n
//	all_reduce       4n, the buffer that each rank reduces          2 (p-1)/p * 4n, to the next rank
//	all_gather       4n, the whole gathered buffer                  (p-1)/p * 4n, to the next rank
//	reduce_scatter   4n, the whole input buffer of each rank        (p-1)/p * 4n, to the next rank
//	all_to_all       4n, the buffer each rank sends, own part too   (p-1)/p * 4n, 4n/p to each peer
//	send_recv        4n, what each rank sends                       4n, to the next rank
//
// If p does not divide n, part i is [floor(i*n/p), floor((i+1)*n/p)), see Chunk. The part a rank sends to itself is copied
// and touches no socket.
//
// Buffers go over the sockets as they lie in memory, without a copy or a change of byte order: both ends are one host.
//
// When a peer dies every rank's operation fails at once, naming it: a second, silent connection per pair tells of the end
// of a process even to ranks that exchange no data with it. A peer that hangs is found by the context's deadline. After
// any failure streams may hold half a message, so the mesh is broken: all later operations return the same error.
package collective

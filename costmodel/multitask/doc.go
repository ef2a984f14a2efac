// Package multitask prices the training of several models, or parts of a model, side by
// side on the devices of a cluster, each device with whole samples of a batch.
//
// # Main types
//
//   - Tasks is the document that says what is trained: modules, each a stretch of
//     identical layers (a MetaOp of Spindle, Wang et al., ASPLOS 2025) of one task, and
//     which modules need the results of which.
//   - Costs says what a layer of a module takes on a set of devices: FromLaws makes it
//     from the fitted laws of a cluster, Published from a published curve.
//   - Plan is a list of runs: consecutive layers of a module on a set of devices.
//     Simulate says when each begins and ends. It is the only judge of a plan.
//
// # Vocabulary
//
//   - module: so many identical layers, run one after the other over one batch.
//   - run: consecutive layers of a module on one set of devices, each of which has a part
//     of the batch's samples.
//   - wave: runs that begin together; the next wave begins when all of them have ended.
//   - pool: the devices of one type.
package multitask

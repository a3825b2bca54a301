// Storages that a collective works on after its operator returned.
//
// Its threads hand them to the kernel (gloo sends from them and receives into them), which does not fault like a
// program, so they stay in fast memory, writable. Nobody here is told when it is done: one that its caller waits for at
// once (async_op=False) is done when that thread's next operator begins; any other (DistributedDataParallel's) is taken
// to be done when the step after the one in which it began has ended.
#pragma once

#include <ATen/core/ivalue.h>

namespace ebbtide {

// The managed storages in an argument.
void pin_for_collective(const c10::IValue& argument, bool waited_for);

// The calling thread's next outermost operator begins.
void unpin_waited_for();

// A step ended.
void unpin_last_step();

}  // namespace ebbtide

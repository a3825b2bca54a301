// Storages that a collective works on after its operator returned.
//
// Its threads hand them to the kernel (gloo sends from them and receives into them), which does not fault like a
// program, so they stay in fast memory, writable. What the operator returns says when that ends: its Work has completed,
// or nobody has it any more (gloo's queue has it while it runs). One that its caller waits for at once (async_op=False)
// is done when that thread's next operator begins. Whatever else there is (a process's first collective, before anybody
// looks at what operators return; a Work that never says so) is taken to be done when the step after the one in which it
// began has ended.
//
// Tensors that a collective makes for itself, in its operator or in one of its threads (gloo's all-gather receives into one,
// and copies from there), stay until they are dead. Such threads have nothing of Python's.
#pragma once

#include <ATen/core/ivalue.h>

namespace ebbtide {

// The calling thread enters a collective's operator, and is about to leave it. Operators within make buffers for it.
void enter_collective();
void exit_collective();
bool in_collective();
bool is_a_collectives_own();  // a storage that the calling thread makes

// The managed storages in an argument of a collective, or of an operator within one.
void pin_for_collective(const c10::IValue& argument, bool waited_for);

// The calling thread's next outermost operator begins.
void unpin_waited_for();

// Those of collectives that have ended. `drops`: the last reference to one may be given up here, for which Python's lock is
// taken; a thread for which others wait MUST NOT.
void unpin_ended(bool drops);

// Whether one has not ended, so that pins will be let go without anybody here doing anything.
bool collectives_under_way();

// A step ended.
void unpin_last_step();

}  // namespace ebbtide

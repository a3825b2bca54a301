// Sees every operator of every thread before it runs, so that its operands are there when it does.
#pragma once

namespace ebbtide {

// Once, after install_allocator().
void install_recorder();
void install_list_operators();

// The calling thread's nodes of earlier steps are gone: nothing is known of the modules of new ones.
void forget_nodes();

}  // namespace ebbtide

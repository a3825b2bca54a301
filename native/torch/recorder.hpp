// Sees every operator of every thread before it runs, so that its operands are there when it does.
#pragma once

namespace ebbtide {

// Both once, after install_allocator().
void install_recorder();
void install_list_operators();

}  // namespace ebbtide

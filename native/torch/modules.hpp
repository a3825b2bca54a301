// Finds the module that runs, in Python's frames, where modules are named at all.
//
// [Note: modules]  A module's path starts at the outermost module that was called: "GPT2LMHeadModel.transformer.h.3.mlp". One that
// is no part of that has the name of its class. Frames tell it without a hook, so nothing in the script's modules, or in graphs
// that are compiled of them, shows it. In the backward pass, what lies beyond autograd's engine is not under way: what a node
// calls belongs to the module that made the node (nodes.hpp), unless the node runs a forward pass anew.
//
// It takes Python's lock, so callers MUST hold no lock of ours. Left out: C++ of a script's that calls operators without Python's
// lock, under one of its own for which another thread waits with Python's: it hangs.
#pragma once

#include <string>

namespace ebbtide {

// Finds out how PyTorch calls modules. It is called once, with Python's lock.
void find_module_calls();

// Python's lock is held. All paths are forgotten.
void name_modules(bool names);
bool names_modules();

// Returns the path of the module that the calling thread is in, "" for none.
std::string module_here();

}  // namespace ebbtide

// Which forward operator made a node of autograd's: its module, and its line in the program. What runs in the backward pass belongs
// to these. A node has the thread and the sequence number of that operator, while the backward pass may run on another thread, as a
// device's does.
#pragma once

#include <cstdint>
#include <string>

namespace ebbtide {

// The calling thread is about to make the node with this number. Where it makes none, the next operator has the number, too.
void note_module_of_node(std::int64_t sequence_nr, std::uint32_t module);
void note_line_of_node(std::int64_t sequence_nr, std::string line);

// Of the node that the calling thread is in. 0 and "": it is in no backward pass, or nothing is known.
std::uint32_t module_of_current_node();
std::string line_of_current_node();

void forget_makers();

}  // namespace ebbtide

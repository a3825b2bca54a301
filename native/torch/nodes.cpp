#include "nodes.hpp"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/graph_task.h>

#include <map>
#include <mutex>
#include <utility>

namespace ebbtide {

namespace {

using Key = std::pair<std::uint64_t, std::int64_t>;  // the thread and the number

struct Maker {
  std::uint32_t module = 0;
  std::string line;
};

std::mutex nodes_mutex;
std::map<Key, Maker>& makers() {
  static auto* all = new std::map<Key, Maker>;  // never destroyed: other threads may still run
  return *all;
}

Maker& maker(std::int64_t sequence_nr) { return makers()[{at::RecordFunction::currentThreadId(), sequence_nr}]; }

// Null: none is known.
const Maker* maker_of_current_node() {
  if (torch::autograd::get_current_graph_task_id() == -1) return nullptr;
  auto node = torch::autograd::get_current_node();
  if (!node) return nullptr;
  auto found = makers().find({node->thread_id(), static_cast<std::int64_t>(node->sequence_nr())});
  return found == makers().end() ? nullptr : &found->second;
}

}  // namespace

void note_module_of_node(std::int64_t sequence_nr, std::uint32_t module) {
  std::lock_guard lock(nodes_mutex);
  maker(sequence_nr).module = module;
}

void note_line_of_node(std::int64_t sequence_nr, std::string line) {
  std::lock_guard lock(nodes_mutex);
  maker(sequence_nr).line = std::move(line);
}

std::uint32_t module_of_current_node() {
  std::lock_guard lock(nodes_mutex);
  const Maker* made = maker_of_current_node();
  return made != nullptr ? made->module : 0;
}

std::string line_of_current_node() {
  std::lock_guard lock(nodes_mutex);
  const Maker* made = maker_of_current_node();
  return made != nullptr ? made->line : "";
}

void forget_makers() {
  std::lock_guard lock(nodes_mutex);
  makers().clear();
}

}  // namespace ebbtide

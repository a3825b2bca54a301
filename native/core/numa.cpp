#include "numa.hpp"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "system.hpp"
#include "types.hpp"

namespace ebbtide {

namespace {

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif
constexpr unsigned kMostNodes = 1024;
constexpr std::size_t kWordBits = 8 * sizeof(unsigned long);
constexpr std::size_t kBatch = 128;  // pages of one call, on the stack

// "0-1,4"
std::vector<unsigned> numbers(std::istream& list) {
  std::vector<unsigned> all;
  for (unsigned first; list >> first;) {
    unsigned last = first;
    if (list.peek() == '-') list.ignore(), list >> last;
    for (unsigned n = first; n <= last; ++n) all.push_back(n);
    if (list.peek() == ',') list.ignore();
  }
  return all;
}

// "Node 1 MemTotal:        1048576 kB"
std::uint64_t field(const std::string& path, const std::string& name) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    std::size_t at = line.find(name);
    if (at != std::string::npos) return std::strtoull(line.c_str() + at + name.size(), nullptr, 10) * 1024;
  }
  return 0;
}

struct Batch {
  void* pages[kBatch];
  int status[kBatch];
  std::size_t count = 0;

  Batch(const void* begin, std::size_t bytes) {
    for (; count < kBatch && count * kSmallPage < bytes; ++count)
      pages[count] = const_cast<char*>(static_cast<const char*>(begin)) + count * kSmallPage;
  }
  void keep_those_not_on(int node) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < count; ++i) {
      if (status[i] >= 0 && status[i] != node) pages[kept++] = pages[i];
    }
    count = kept;
  }
  long call(const int* nodes) {
    return syscall(SYS_move_pages, 0, count, pages, nodes, status, nodes == nullptr ? 0 : MPOL_MF_MOVE);
  }
};

template <typename F>
int in_batches(void* begin, std::size_t bytes, F f) {
  for (std::size_t at = 0; at < bytes; at += kBatch * kSmallPage) {
    Batch batch(static_cast<char*>(begin) + at, bytes - at);
    if (int error = f(batch); error != 0) return error;
  }
  return 0;
}

int prefer_node(void* begin, std::size_t bytes, unsigned node) {
  unsigned long mask[kMostNodes / kWordBits] = {};
  mask[node / kWordBits] = 1ul << node % kWordBits;
  return syscall(SYS_mbind, begin, bytes, MPOL_PREFERRED, mask, kMostNodes + 1, 0) == 0 ? 0 : errno;
}

}  // namespace

std::vector<NumaNode> numa_nodes(const std::string& root) {
  std::vector<NumaNode> nodes;
  std::ifstream online(root + "/online");
  for (unsigned number : numbers(online)) {
    std::string folder = root + "/node" + std::to_string(number);
    std::ifstream cpus(folder + "/cpulist");
    nodes.push_back({.number = number,
                     .bytes = field(folder + "/meminfo", "MemTotal:"),
                     .free = field(folder + "/meminfo", "MemFree:"),
                     .cpus = static_cast<unsigned>(numbers(cpus).size())});
  }
  return nodes;
}

std::string describe(const std::vector<NumaNode>& nodes) {
  std::ostringstream text;
  for (const NumaNode& n : nodes) {
    text << (&n == nodes.data() ? "" : ", ") << "node " << n.number << " (" << BytesText(n.bytes).text << ", ";
    if (n.cpus == 0) text << "no CPU)";
    if (n.cpus > 0) text << n.cpus << (n.cpus == 1 ? " CPU)" : " CPUs)");
  }
  return text.str();
}

void check_numa_node(const std::vector<NumaNode>& nodes, unsigned node, std::uint64_t bytes) {
  std::vector<NumaNode> usable;
  for (const NumaNode& n : nodes) {
    if (n.bytes > 0) usable.push_back(n);
  }
  std::string instead = usable.empty() ? "leave this tier out: the kernel shows no NUMA node"
                                       : "name one that has (" + describe(usable) + "), or leave this tier out";
  std::string name = "NUMA node " + std::to_string(node);
  auto found = std::find_if(nodes.begin(), nodes.end(), [&](const NumaNode& n) { return n.number == node; });
  if (found == nodes.end()) throw ArenaError("there is no " + name + ", so it has no memory for a tier; " + instead);
  if (found->bytes == 0) throw ArenaError(name + " has no memory; " + instead);
  if (bytes == 0) throw ArenaError("a tier in the memory of " + name + " needs a size; it has " + BytesText(found->bytes).text);
  if (bytes > found->bytes) {
    throw ArenaError(name + " has " + BytesText(found->bytes).text + " of memory, which is less than the " +
                     BytesText(bytes).text + " asked for; ask for at most that, and less where others use it too");
  }
}

void look(const void* begin, std::size_t bytes, unsigned node, Whereabouts& found) {
  in_batches(const_cast<void*>(begin), bytes, [&](Batch& batch) {
    bool known = batch.call(nullptr) == 0;
    for (std::size_t i = 0; i < batch.count; ++i) {
      bool here = known && batch.status[i] == static_cast<int>(node);
      bool absent = known && (batch.status[i] == -ENOENT || batch.status[i] == -EFAULT);  // no page, no page table
      (here ? found.on_node : absent ? found.absent : found.elsewhere) += kSmallPage;
    }
    return 0;
  });
}

int move_to_node(void* begin, std::size_t bytes, unsigned node) {
  int nodes[kBatch];
  std::fill(nodes, nodes + kBatch, static_cast<int>(node));
  return in_batches(begin, bytes, [&](Batch& batch) {
    // The call says how many pages it left, but not whether they were there already; so all are looked at again.
    for (bool moved = false;; moved = true) {
      if (batch.call(nullptr) != 0) return errno;
      batch.keep_those_not_on(static_cast<int>(node));
      if (batch.count == 0) return 0;
      if (moved) return ENOMEM;
      if (batch.call(nodes) < 0) return errno;
    }
  });
}

int get_pages(void* begin, std::size_t bytes, unsigned node) {
  Whereabouts before, after;
  look(begin, bytes, node, before);
  if (before.absent > 0) {
    int error = prefer_node(begin, bytes, node);
    // Memory that is read-only for the moment has all pages that it will have before somebody writes.
    while (error == 0 && madvise(begin, bytes, MADV_POPULATE_WRITE) != 0) {
      if (errno == EFAULT || errno == EINVAL || errno == EACCES) break;
      if (errno != EAGAIN && errno != EINTR) error = errno;
    }
    int local = make_pages_local(begin, bytes);
    if (error != 0 || local != 0) return error != 0 ? error : local;
  }
  look(begin, bytes, node, after);
  return after.elsewhere == 0 ? 0 : move_to_node(begin, bytes, node);
}

int try_node(unsigned node) {
  if (node >= kMostNodes) return EINVAL;
  void* page = mmap(nullptr, kSmallPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return errno;
  Whereabouts before, after;
  look(page, kSmallPage, node, before);
  int error = before.absent == 0 ? EPERM : get_pages(page, kSmallPage, node);  // nothing is there, and it cannot be told
  look(page, kSmallPage, node, after);
  munmap(page, kSmallPage);
  return error != 0 ? error : after.on_node == 0 ? ENOMEM : 0;
}

}  // namespace ebbtide

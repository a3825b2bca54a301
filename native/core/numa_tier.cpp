#include "numa_tier.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace ebbtide {

namespace {

constexpr std::size_t kStep = std::size_t{4} << 20;  // so much may lie on another node until that is noticed
constexpr std::int64_t kPause = 1'000'000'000;

unsigned checked(unsigned node, std::uint64_t capacity) {
  check_numa_node(numa_nodes(), node, capacity);
  if (!can_populate()) {
    throw ArenaError("a tier in the memory of another NUMA node needs Linux 5.14 (MADV_POPULATE_WRITE); leave it out");
  }
  return node;
}

// A write that cancels the transfer may come meanwhile, by design; a race detector does not look here.
#if defined(__SANITIZE_THREAD__)
__attribute__((no_sanitize("thread"))) void copy(void* to, const void* from, std::size_t bytes) {
  auto* t = static_cast<volatile std::uint64_t*>(to);
  auto* f = static_cast<const volatile std::uint64_t*>(from);
  for (std::size_t i = 0; i < bytes / sizeof *t; ++i) t[i] = f[i];
}
#else
void copy(void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }
#endif

}  // namespace

NumaTier::Mirror::Mirror(std::size_t bytes, std::size_t page, unsigned node)
    : memory(bytes, kHugePage, PROT_READ | PROT_WRITE),
      table(round_up(bytes / page, kSmallPage), kSmallPage, PROT_READ | PROT_WRITE),
      page(page) {
  madvise(memory.begin(), bytes, page == kHugePage ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
  Whereabouts found;
  look(memory.begin(), kSmallPage, node, found);
  int error = prefer_node(memory.begin(), bytes, node);
  if (error == 0 && found.absent == 0) error = EPERM;  // nothing is there, and it cannot be told
  if (error == 0) {
    set_inherited(memory.begin(), bytes, false);
    return;
  }
  const char* cure = error == EPERM    ? "a container allows it with --cap-add SYS_NICE"
                     : error == EINVAL ? "this process may not use that node (cpuset.mems, numactl --membind)"
                                       : "it needs a kernel with CONFIG_NUMA";
  throw ArenaError("cannot place memory on NUMA node " + std::to_string(node) + " (mbind, move_pages: " + std::strerror(error) +
                   "); " + cure + ", or leave this tier out");
}

NumaTier::NumaTier(unsigned node, std::uint64_t capacity, std::array<std::size_t, kRegions> region_bytes)
    : node_(checked(node, capacity)),
      capacity_(capacity),
      name_("the memory of NUMA node " + std::to_string(node)),
      mirrors_{{region_bytes[0], kHugePage, node}, {region_bytes[1], kSmallPage, node}},
      parent_(kSmallPage, kSmallPage, PROT_READ | PROT_WRITE) {
  *parent_.begin() = 1;
  set_inherited(parent_.begin(), kSmallPage, false);
}

NumaTier::~NumaTier() {
  for (Mirror& m : mirrors_) must_drop_pages(m.memory.begin(), m.end * m.page);
}

NumaTier::Span NumaTier::span(const Mirror& mirror, const Extent& extent) {
  return {extent.begin / mirror.page, (extent.begin + extent.bytes + mirror.page - 1) / mirror.page};
}

// Of a span that has none here and there, so that all of it has.
int NumaTier::populate(Mirror& mirror, Span span) {
  Page* pages = mirror.pages();
  const std::size_t most = kStep / mirror.page;
  for (std::size_t i = span.first; i < span.end;) {
    if (pages[i] != Page::None) {
      ++i;
      continue;
    }
    std::size_t end = i + 1;
    while (end < span.end && end - i < most && pages[end] == Page::None) ++end;
    mirror.end = std::max(mirror.end, end);
    populated_ += (end - i) * mirror.page;
    if (int error = get_pages(mirror.at(i), (end - i) * mirror.page, node_); error != 0) {
      drop(mirror, {i, end});
      return error;
    }
    std::fill(pages + i, pages + end, Page::Reserved);
    i = end;
  }
  return 0;
}

int NumaTier::reserve(const Extent& extent) {
  Mirror& m = mirrors_[extent.region];
  Page* pages = m.pages();
  Span s = span(m, extent);
  std::uint64_t bytes = (s.end - s.first) * m.page;
  if (bytes > capacity_ - used_) return ENOSPC;
  std::uint64_t missing = static_cast<std::uint64_t>(std::count(pages + s.first, pages + s.end, Page::None)) * m.page;
  if (missing > 0 && short_until_ns_ > now_ns()) return ENOMEM;
  std::replace(pages + s.first, pages + s.end, Page::Kept, Page::Reserved);
  if (populated_ + missing > capacity_) give_back(populated_ + missing - capacity_);
  int error = missing > 0 ? populate(m, s) : 0;
  if (error == ENOMEM && give_back(missing)) error = populate(m, s);
  if (error != 0) {
    std::replace(pages + s.first, pages + s.end, Page::Reserved, Page::Kept);
    short_until_ns_ = now_ns() + kPause;
    return error;
  }
  used_ += bytes;
  return 0;
}

void NumaTier::release(const Extent& extent) {
  Mirror& m = mirrors_[extent.region];
  Span s = span(m, extent);
  used_ -= (s.end - s.first) * m.page;
  if (m.pages()[s.first] >= Page::Shared) return drop(m, s);
  std::fill(m.pages() + s.first, m.pages() + s.end, Page::Kept);
}

void NumaTier::inherit(const Extent& extent, bool inherited) {
  Mirror& m = mirrors_[extent.region];
  Span s = span(m, extent);
  bool given = set_inherited(m.at(s.first), (s.end - s.first) * m.page, inherited) && inherited;
  std::fill(m.pages() + s.first, m.pages() + s.end, given ? Page::Given : Page::Shared);
}

// Kept pages, where the hand points and on from there. False: there are none.
bool NumaTier::give_back(std::uint64_t bytes) {
  bool any = false;
  for (Mirror& m : mirrors_) {
    const Page* pages = m.pages();
    for (std::size_t looked_at = 0; looked_at < m.end && bytes > 0;) {
      if (m.hand >= m.end) m.hand = 0;
      const std::size_t first = m.hand;
      const bool kept = pages[first] == Page::Kept;
      const std::size_t most = kept ? (bytes + m.page - 1) / m.page : m.end;
      while (m.hand < m.end && m.hand - first < most && (pages[m.hand] == Page::Kept) == kept) ++m.hand;
      looked_at += m.hand - first;
      if (!kept) continue;
      drop(m, {first, m.hand});
      bytes -= std::min<std::uint64_t>(bytes, (m.hand - first) * m.page);
      any = true;
    }
  }
  return any;
}

void NumaTier::drop(Mirror& mirror, Span span) {
  std::uint64_t bytes = (span.end - span.first) * mirror.page;
  must_drop_pages(mirror.at(span.first), bytes);
  std::fill(mirror.pages() + span.first, mirror.pages() + span.end, Page::None);
  populated_ -= bytes;
}

int NumaTier::write(const Extent& chunk, const void* from) const {
  copy(mirrors_[chunk.region].memory.begin() + chunk.begin, from, chunk.bytes);
  return 0;
}

int NumaTier::read(const Extent& chunk, iovec* parts, int count) const {
  const Mirror& m = mirrors_[chunk.region];
  Span s = span(m, chunk);
  auto given = [](Page page) { return page == Page::Given; };
  // A child has its own copy of the table as it was then, and empty pages where it was given none.
  if (is_child() && !std::all_of(m.pages() + s.first, m.pages() + s.end, given)) return ENOMEM;
  const char* from = m.memory.begin() + chunk.begin;
  for (int i = 0; i < count; from += parts[i].iov_len, ++i) copy(parts[i].iov_base, from, parts[i].iov_len);
  return 0;
}

const char* NumaTier::cure(int error) const {
  if (error == ENOSPC) return "give the tier a larger size, or a slower one behind it";
  return "other processes use the node's memory: end them, or ask for less of it";
}

Whereabouts NumaTier::whereabouts() const {
  Whereabouts found;
  for (const Mirror& m : mirrors_) {
    auto reserved = [&](std::size_t i) { return m.pages()[i] >= Page::Reserved; };
    for (std::size_t i = 0; i < m.end; ++i) {
      std::size_t first = i;
      while (i < m.end && reserved(i)) ++i;
      if (i > first) look(m.at(first), (i - first) * m.page, node_, found);
    }
  }
  return found;
}

}  // namespace ebbtide

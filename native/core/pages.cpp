// [Note: pages]
// Every page of a block has a home in a pool: a body's huge pages wherever there are some, in as few runs as can be; a
// tail's small pages all in one run. A block's pages come from home when it is born; a fetch fills them at home, out of
// sight, and shows them when they are complete. They go home when the block leaves or its pages serve another.
#include "arena.hpp"

namespace ebbtide {

// f(pool, run, where it belongs), from the block's first page to its last.
template <typename F>
void Arena::for_each_run(const Block& b, F f) {
  for (std::uint32_t page = 0; page < b.shape.body;) {
    auto home = [&](std::uint32_t i) { return huge_.home(b.first_page + i); };
    Run run{home(page), 1};
    while (page + run.count < b.shape.body && home(page + run.count) == run.first + run.count) ++run.count;
    f(huge_pages_, run, b.address + page * kHugePage);
    page += run.count;
  }
  if (b.shape.tail == 0) return;
  f(small_pages_, Run{b.tail_home, b.shape.small_pages()}, b.tail());
}

// They have been claimed. Empty ones are made by the first touch.
void Arena::take_pages(Block& b) {
  for (std::uint32_t page = 0; page < b.shape.body;) {
    Run run = huge_pages_.take(b.shape.body - page);
    for (std::uint32_t i = 0; i < run.count; ++i) huge_.home(b.first_page + page + i) = run.first + i;
    page += run.count;
  }
  if (b.shape.tail > 0) b.tail_home = small_pages_.take_whole(b.shape.small_pages()).first;
}

void Arena::show_pages(const Block& b, int protection) {
  for_each_run(b, [&](PagePool& pool, Run run, char* at) { pool.show(run, at, protection); });
}

// They were never shown.
void Arena::give_back_pages(const Block& b) {
  for_each_run(b, [](PagePool& pool, Run run, char*) { pool.give(run); });
}

// Callers MUST have taken access away if anybody might touch them. Pages that a forked child may still see are lost.
void Arena::bring_pages_home(const Block& b) {
  for_each_run(b, [&](PagePool& pool, Run run, char* at) {
    b.inherited ? pool.bring_home_empty(at, run) : pool.bring_home(at, run);
  });
  if (b.inherited) account(-static_cast<std::int64_t>(b.held));
}

}  // namespace ebbtide

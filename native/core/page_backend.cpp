#include "page_backend.hpp"

#include "system.hpp"

namespace ebbtide {

namespace {

class Signals final : public PageBackend {
 public:
  bool keeps_absent_mapped() const override { return false; }
  void made(void*, std::size_t) const override {}
  // A page moved from under a readable address reads as zeros.
  void before_move(void* at, std::size_t bytes) const override { must_protect(at, bytes, PROT_NONE); }
  bool make_read_only(void* at, std::size_t bytes) const override { return protect(at, bytes, PROT_READ); }
  void make_writable(void* at, std::size_t bytes) const override { must_protect(at, bytes, PROT_READ | PROT_WRITE); }
};

}  // namespace

const PageBackend& signals() {
  static const Signals only;
  return only;
}

}  // namespace ebbtide

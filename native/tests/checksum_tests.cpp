// The checksum: a CRC32C by the book, the same by instruction and by tables, and other for every bit.
#include "../core/checksum.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "check.hpp"

using namespace ebbtide;

namespace {
constexpr std::size_t kBytes = 8192;

std::uint32_t of(const void* from, std::size_t bytes) {
  Checksum sum;
  sum.add(from, bytes);
  return sum.value();
}

// One bit after another, as the polynomial is defined.
std::uint32_t by_bits(std::uint32_t crc, const unsigned char* from, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) {
    crc ^= from[i];
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return crc;
}

struct Bytes {
  alignas(64) unsigned char data[kBytes];
  Bytes() {
    std::mt19937 random(3);
    for (unsigned char& byte : data) byte = static_cast<unsigned char>(random());
  }
};
}  // namespace

TEST(every_lane_is_a_crc32c_of_its_words) {
  CHECK(~by_bits(~0u, reinterpret_cast<const unsigned char*>("123456789"), 9) == 0xe3069283u);  // as published
  Bytes bytes;
  std::uint32_t lanes[Checksum::kLanes] = {~0u, ~0u, ~0u, ~0u}, expected[Checksum::kLanes] = {~0u, ~0u, ~0u, ~0u};
  Checksum::in_software(lanes, bytes.data, kBytes);
  for (std::size_t i = 0; i < kBytes; i += 8) {
    std::uint32_t& lane = expected[i / 8 % Checksum::kLanes];
    lane = by_bits(lane, bytes.data + i, 8);
  }
  CHECK(std::memcmp(lanes, expected, sizeof lanes) == 0);
  unsigned char together[sizeof expected];
  std::memcpy(together, expected, sizeof expected);
  CHECK(of(bytes.data, kBytes) == ~by_bits(~0u, together, sizeof together));  // by the instruction, if there is one
}

TEST(a_checksum_may_be_taken_in_parts_and_differs_for_every_flipped_bit) {
  Bytes bytes;
  std::uint32_t whole = of(bytes.data, kBytes);
  Checksum parts;
  for (std::size_t at = 0, part = Checksum::kUnit; at < kBytes; at += part, part = std::min(2 * part, kBytes - at)) {
    parts.add(bytes.data + at, part);
  }
  CHECK(parts.value() == whole && whole != 0 && of(bytes.data, 0) != 0);
  for (std::size_t bit = 0; bit < 8 * kBytes; ++bit) {
    bytes.data[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    CHECK(of(bytes.data, kBytes) != whole);
    bytes.data[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
  }
  CHECK(of(bytes.data, kBytes) == whole);
}

// --- clean storages in memory

namespace {

constexpr std::size_t kStorage = 5 * kMiB;

// As a kernel could, or a neighbour of the memory: past its protection.
void flip(char* at) {
  int memory = open("/proc/self/mem", O_RDWR | O_CLOEXEC);
  char byte = static_cast<char>(*at ^ 4);
  CHECK(memory >= 0 && pwrite(memory, &byte, 1, reinterpret_cast<off_t>(at)) == 1);
  close(memory);
}

void lose(char* at) { CHECK(madvise(at, kSmallPage, MADV_DONTNEED) == 0); }

// Whether a process ends well in which this befalls a clean storage that is looked at.
bool ends_well_after(void (*befalls)(char*)) {
  return in_child([&] {
    Arena& arena = make_arena(0);
    char* p = filled_block(arena, kStorage, 7);
    CHECK(arena.evict(p) > 0 && arena.fetch(p) == 0 && arena.state(p) == State::Clean);
    if (befalls != nullptr) befalls(p + 3 * kMiB);
    for (int i = 0; i < 64; ++i) CHECK(arena.look_at_clean_pages());
    return true;
  });
}

}  // namespace

TEST(a_clean_storage_that_changes_in_memory_is_found) {
  CHECK(ends_well_after(nullptr));
  CHECK(!ends_well_after(flip));
  CHECK(!ends_well_after(lose));
}

TEST(what_is_written_to_is_not_compared) {
  Arena& arena = make_arena(0);
  CHECK(!arena.look_at_clean_pages());
  char* p = filled_block(arena, kStorage, 7);
  CHECK(!arena.look_at_clean_pages());
  CHECK(arena.evict(p) > 0 && !arena.look_at_clean_pages());
  CHECK(filled(p, kStorage, 7) && arena.look_at_clean_pages());
  p[kMiB] = 1;
  CHECK(!arena.look_at_clean_pages());
}

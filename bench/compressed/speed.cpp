// How small, and how fast, the compressed tier makes what a file holds: a line of JSON for each file that is named.
// Every round writes all its chunks, reads those that were taken and releases them; the middle round counts.
#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <vector>

#include "core/block.hpp"
#include "core/compressed_tier.hpp"

using namespace ebbtide;

namespace {

constexpr int kRounds = 9;

struct Round {
  std::int64_t write_ns = 0, refuse_ns = 0, read_ns = 0, release_ns = 0, copy_ns = 0;
};

double middle_s(std::vector<Round>& rounds, std::int64_t Round::* which) {
  std::sort(rounds.begin(), rounds.end(), [&](const Round& a, const Round& b) { return a.*which < b.*which; });
  return static_cast<double>(rounds[rounds.size() / 2].*which) * 1e-9;
}

bool measure(CompressedTier& tier, const char* path) {
  std::FILE* file = std::fopen(path, "rb");
  if (file == nullptr) return false;
  std::fseek(file, 0, SEEK_END);
  std::size_t bytes = static_cast<std::size_t>(std::ftell(file)) / kSmallPage * kSmallPage;
  std::rewind(file);
  Reservation from(bytes, kHugePage, PROT_READ | PROT_WRITE), to(kChunk, kHugePage, PROT_READ | PROT_WRITE);
  bool whole = std::fread(from.begin(), 1, bytes, file) == bytes;
  std::fclose(file);
  std::memset(to.begin(), 1, kChunk);
  std::vector<Round> rounds(kRounds);
  std::uint64_t taken = 0, kept = 0;
  for (Round& round : rounds) {
    std::vector<Extent> written;
    taken = 0;
    for (std::uint64_t at = 0; at < bytes; at += kChunk) {
      Extent chunk{0, at, std::min<std::uint64_t>(kChunk, bytes - at)};
      std::int64_t begun = now_ns();
      bool fits = tier.write(chunk, from.begin() + at) == 0;
      (fits ? round.write_ns : round.refuse_ns) += now_ns() - begun;
      if (fits) written.push_back(chunk), taken += chunk.bytes;
    }
    kept = tier.used();
    for (const Extent& chunk : written) {
      iovec part{to.begin(), chunk.bytes};
      std::int64_t begun = now_ns();
      whole &= tier.read(chunk, &part, 1) == 0;
      round.read_ns += now_ns() - begun;
      whole &= std::memcmp(to.begin(), from.begin() + chunk.begin, chunk.bytes) == 0;
      begun = now_ns();
      std::memcpy(to.begin(), from.begin() + chunk.begin, chunk.bytes);
      round.copy_ns += now_ns() - begun;
    }
    std::int64_t begun = now_ns();
    for (const Extent& chunk : written) tier.release(chunk);
    round.release_ns += now_ns() - begun;
    whole &= tier.used() == 0;
  }
  std::printf(
      "{\"bytes\": %zu, \"taken\": %llu, \"kept\": %llu, \"write_s\": %.6f, \"refuse_s\": %.6f, \"read_s\": %.6f, "
      "\"release_s\": %.6f, \"copy_s\": %.6f}\n",
      bytes, static_cast<unsigned long long>(taken), static_cast<unsigned long long>(kept), middle_s(rounds, &Round::write_ns),
      middle_s(rounds, &Round::refuse_ns), middle_s(rounds, &Round::read_ns), middle_s(rounds, &Round::release_ns),
      middle_s(rounds, &Round::copy_ns));
  munmap(from.begin(), bytes);
  return whole;
}

}  // namespace

int main(int count, char** files) {
  CompressedTier tier(std::uint64_t{1} << 30);
  for (int i = 1; i < count; ++i) {
    if (measure(tier, files[i])) continue;
    std::fprintf(stderr, "%s: it cannot be read, or other bytes came back\n", files[i]);
    return 1;
  }
}

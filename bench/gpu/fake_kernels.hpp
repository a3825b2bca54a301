// The probe's kernels in C++, for the fake driver: what each touches, and what it does. The same as their PTX.
#pragma once

#include "fake_device.hpp"
#include "kernels.hpp"

namespace fake {

using Words = std::vector<std::uint64_t>;

// What each kernel touches, and what it does: the same as its PTX.
struct Kernel {
  std::size_t parameters;
  std::function<std::vector<Range>(const Words&)> touches;
  std::function<void(const Words&)> run;
};

inline std::uint64_t* at(Address a) { return reinterpret_cast<std::uint64_t*>(a); }

inline void doze(std::uint64_t ns) { std::this_thread::sleep_for(std::chrono::nanoseconds(std::min<std::uint64_t>(ns, 50'000'000))); }

inline const std::map<std::string, Kernel>& kernels() {
  static const auto* all = new std::map<std::string, Kernel>{
      {"fill", {5, [](const Words& w) { return std::vector<Range>{{w[0], w[1] * 8, true}}; },
                [](const Words& w) { for (std::uint64_t i = 0; i < w[1]; ++i) at(w[0])[i] = gpu::pattern(i, w[2], w[3], w[4]); }}},
      {"check", {6, [](const Words& w) { return std::vector<Range>{{w[0], w[1] * 8, false}, {w[5], 8, true}}; },
                 [](const Words& w) { for (std::uint64_t i = 0; i < w[1]; ++i) *at(w[5]) += at(w[0])[i] != gpu::pattern(i, w[2], w[3], w[4]); }}},
      {"copy", {3, [](const Words& w) { return std::vector<Range>{{w[0], w[2] * 8, true}, {w[1], w[2] * 8, false}}; },
                [](const Words& w) { std::memmove(at(w[0]), at(w[1]), w[2] * 8); }}},
      {"fma", {2, [](const Words& w) { return std::vector<Range>{{w[0], 4096, true}}; }, [](const Words&) { doze(20'000); }}},
      {"spin", {1, [](const Words&) { return std::vector<Range>{}; }, [](const Words& w) { doze(w[0]); }}},
      {"read_for", {4, [](const Words& w) { return std::vector<Range>{{w[0], w[1] * 8, false}, {w[3], 8, true}}; }, [](const Words& w) { doze(w[2]); }}},
      {"add", {3, [](const Words& w) { return std::vector<Range>{{w[0], w[1] * 8, true}}; },
               [](const Words& w) { for (std::uint64_t i = 0; i < w[1]; ++i) at(w[0])[i] += w[2]; }}},
  };
  return *all;
}

}  // namespace fake

// Pages of files that the script maps: np.memmap, torch.load(mmap=True), Arrow, safetensors. The kernel takes them back when
// memory is short, so they are no memory that the process needs. Pages of programs and libraries are: without them it stands
// still.
#pragma once

#include <algorithm>
#include <cstdint>

namespace ebbtide {

struct DataBytes {
  std::uint64_t mapped = 0, resident = 0;
};
// Of the mappings of files with data: of no file that is a program's in part, of none of the system's, and of none that lies in
// memory. 0 if they cannot be read. To count what is resident, the kernel looks at each page. It allocates.
DataBytes data_bytes(bool resident);

// Guarded by the arena's mutex.
class DataFiles {
 public:
  // Whether so much has changed in `shared` (resident pages of files, as statm has them) that mappings may have. They are read
  // once in a while: a process may have tens of thousands.
  bool is_due(std::uint64_t shared) const {
    std::uint64_t change = std::max(shared, looked_at_) - std::min(shared, looked_at_);
    return change >= std::max(kNotable, looked_at_ / 16);
  }
  bool has_looked() const { return looked_at_ != 0; }
  void look(std::uint64_t shared, DataBytes now) {
    if (now.mapped == 0 || !has_looked()) programs_ = shared - std::min(shared, now.resident);
    looked_at_ = shared;
    mapped_ = now.mapped;
  }
  // Resident pages that hold data. What was there before data were mapped is a program's. Libraries that come afterwards are not
  // told from data, as far as these are mapped.
  std::uint64_t bytes(std::uint64_t shared) const;

 private:
  static constexpr std::uint64_t kNotable = std::uint64_t{8} << 20;
  std::uint64_t looked_at_ = 0;
  std::uint64_t mapped_ = 0;
  std::uint64_t programs_ = 0;
};

}  // namespace ebbtide

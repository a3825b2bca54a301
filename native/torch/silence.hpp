// Nobody is told what PyTorch warns of meanwhile, on this thread.
#pragma once

#include <c10/util/Exception.h>

namespace ebbtide {

class Silence : c10::WarningHandler {
 public:
  Silence() : guard_(this) {}

 private:
  void process(const c10::Warning&) override {}

  c10::WarningUtils::WarningHandlerGuard guard_;
};

}  // namespace ebbtide

// Measures what Ebbtide's design for GPUs hangs on, with the driver's functions alone: one phase per process.
//
//   probe PHASE --library libcuda.so.1 [--cublas libcublas.so.13] [--folder DIR] [--small]
//
// Each phase prints JSON lines. README.md beside this says which question each answers; run.py runs them all.
#include <cstring>

#include "tools.hpp"

int main(int argc, char** argv) {
  using namespace gpu;
  if (argc < 2) stop("name a phase");
  const std::string phase = argv[1];
  std::string library = "libcuda.so.1", cublas, folder = ".";
  for (int i = 2; i < argc; ++i) {
    const std::string option = argv[i];
    if (option == "--small") {
      small = true;
    } else if (i + 1 < argc && option == "--library") {
      library = argv[++i];
    } else if (i + 1 < argc && option == "--cublas") {
      cublas = argv[++i];
    } else if (i + 1 < argc && option == "--folder") {
      folder = argv[++i];
    } else {
      stop("unknown option " + option);
    }
  }
  load_driver(library.c_str());
  MUST(cuInit(0));
  MUST(cuDeviceGet(&the_device, 0));
  CUcontext context = nullptr;
  MUST(cuDevicePrimaryCtxRetain(&context, the_device));
  MUST(cuCtxSetCurrent(context));
  if (!cublas.empty()) Gemm::use(cublas.c_str());

  if (phase == "attributes") attributes();
  else if (phase == "costs") costs();
  else if (phase == "stalls") stalls();
  else if (phase == "homes") homes();
  else if (phase == "reflow") reflow();
  else if (phase == "link") link(folder);
  else if (phase == "tickets") tickets();
  else if (phase == "host_net") host_net();
  else if (phase == "round_trip") round_trip();
  else if (phase.starts_with("crash:")) crash(phase.substr(std::strlen("crash:")));
  else stop("unknown phase " + phase);
  return 0;
}

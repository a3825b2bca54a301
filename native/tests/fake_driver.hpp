// The fake CUDA driver of bench/gpu, linked in.
#pragma once

#include "../../bench/gpu/fake_device.hpp"

extern "C" CUresult cuGetProcAddress_v2_fake(const char* name, void** function, int version, cuuint64_t flags,
                                             CUdriverProcAddressQueryResult* found) asm("cuGetProcAddress_v2");

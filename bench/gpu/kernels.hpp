// The probe's kernels as PTX, so that nothing needs nvcc: the driver compiles them when the module is loaded.
//
// All parameters are 64-bit words. Word i of a pattern is ((i * kOdd) ^ seed) & mask | base; kKernels says how many
// parameters each kernel has, for the fake driver, which carries out the same kernels in C++.
#pragma once

#include <cstdint>

namespace gpu {

constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15ull;

inline std::uint64_t pattern(std::uint64_t i, std::uint64_t seed, std::uint64_t mask = ~0ull, std::uint64_t base = 0) {
  return (((i * kOdd) ^ seed) & mask) | base;
}

// fill(p, words, seed, mask, base)          writes the pattern
// check(p, words, seed, mask, base, bad)    adds the number of words that differ to *bad
// copy(to, from, words)                     bandwidth-bound
// fma(out, turns)                           arithmetic-bound
// spin(ns)                                  one thread, waits on the device's clock
// read_for(p, words, ns, out)               reads p over and over for ns
// add(p, words, what)                       atomic addition to each word
inline const char* const kPtx = R"(
.version 7.0
.target sm_80
.address_size 64

.visible .entry fill(.param .u64 p, .param .u64 n, .param .u64 seed, .param .u64 mask, .param .u64 base) {
  .reg .pred %q; .reg .u32 %t<4>; .reg .u64 %a<12>;
  ld.param.u64 %a0, [p]; ld.param.u64 %a1, [n]; ld.param.u64 %a2, [seed]; ld.param.u64 %a3, [mask]; ld.param.u64 %a4, [base];
  mov.u32 %t0, %ctaid.x; mov.u32 %t1, %ntid.x; mov.u32 %t2, %tid.x; mov.u32 %t3, %nctaid.x;
  mul.wide.u32 %a5, %t0, %t1; cvt.u64.u32 %a6, %t2; add.u64 %a5, %a5, %a6; mul.wide.u32 %a6, %t1, %t3;
again:
  setp.ge.u64 %q, %a5, %a1; @%q bra done;
  mul.lo.u64 %a7, %a5, 0x9E3779B97F4A7C15; xor.b64 %a7, %a7, %a2; and.b64 %a7, %a7, %a3; or.b64 %a7, %a7, %a4;
  shl.b64 %a8, %a5, 3; add.u64 %a8, %a8, %a0; st.global.u64 [%a8], %a7;
  add.u64 %a5, %a5, %a6; bra again;
done:
  ret;
}

.visible .entry check(.param .u64 p, .param .u64 n, .param .u64 seed, .param .u64 mask, .param .u64 base, .param .u64 bad) {
  .reg .pred %q; .reg .u32 %t<4>; .reg .u64 %a<12>;
  ld.param.u64 %a0, [p]; ld.param.u64 %a1, [n]; ld.param.u64 %a2, [seed]; ld.param.u64 %a3, [mask]; ld.param.u64 %a4, [base];
  ld.param.u64 %a10, [bad];
  mov.u32 %t0, %ctaid.x; mov.u32 %t1, %ntid.x; mov.u32 %t2, %tid.x; mov.u32 %t3, %nctaid.x;
  mul.wide.u32 %a5, %t0, %t1; cvt.u64.u32 %a6, %t2; add.u64 %a5, %a5, %a6; mul.wide.u32 %a6, %t1, %t3;
again:
  setp.ge.u64 %q, %a5, %a1; @%q bra done;
  mul.lo.u64 %a7, %a5, 0x9E3779B97F4A7C15; xor.b64 %a7, %a7, %a2; and.b64 %a7, %a7, %a3; or.b64 %a7, %a7, %a4;
  shl.b64 %a8, %a5, 3; add.u64 %a8, %a8, %a0; ld.global.u64 %a9, [%a8];
  setp.eq.u64 %q, %a7, %a9; @%q bra next;
  red.global.add.u64 [%a10], 1;
next:
  add.u64 %a5, %a5, %a6; bra again;
done:
  ret;
}

.visible .entry copy(.param .u64 to, .param .u64 from, .param .u64 n) {
  .reg .pred %q; .reg .u32 %t<4>; .reg .u64 %a<12>;
  ld.param.u64 %a0, [to]; ld.param.u64 %a1, [from]; ld.param.u64 %a2, [n]; shr.u64 %a2, %a2, 1;
  mov.u32 %t0, %ctaid.x; mov.u32 %t1, %ntid.x; mov.u32 %t2, %tid.x; mov.u32 %t3, %nctaid.x;
  mul.wide.u32 %a5, %t0, %t1; cvt.u64.u32 %a6, %t2; add.u64 %a5, %a5, %a6; mul.wide.u32 %a6, %t1, %t3;
again:
  setp.ge.u64 %q, %a5, %a2; @%q bra done;
  shl.b64 %a7, %a5, 4; add.u64 %a8, %a7, %a1; ld.global.v2.u64 {%a9, %a10}, [%a8];
  add.u64 %a8, %a7, %a0; st.global.v2.u64 [%a8], {%a9, %a10};
  add.u64 %a5, %a5, %a6; bra again;
done:
  ret;
}

.visible .entry fma(.param .u64 out, .param .u64 turns) {
  .reg .pred %q; .reg .u32 %t<4>; .reg .u64 %a<6>; .reg .f32 %f<5>;
  ld.param.u64 %a0, [out]; ld.param.u64 %a1, [turns];
  mov.u32 %t0, %tid.x; cvt.rn.f32.u32 %f0, %t0; mov.f32 %f1, 0f3F7FFFFE; mov.f32 %f2, %f0; mov.f32 %f3, %f0; mov.f32 %f4, %f0;
  mov.u64 %a2, 0;
again:
  fma.rn.f32 %f0, %f0, %f1, %f1; fma.rn.f32 %f2, %f2, %f1, %f1; fma.rn.f32 %f3, %f3, %f1, %f1; fma.rn.f32 %f4, %f4, %f1, %f1;
  fma.rn.f32 %f0, %f0, %f1, %f1; fma.rn.f32 %f2, %f2, %f1, %f1; fma.rn.f32 %f3, %f3, %f1, %f1; fma.rn.f32 %f4, %f4, %f1, %f1;
  add.u64 %a2, %a2, 1; setp.lt.u64 %q, %a2, %a1; @%q bra again;
  add.f32 %f0, %f0, %f2; add.f32 %f3, %f3, %f4; add.f32 %f0, %f0, %f3;
  mov.u32 %t1, %ctaid.x; mov.u32 %t2, %ntid.x; mad.lo.u32 %t3, %t1, %t2, %t0; and.b32 %t3, %t3, 1023;
  mul.wide.u32 %a3, %t3, 4; add.u64 %a3, %a3, %a0; st.global.f32 [%a3], %f0;
  ret;
}

.visible .entry spin(.param .u64 ns) {
  .reg .pred %q; .reg .u64 %a<4>;
  ld.param.u64 %a0, [ns]; mov.u64 %a1, %globaltimer;
again:
  mov.u64 %a2, %globaltimer; sub.u64 %a3, %a2, %a1; setp.lt.u64 %q, %a3, %a0; @%q bra again;
  ret;
}

.visible .entry read_for(.param .u64 p, .param .u64 n, .param .u64 ns, .param .u64 out) {
  .reg .pred %q; .reg .u32 %t<4>; .reg .u64 %a<12>;
  ld.param.u64 %a0, [p]; ld.param.u64 %a1, [n]; ld.param.u64 %a2, [ns]; ld.param.u64 %a3, [out];
  mov.u32 %t0, %tid.x; cvt.u64.u32 %a4, %t0; mov.u64 %a5, %globaltimer; mov.u64 %a9, 0;
again:
  shl.b64 %a6, %a4, 3; add.u64 %a6, %a6, %a0; ld.volatile.global.u64 %a7, [%a6]; xor.b64 %a9, %a9, %a7;
  add.u64 %a4, %a4, 8191; rem.u64 %a4, %a4, %a1;
  mov.u64 %a7, %globaltimer; sub.u64 %a8, %a7, %a5; setp.lt.u64 %q, %a8, %a2; @%q bra again;
  st.global.u64 [%a3], %a9;
  ret;
}

.visible .entry add(.param .u64 p, .param .u64 n, .param .u64 what) {
  .reg .pred %q; .reg .u32 %t<4>; .reg .u64 %a<12>;
  ld.param.u64 %a0, [p]; ld.param.u64 %a1, [n]; ld.param.u64 %a2, [what];
  mov.u32 %t0, %ctaid.x; mov.u32 %t1, %ntid.x; mov.u32 %t2, %tid.x; mov.u32 %t3, %nctaid.x;
  mul.wide.u32 %a5, %t0, %t1; cvt.u64.u32 %a6, %t2; add.u64 %a5, %a5, %a6; mul.wide.u32 %a6, %t1, %t3;
again:
  setp.ge.u64 %q, %a5, %a1; @%q bra done;
  shl.b64 %a8, %a5, 3; add.u64 %a8, %a8, %a0; red.global.add.u64 [%a8], %a2;
  add.u64 %a5, %a5, %a6; bra again;
done:
  ret;
}
)";

}  // namespace gpu

// PTX instructions without a C++ counterpart: one per function.
#pragma once

#include "base/probe.cuh"

namespace atlas::ptx {

// Waits until every kernel that this one depends on has finished and its writes are visible.
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Lets the next kernel in the stream start and run up to its wait.
__device__ inline void griddepcontrol_launch_dependents() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
  if constexpr (kProbe == Probe::delayed) rest();
}

// D += A B for one 16x8x16 tile: A row-major BF16, B column-major BF16, D in F32.
//
// With g = lane / 4 and q = lane % 4: a[0] is row g, columns 2q and 2q + 1; a[1] row g + 8; a[2]
// and a[3] the same rows, columns + 8. b[0] is column g, rows 2q and 2q + 1; b[1] rows + 8. d[0]
// and d[1] are row g, columns 2q and 2q + 1; d[2], d[3] row g + 8.
__device__ inline void mma_bf16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// `mma_bf16` with F16 operands.
__device__ inline void mma_f16(float (&d)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Whether this lane is the elected one of its warp, all of whose lanes must call. The compiler
// knows that only one lane is elected, and makes no loop over lanes of a bulk copy.
__device__ inline bool elect() {
  unsigned is;
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, p;\n"
      "}"
      : "=r"(is));
  return is != 0;
}

// The thread's index, read from its register anew: neither it nor numbers derived from it are live
// in other registers from an earlier read.
__device__ inline unsigned thread_anew() {
  unsigned index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

// `2^x` to two units in the last place; results below the normal numbers are 0.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ inline unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Loads four 8x8 bf16 matrices; lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void ldmatrix(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// `ldmatrix` with each matrix transposed.
__device__ inline void ldmatrix_transposed(unsigned (&to)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(shared_address(row))
               : "memory");
}

// `ldmatrix` of two matrices, with row addresses from the first 16 lanes.
__device__ inline void ldmatrix(unsigned (&to)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(shared_address(row))
               : "memory");
}

__device__ inline void ldmatrix_transposed(unsigned (&to)[2], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(to[0]), "=r"(to[1])
               : "r"(shared_address(row))
               : "memory");
}

// Starts a copy of 16 bytes to shared memory; if not `live`, writes zeros and reads nothing.
__device__ inline void copy_async(void* to, const void* from, bool live) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
               "l"(from), "r"(live ? 16 : 0)
               : "memory");
}

// `copy_async` of 8 bytes.
__device__ inline void copy_async_8(void* to, const void* from, bool live) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(shared_address(to)),
               "l"(from), "r"(live ? 8 : 0)
               : "memory");
}

__device__ inline void copy_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most `kPending` of this thread's committed groups of copies are in flight.
template <int kPending>
__device__ inline void copy_async_wait() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

// Initialises an mbarrier with one arriving thread per phase.
__device__ inline void mbarrier_init(unsigned long long* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}

// Makes initialised barriers visible to bulk copies.
__device__ inline void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

// Starts a copy of `bytes` (a multiple of 16) to shared memory; the barrier expects them already.
// Copied lines are evicted first from the second-level cache, as weights are read once.
__device__ inline void copy_bulk(void* to, const void* from, unsigned bytes,
                                 unsigned long long* barrier) {
  constexpr unsigned long long kEvictFirst = 0x12f0000000000000ull;
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(kEvictFirst)
      : "memory");
}

// Starts two copies, which together complete the barrier's phase. Their lines stay in the
// second-level cache, as other blocks read them too.
__device__ inline void copy_bulk_shared(void* to, const void* from, unsigned bytes, void* to_too,
                                        const void* from_too, unsigned bytes_too,
                                        unsigned long long* barrier) {
  const unsigned at = shared_address(barrier);
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at),
               "r"(bytes + bytes_too)
               : "memory");
  const auto copy = [at](void* to, const void* from, unsigned bytes) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, "
        "[%3];" ::"r"(shared_address(to)),
        "l"(from), "r"(bytes), "r"(at)
        : "memory");
  };
  copy(to, from, bytes);
  copy(to_too, from_too, bytes_too);
}

// Waits for the end of the barrier's phase of parity `parity`.
__device__ inline void mbarrier_wait(unsigned long long* barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again%=;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Initialises an mbarrier with `arrivals` arriving threads per phase.
__device__ inline void mbarrier_init(unsigned long long* barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

__device__ inline void mbarrier_arrive(unsigned long long* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// Arrives at the barrier; the phase ends after `bytes` of bulk copies, too.
__device__ inline void mbarrier_expect(unsigned long long* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// Makes this thread arrive when all copies that it started by `copy_async` are complete.
__device__ inline void copy_async_arrive(unsigned long long* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                   shared_address(barrier))
               : "memory");
}

// `copy_bulk` of bytes that other blocks read too: lines stay in the second-level cache.
__device__ inline void copy_bulk_shared(void* to, const void* from, unsigned bytes,
                                        unsigned long long* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1], %2, [%3];" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier))
      : "memory");
}

// Orders earlier ordinary accesses to shared memory before later bulk copies and tensor
// instructions.
__device__ inline void fence_shared() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Starts a copy of `bytes` (a multiple of 16) from shared memory, after `fence_shared`.
__device__ inline void copy_out(void* to, const void* from, unsigned bytes) {
  asm volatile(
      "cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;\n"
      "cp.async.bulk.commit_group;" ::"l"(to),
      "r"(shared_address(from)), "r"(bytes)
      : "memory");
}

// Waits until the sources of all but this thread's last `kPending` groups of copies are read.
template <int kPending>
__device__ inline void copy_out_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Waits until all of this thread's copies out have been written.
__device__ inline void copy_out_wait() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Starts loading `bytes` (a multiple of 16) into the second-level cache.
__device__ inline void prefetch_bulk(const void* from, unsigned bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

// Adds to memory without waiting for the old number. Rounds as `+`, except that subnormal results
// are zeros.
__device__ inline void add(float* to, float value) {
  asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}

__device__ inline void add(float4* to, const float4& value) {
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(value.x),
               "f"(value.y), "f"(value.z), "f"(value.w)
               : "memory");
}

// Writes a number that other blocks poll, or polls one, past the first-level cache. No other
// accesses are ordered by it.
__device__ inline void store_relaxed(float* to, float value) {
  asm volatile("st.relaxed.gpu.global.f32 [%0], %1;" ::"l"(to), "f"(value) : "memory");
}
__device__ inline void store_relaxed(unsigned* to, unsigned value) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
__device__ inline unsigned load_relaxed(const unsigned* from) {
  unsigned value;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}
__device__ inline float4 load_relaxed(const float4* from) {
  float4 value;
  asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "l"(from)
               : "memory");
  return value;
}

// Adds to a number after earlier writes of this thread, and of threads that it met at a barrier; a
// reader by `load_acquire` sees these writes.
__device__ inline void add_release(unsigned* to, unsigned value) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}
// Adds as `add_release`, and returns the old number; later reads see earlier adders' writes.
__device__ inline unsigned fetch_add(unsigned* to, unsigned value) {
  unsigned before;
  asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], %2;"
               : "=r"(before)
               : "l"(to), "r"(value)
               : "memory");
  return before;
}
__device__ inline unsigned load_acquire(const unsigned* from) {
  unsigned value;
  asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
}

// Barrier number `kId`, from 1 on, for `kThreads` of a block, whole warps. For a number unknown to
// the compiler it would reserve all barriers of a block, and an SM would hold fewer blocks.
template <int kId, int kThreads>
__device__ inline void barrier_sync() {
  asm volatile("barrier.sync %0, %1;" ::"n"(kId), "n"(kThreads) : "memory");
}
// Barrier that also returns whether any of its threads passes true.
template <int kId, int kThreads>
__device__ inline bool barrier_or(bool says) {
  unsigned any;
  asm volatile(
      "{\n"
      ".reg .pred p, q;\n"
      "setp.ne.u32 p, %3, 0;\n"
      "barrier.red.or.pred q, %1, %2, p;\n"
      "selp.u32 %0, 1, 0, q;\n"
      "}"
      : "=r"(any)
      : "n"(kId), "n"(kThreads), "r"(static_cast<unsigned>(says))
      : "memory");
  return any != 0;
}

// Barrier of all threads of a cluster; earlier writes are visible after it.
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" :::
               "memory");
}

// A number in the shared memory of the cluster's block `rank`, at `mine`'s address here.
__device__ inline unsigned cluster_load(const unsigned* mine, unsigned rank) {
  unsigned at, value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(mine)), "r"(rank));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(at) : "memory");
  return value;
}

// `cluster_load` of four numbers.
__device__ inline float4 cluster_load(const float* mine, unsigned rank) {
  unsigned at;
  float4 value;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(mine)), "r"(rank));
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(value.x), "=f"(value.y), "=f"(value.z), "=f"(value.w)
               : "r"(at)
               : "memory");
  return value;
}

// Writes a number to the shared memory of the cluster's block `rank`, at `mine`'s address here.
__device__ inline void cluster_store(float* mine, unsigned rank, float value) {
  unsigned at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(mine)), "r"(rank));
  asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(at), "f"(value) : "memory");
}

// Arrives at the barrier of block `rank` at `mine`'s address, after earlier writes of this thread
// and of threads that it met at a barrier: `cluster_wait` makes these visible.
__device__ inline void cluster_arrive(unsigned long long* mine, unsigned rank) {
  unsigned at;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(shared_address(mine)), "r"(rank));
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(at)
               : "memory");
}
__device__ inline void cluster_wait(unsigned long long* barrier, unsigned parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again%=:\n"
      "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again%=;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Barrier number `index` for `kThreads` threads, some of which arrive without waiting.
template <int kThreads>
__device__ inline void named_sync(int index) {
  asm volatile("bar.sync %0, %1;" ::"r"(index), "n"(kThreads) : "memory");
}
template <int kThreads>
__device__ inline void named_arrive(int index) {
  asm volatile("bar.arrive %0, %1;" ::"r"(index), "n"(kThreads) : "memory");
}

// Sets the number of registers of each thread of this warpgroup.
template <int kCount>
__device__ inline void registers_release() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void registers_take() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}

}  // namespace atlas::ptx

// SPDX-License-Identifier: Apache-2.0
// Process groups: the ranks (processes or threads) of a run that communicate.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/process.h"

namespace accelerate {

/// Reductions support fp32, fp64, bf16, fp16, integers of 8, 32 and 64 bits,
/// complex types (sum and mean), and bool, whose sum is "or". Sums of integers
/// wrap around as PyTorch's do: convert small types first. The maximum and
/// minimum of NaN and a number are NaN. Means support only floating and complex
/// types; those of bf16 and fp16 are accumulated in fp32 and rounded once.
/// Anything else is a `UsageError`, even on a single rank.
enum class ReduceOp { kSum, kMean, kMax, kMin };

/// Names of backends; `register_backend` (c10d.h) adds others.
struct ACCELERATE_API Backend {
  /// The backend of the accelerator (NCCL for CUDA) if every local rank has its
  /// own device, else Gloo.
  static constexpr const char* kAuto = "";
  /// CPU tensors, and GPU tensors through CPU memory.
  static constexpr const char* kGloo = "gloo";
  /// GPU tensors through NCCL, CPU tensors through Gloo.
  static constexpr const char* kNccl = "nccl";
};

struct ACCELERATE_API ProcessGroupOptions {
  std::string backend = Backend::kAuto;
  /// Time limit of one collective; exceeding it is a `TimeoutError`.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// Time limit for all ranks to connect. Under `accelerate launch`, the other
  /// ranks wait for rank 0 as long as its process is alive.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
  /// If a collective waits longer than this, one rank reports on stderr where
  /// all ranks are (docs/troubleshooting.md); 0 disables it. The collective
  /// keeps waiting until `timeout`. Default: ACCELERATE_HANG_SECONDS, or 10
  /// seconds.
  std::optional<std::chrono::milliseconds> hang_message_after = {};
};

/// A handle to a group of ranks; copies share the group. All ranks must call
/// the same operations in the same order. Use a group from one thread at a
/// time.
///
/// The collectives here are the raw ones: values must have equal shapes and
/// dtypes on all ranks, which is not checked unless `check_collectives` was
/// called. `collectives.h` has checked collectives on trees. Tensors are dense;
/// operations that only move data support any dtype. Each throws `TimeoutError`
/// if it takes too long and `CommError` if a rank has exited; the message names
/// the operation.
class ACCELERATE_API ProcessGroup {
 public:
  /// The group of one rank: every collective is the identity.
  ProcessGroup();

  /// Connects to the other ranks, with a new connection per call; the
  /// `Accelerator`s of a process share one. Throws `ConfigError` if the address
  /// of rank 0 is unknown or the backend cannot be used here, `TimeoutError`
  /// naming the ranks that did not connect. From then on, the process ignores
  /// SIGPIPE unless it has its own handler, so a lost connection is reported as
  /// an exception.
  static ProcessGroup connect(
      const ProcessEnvironment& environment,
      const ProcessGroupOptions& options = {});

  /// Creates a group of some ranks of this group. Every rank of this group
  /// calls it at the same time with the ranks (of this group) of its own
  /// subgroup; subgroups do not overlap, and `ranks[i]` is rank i of the new
  /// one. All ranks in order return this group itself; `{rank()}` is a group of
  /// one, for ranks that belong to no subgroup but must call it too. The new
  /// group uses the same backends, timeout and checks, and ends with this one's
  /// `shutdown()`.
  ///
  ///     // Pairs: 0 and 1, 2 and 3, ...
  ///     const int first = group.rank() / 2 * 2;
  ///     const auto pair = group.subgroup({first, first + 1});
  ///
  /// Throws `UsageError` if a rank's list is invalid, `MismatchError` if ranks
  /// of one subgroup passed different lists: the same on every rank of this
  /// group, which remains usable. Throws `ConfigError` if the group was passed
  /// in from outside and has a backend that is not registered.
  ProcessGroup subgroup(const std::vector<int>& ranks) const;
  /// A separate group of the same ranks, for a thread whose collectives run
  /// concurrently with those of this one. Collective; throws as `subgroup`.
  ProcessGroup duplicate() const;

  int rank() const;
  int world_size() const;
  /// "solo", "gloo", "nccl", or the name of an external backend.
  std::string backend() const;
  /// Whether this is a single rank without a backend. False for a connected
  /// group of one (`Backend::kNccl` on one process).
  bool is_solo() const;
  /// Whether `run_ranks` created the group.
  bool ranks_are_threads() const;

  void barrier() const;
  /// Works in place: every rank receives `root`'s values.
  void broadcast(at::Tensor tensor, int root) const;
  /// Works in place: every rank receives the reduction, bit-identical on all.
  void all_reduce(at::Tensor tensor, ReduceOp op) const;
  /// The tensors of all ranks along a new first dimension, in rank order.
  at::Tensor all_gather(const at::Tensor& tensor) const;
  /// The `shard` of every rank, concatenated in rank order, written to `whole`,
  /// which has `world_size()` times as many elements and any shape. `shard` may
  /// be this rank's own slice of `whole`.
  void all_gather_into(at::Tensor whole, const at::Tensor& shard) const;
  /// Reduces `whole` over ranks and writes this rank's slice to `shard`, which
  /// has 1 / `world_size()` of its elements, in rank order, and any shape;
  /// `whole` is not changed. On two ranks the result is bit-identical to
  /// `all_reduce`; on more, the order of a sum may differ, but is the same in
  /// every call. Gloo accumulates sums of bf16 and fp16 in fp32, too, and
  /// rounds once.
  void reduce_scatter(at::Tensor shard, const at::Tensor& whole, ReduceOp op)
      const;
  /// Like `all_gather`, but only on `root`; an undefined tensor elsewhere.
  at::Tensor gather_to(const at::Tensor& tensor, int root) const;
  /// Writes row `rank()` of `root`'s `rows` (dim 0 is `world_size()`) to
  /// `output`, which determines shape and dtype; `rows` is ignored elsewhere.
  void scatter(at::Tensor output, const at::Tensor& rows, int root) const;

  /// An asynchronous operation; keeps its tensors alive. The destructor also
  /// waits, but ignores errors.
  class ACCELERATE_API Work {
   public:
    /// An already completed operation.
    Work();
    ~Work();
    Work(Work&&) noexcept;
    Work& operator=(Work&&) noexcept;
    /// Blocks until the tensors may be used: on the CPU by the host, on an
    /// accelerator by the current stream. Throws as the synchronous operation
    /// would; returns immediately if called again.
    void wait();

    struct State;
    explicit Work(std::unique_ptr<State> state);

   private:
    std::unique_ptr<State> state_;
  };
  /// Start an operation in the background. Do not touch its tensors before
  /// `wait()`. Ranks may wait in any order but must start operations in the
  /// same order.
  ///
  ///     using accelerate::ReduceOp;
  ///     auto sum = group.start_all_reduce(gradient, ReduceOp::kSum);
  ///     prepare_the_next_one();
  ///     sum.wait();
  Work start_broadcast(at::Tensor tensor, int root) const;
  Work start_all_reduce(at::Tensor tensor, ReduceOp op) const;
  Work start_all_gather_into(at::Tensor whole, const at::Tensor& shard) const;
  Work start_reduce_scatter(
      at::Tensor shard,
      const at::Tensor& whole,
      ReduceOp op) const;
  /// Sends or receives a CPU tensor in the background. Messages of one channel
  /// between two ranks arrive in order. Throws `UsageError` in a group of one
  /// without a backend.
  Work start_send(const at::Tensor& tensor, int to, int channel) const;
  Work start_receive(at::Tensor tensor, int from, int channel) const;
  /// Returns a channel for the two functions above that has no other user. All
  /// ranks must open their channels in the same order.
  int open_channel() const;

  /// `root`'s bytes on every rank; the argument of other ranks is ignored.
  std::string broadcast_bytes(const std::string& bytes, int root) const;
  /// The bytes of all ranks, of any lengths, in rank order.
  std::vector<std::string> all_gather_bytes(const std::string& bytes) const;

  /// Runs `work`, which communicates by itself, and converts its errors to the
  /// exceptions above, naming `operation`.
  void guard(const char* operation, const std::function<void()>& work) const;

  /// Makes raw collectives of this group first compare operation, dtype and
  /// shape across ranks and throw `MismatchError` on every rank if they differ.
  /// For debugging, because each collective then needs one more exchange. All
  /// ranks must call this between the same two collectives. Messages between
  /// two ranks are not checked.
  void check_collectives();

  /// Leaves the group and its subgroups; later collectives throw `UsageError`.
  /// Does not wait. No effect on a single rank without a backend.
  void shutdown();
  bool is_shut_down() const;

  class Impl;
  explicit ProcessGroup(std::shared_ptr<Impl> impl);
  const std::shared_ptr<Impl>& impl() const { return impl_; }

 private:
  ProcessGroup make_subgroup(const std::vector<int>& ranks, int64_t number)
      const;

  std::shared_ptr<Impl> impl_;
};

/// Runs `function` on `num_ranks` (at least 1) threads of this process, each a
/// rank with its own group, and waits for all. If one throws, its group is shut
/// down, so that the others fail too, and the first exception is rethrown. The
/// threads share torch's default CPU generator; on GPUs each needs its own
/// device.
///
///     accelerate::run_ranks(4, [](accelerate::ProcessGroup group) {
///       accelerate::Accelerator accelerator({.process_group = group});
///     });
ACCELERATE_API void run_ranks(
    int num_ranks,
    const std::function<void(ProcessGroup)>& function,
    const ProcessGroupOptions& options = {});

} // namespace accelerate

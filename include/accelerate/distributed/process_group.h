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
/// complex types (sum and mean), and bool. The sum of bools is a logical or.
/// Sums of integers wrap around as in PyTorch, so convert small types first.
/// The maximum and minimum of NaN and a number are NaN. Means support only
/// floating-point and complex types. Means of bf16 and fp16 are accumulated in
/// fp32 and rounded once. Anything else throws `UsageError`, even on a single
/// rank.
enum class ReduceOp { kSum, kMean, kMax, kMin };

/// The names of the built-in backends. `register_backend` (c10d.h) adds others.
struct ACCELERATE_API Backend {
  /// The backend of the accelerator (NCCL for CUDA) if every local rank has its
  /// own device, and otherwise Gloo.
  static constexpr const char* kAuto = "";
  /// Gloo. GPU tensors are copied through CPU memory.
  static constexpr const char* kGloo = "gloo";
  /// NCCL for GPU tensors, and Gloo for CPU tensors.
  static constexpr const char* kNccl = "nccl";
};

struct ACCELERATE_API ProcessGroupOptions {
  std::string backend = Backend::kAuto;
  /// The time limit of one collective. If it is exceeded, `TimeoutError` is
  /// thrown.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// The time limit for all ranks to connect. Under `accelerate launch`, the
  /// other ranks wait for rank 0 as long as its process is alive.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
  /// If a collective waits longer than this, one rank reports on stderr which
  /// line of code each rank is executing (docs/troubleshooting.md). The
  /// collective keeps waiting until `timeout`. 0 disables the report. Default:
  /// ACCELERATE_HANG_SECONDS, or 10 seconds.
  std::optional<std::chrono::milliseconds> hang_message_after = {};
};

/// A handle to a group of ranks. Copies share the group. All ranks must call
/// the same operations in the same order. Use a group from one thread at a
/// time.
///
/// The collectives in this class are raw: values must have equal shapes and
/// dtypes on all ranks, but this is not checked unless `check_collectives` was
/// called. `collectives.h` has checked collectives on trees. Tensors must be
/// dense. Operations that only move data support any dtype. Each operation
/// throws `TimeoutError` if it takes too long and `CommError` if a rank has
/// exited. The message names the operation.
class ACCELERATE_API ProcessGroup {
 public:
  /// Creates a group of one rank, in which every collective is the identity.
  ProcessGroup();

  /// Connects to the other ranks. Each call creates a new connection, but the
  /// `Accelerator`s of a process share one. Throws `ConfigError` if the address
  /// of rank 0 is unknown or this process cannot use the backend. If ranks do
  /// not connect in time, throws a `TimeoutError` that names them. From this
  /// call on, the process ignores SIGPIPE unless it has its own handler, so
  /// that a lost connection is reported as an exception.
  static ProcessGroup connect(
      const ProcessEnvironment& environment,
      const ProcessGroupOptions& options = {});

  /// Creates a group of some ranks of this group. All ranks of this group must
  /// call this function together. Each rank passes the ranks (in this group) of
  /// its own subgroup. Subgroups must not overlap. `ranks[i]` becomes rank i of
  /// the new group. If `ranks` contains all ranks in order, returns this group
  /// itself. A rank that belongs to no subgroup must also call the function: it
  /// passes `{rank()}` and gets a group of one. The new group uses the same
  /// backends, timeout and checks, and is shut down together with this group.
  ///
  ///     // Pairs: 0 and 1, 2 and 3, ...
  ///     const int first = group.rank() / 2 * 2;
  ///     const auto pair = group.subgroup({first, first + 1});
  ///
  /// Throws `UsageError` if a rank's list is invalid, and `MismatchError` if
  /// ranks of one subgroup passed different lists. Every rank of this group
  /// throws the same error, and the group remains usable. Throws `ConfigError`
  /// if the program created this group with c10d and its backend is not
  /// registered.
  ProcessGroup subgroup(const std::vector<int>& ranks) const;
  /// Creates a separate group of the same ranks, for a thread whose collectives
  /// run concurrently with those of this group. Collective. Throws the same
  /// errors as `subgroup`.
  ProcessGroup duplicate() const;

  int rank() const;
  int world_size() const;
  /// "solo", "gloo", "nccl", or the name of an external backend.
  std::string backend() const;
  /// Whether this is a single rank without a backend. False for a group of one
  /// rank that has a backend (`Backend::kNccl` with one process).
  bool is_solo() const;
  /// Whether `run_ranks` created the group.
  bool ranks_are_threads() const;

  void barrier() const;
  /// Broadcasts `root`'s values to every rank, in place.
  void broadcast(at::Tensor tensor, int root) const;
  /// Reduces over all ranks, in place. The result is bit-identical on all
  /// ranks.
  void all_reduce(at::Tensor tensor, ReduceOp op) const;
  /// Returns the tensors of all ranks along a new first dimension, in rank
  /// order.
  at::Tensor all_gather(const at::Tensor& tensor) const;
  /// Concatenates the `shard` of every rank in rank order and writes the result
  /// to `whole`, which has `world_size()` times as many elements and any shape.
  /// `shard` may be this rank's own slice of `whole`.
  void all_gather_into(at::Tensor whole, const at::Tensor& shard) const;
  /// Reduces `whole` over ranks and writes this rank's slice to `shard`, which
  /// has 1 / `world_size()` of the elements and any shape. Slices are in rank
  /// order. `whole` is not changed. On two ranks, the result is bit-identical
  /// to `all_reduce`. On more ranks, the order of a sum may differ from
  /// `all_reduce`, but it is the same in every call. Gloo also accumulates sums
  /// of bf16 and fp16 in fp32 and rounds once.
  void reduce_scatter(at::Tensor shard, const at::Tensor& whole, ReduceOp op)
      const;
  /// Like `all_gather`, but only `root` receives the result. Other ranks get an
  /// undefined tensor.
  at::Tensor gather_to(const at::Tensor& tensor, int root) const;
  /// Writes row `rank()` of `root`'s `rows` to `output`, which determines the
  /// shape and dtype. Dim 0 of `rows` has size `world_size()`. Other ranks'
  /// `rows` are ignored.
  void scatter(at::Tensor output, const at::Tensor& rows, int root) const;

  /// An asynchronous operation. It keeps its tensors alive. The destructor also
  /// waits, but ignores errors.
  class ACCELERATE_API Work {
   public:
    /// An already completed operation.
    Work();
    ~Work();
    Work(Work&&) noexcept;
    Work& operator=(Work&&) noexcept;
    /// Blocks until the host (for CPU tensors) or the current stream (for
    /// tensors on an accelerator) may use the tensors. Throws the same errors
    /// as the synchronous operation. Returns immediately if called again.
    void wait();

    struct State;
    explicit Work(std::unique_ptr<State> state);

   private:
    std::unique_ptr<State> state_;
  };
  /// These functions start an operation in the background. Do not use the
  /// tensors of the operation before `wait()` returns. Ranks may wait in any
  /// order but must start operations in the same order.
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
  /// These functions send or receive a CPU tensor in the background. Messages
  /// between two ranks arrive in order within a channel. Throws `UsageError` in
  /// a group of one without a backend.
  Work start_send(const at::Tensor& tensor, int to, int channel) const;
  Work start_receive(at::Tensor tensor, int from, int channel) const;
  /// Returns an unused channel for the two functions above. All ranks must open
  /// their channels in the same order.
  int open_channel() const;

  /// Returns `root`'s bytes on every rank. The argument of other ranks is
  /// ignored.
  std::string broadcast_bytes(const std::string& bytes, int root) const;
  /// Returns the bytes of all ranks, in rank order. The lengths may differ.
  std::vector<std::string> all_gather_bytes(const std::string& bytes) const;

  /// Runs `work`, which communicates without this class, and converts its
  /// errors to `CommError` and `TimeoutError`. The messages name `operation`.
  void guard(const char* operation, const std::function<void()>& work) const;

  /// Makes each raw collective of this group first compare its operation, dtype
  /// and shape across ranks and throw `MismatchError` on every rank if they
  /// differ. Use this for debugging only, because each collective then needs an
  /// additional exchange. All ranks must call this function between the same
  /// two collectives. Messages between two ranks are not checked.
  void check_collectives();

  /// Leaves the group and its subgroups, without waiting for other ranks. Later
  /// collectives throw `UsageError`. Has no effect on a single rank without a
  /// backend.
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

/// Runs `function` on `num_ranks` (at least 1) threads of this process and
/// waits for all of them. Each thread is a rank with its own group. If a thread
/// throws, its group is shut down, so that the others fail too, and the first
/// exception is rethrown. The threads share torch's default CPU generator. On
/// GPUs, each thread needs its own device.
///
///     accelerate::run_ranks(4, [](accelerate::ProcessGroup group) {
///       accelerate::Accelerator accelerator({.process_group = group});
///     });
ACCELERATE_API void run_ranks(
    int num_ranks,
    const std::function<void(ProcessGroup)>& function,
    const ProcessGroupOptions& options = {});

} // namespace accelerate

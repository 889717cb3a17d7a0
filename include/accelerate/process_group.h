// SPDX-License-Identifier: Apache-2.0
// The processes (or threads) of a run that speak to each other.
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

/// Reduced are fp32, fp64, bf16, fp16, whole numbers of 8, 32 and 64 bits,
/// complex ones (sum and mean), and bool, whose sum is "or". Sums of whole
/// numbers wrap around as PyTorch's do: convert small types first. The maximum
/// and minimum of NaN and a number are NaN. Means are of
/// floating and complex numbers alone; those of bf16 and fp16 are added in fp32
/// and rounded once. Anything else is a `UsageError`, on one rank too.
enum class ReduceOp { kSum, kMean, kMax, kMin };

/// Names of backends; `register_backend` (c10d.h) adds others.
struct ACCELERATE_API Backend {
  /// That of the accelerator where every local rank has one of its own (NCCL
  /// for CUDA), else Gloo.
  static constexpr const char* kAuto = "";
  /// CPU tensors, and GPU tensors by way of the CPU.
  static constexpr const char* kGloo = "gloo";
  /// GPU tensors by NCCL, CPU tensors by Gloo.
  static constexpr const char* kNccl = "nccl";
};

struct ACCELERATE_API ProcessGroupOptions {
  std::string backend = Backend::kAuto;
  /// How long one collective may take before it is a `TimeoutError`.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// How long to wait for all ranks to arrive at the meeting point. Under
  /// `accelerate launch` the others wait for rank 0 while its process lives.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
  /// A collective that waits for longer than this has one rank say on stderr
  /// where all of them are (docs/troubleshooting.md); 0: never. It goes on
  /// waiting until `timeout`. Where it is not given, ACCELERATE_HANG_SECONDS
  /// says it, else it is 10 seconds.
  std::optional<std::chrono::milliseconds> hang_message_after = {};
};

/// A handle to a group of ranks; copies share the group. All ranks must call
/// the same operations in the same order. A group belongs to one thread at a
/// time.
///
/// The collectives here are the raw ones: values must have equal shapes and
/// dtypes on all ranks, and nobody checks unless `check_collectives` was
/// called. `collectives.h` has the checked ones on trees. Tensors are dense;
/// what is only moved may have any dtype. Each throws `TimeoutError` where it
/// takes too long and `CommError` where a peer is gone; the message names the
/// operation.
class ACCELERATE_API ProcessGroup {
 public:
  /// The group of one rank: every collective is the identity.
  ProcessGroup();

  /// Meets the other ranks, anew at each call; an `Accelerator` shares one
  /// connection with the others of its process. Throws `ConfigError` where the
  /// meeting point is unknown or the backend cannot be used here,
  /// `TimeoutError` naming the ranks that did not arrive. From then on the
  /// process ignores SIGPIPE, unless it has a handler of its own, so that a
  /// peer that is gone is an exception.
  static ProcessGroup connect(
      const ProcessEnvironment& environment,
      const ProcessGroupOptions& options = {});

  /// Some ranks of this group as a group of their own. Every rank of this group
  /// calls it at the same time with the ranks (of this group) of its own part;
  /// parts do not overlap, and `ranks[i]` is rank i of the new one. All ranks
  /// in their order are this group itself, `{rank()}` is a group of one: so a
  /// rank that has no part to play calls it too. The new group uses the same
  /// backends, timeout and checks, and ends with this one's `shutdown()`.
  ///
  ///     // Pairs: 0 and 1, 2 and 3, ...
  ///     const int first = group.rank() / 2 * 2;
  ///     const auto pair = group.subgroup({first, first + 1});
  ///
  /// Throws `UsageError` where a rank's list is no such one, `MismatchError`
  /// where ranks of one part gave different lists: the same on every rank of
  /// this group, which stays in step. `ConfigError` where the group was given
  /// from outside and has a backend that nobody registered.
  ProcessGroup subgroup(const std::vector<int>& ranks) const;
  /// The same ranks as a group of its own, for a thread whose collectives run
  /// beside those of this one. A collective; throws as `subgroup`.
  ProcessGroup duplicate() const;

  int rank() const;
  int world_size() const;
  /// "solo", "gloo", "nccl", or the name of a backend given from outside.
  std::string backend() const;
  /// Whether this is one rank alone without a backend. A group of one that was
  /// connected (`Backend::kNccl` on one process) is not.
  bool is_solo() const;
  /// Whether `run_ranks` made the group.
  bool ranks_are_threads() const;

  void barrier() const;
  /// In place; every rank ends with `root`'s values.
  void broadcast(at::Tensor tensor, int root) const;
  /// In place; every rank ends with the reduction, the same bits on all.
  void all_reduce(at::Tensor tensor, ReduceOp op) const;
  /// Everybody's tensors along a new first dimension, in rank order.
  at::Tensor all_gather(const at::Tensor& tensor) const;
  /// Everybody's `part` one after the other, in rank order, written to `whole`,
  /// which has `world_size()` times as many elements and any shape. `part` may
  /// be this rank's own piece of `whole`.
  void all_gather_into(at::Tensor whole, const at::Tensor& part) const;
  /// The reduction of all ranks' `whole`, of which this rank gets its piece:
  /// `part` has one element for `world_size()` of `whole`, in rank order, and
  /// any shape; `whole` is not changed. On two ranks the bits are those of
  /// `all_reduce`; on more the order of a sum may be another, though the same
  /// at every call. Through Gloo, sums of bf16 and fp16 too are added in fp32
  /// and rounded once.
  void reduce_scatter(at::Tensor part, const at::Tensor& whole, ReduceOp op)
      const;
  /// As `all_gather`, on `root` alone; an undefined tensor elsewhere.
  at::Tensor gather_to(const at::Tensor& tensor, int root) const;
  /// Row `rank()` of `root`'s `rows` (dim 0 is `world_size()`), written to
  /// `output`, which gives shape and dtype; `rows` is ignored elsewhere.
  void scatter(at::Tensor output, const at::Tensor& rows, int root) const;

  /// An operation that is under way; keeps its tensors alive. The destructor
  /// waits too, where what goes wrong is dropped.
  class ACCELERATE_API Work {
   public:
    /// Nothing under way.
    Work();
    ~Work();
    Work(Work&&) noexcept;
    Work& operator=(Work&&) noexcept;
    /// Until the tensors may be used: read or written by the host on the CPU,
    /// by the current stream on an accelerator. Throws as the operation itself
    /// would; returns at once when called again.
    void wait();

    struct State;
    explicit Work(std::unique_ptr<State> state);

   private:
    std::unique_ptr<State> state_;
  };
  /// The operations of these names, beside what else goes on. Their tensors are
  /// not to be touched before `wait()`, which all ranks call in any order; only
  /// the starts must come in the same order on all.
  ///
  ///     using accelerate::ReduceOp;
  ///     auto sum = group.start_all_reduce(gradient, ReduceOp::kSum);
  ///     prepare_the_next_one();
  ///     sum.wait();
  Work start_broadcast(at::Tensor tensor, int root) const;
  Work start_all_reduce(at::Tensor tensor, ReduceOp op) const;
  Work start_all_gather_into(at::Tensor whole, const at::Tensor& part) const;
  Work start_reduce_scatter(
      at::Tensor part,
      const at::Tensor& whole,
      ReduceOp op) const;
  /// Sends or receives the CPU tensor beside what else goes on. Messages of one
  /// channel between two ranks arrive in order. `UsageError` in a group of one
  /// without a backend, which has nobody to send to.
  Work start_send(const at::Tensor& tensor, int to, int channel) const;
  Work start_receive(at::Tensor tensor, int from, int channel) const;
  /// A number for the two functions above that no other caller has. All ranks
  /// must ask for their channels in the same order.
  int open_channel() const;

  /// `root`'s bytes on every rank; others' argument is ignored.
  std::string broadcast_bytes(const std::string& bytes, int root) const;
  /// Everybody's bytes, of any lengths, in rank order.
  std::vector<std::string> all_gather_bytes(const std::string& bytes) const;

  /// Runs `work` that speaks to the other ranks by itself, and gives what goes
  /// wrong there the same exceptions, under the name `operation`.
  void guard(const char* operation, const std::function<void()>& work) const;

  /// From now on the raw collectives of this group compare operation, dtype and
  /// shape across ranks first and throw `MismatchError` on every rank where
  /// they differ: one more exchange each, for debugging. All ranks must call it
  /// between the same two collectives. Messages between two ranks stay
  /// unchecked.
  void check_collectives();

  /// Leaves the group and what `subgroup` made of it; later collectives throw
  /// `UsageError`. Waits for nobody. Nothing for one rank alone.
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

/// Runs `function` as `num_ranks` (at least 1) ranks that are threads of this
/// process, each with its own group, and waits for all. Where one throws, its
/// group is shut down, so that the others fail too, and the first exception is
/// thrown again. Thread ranks share torch's default CPU generator; on GPUs each
/// needs a device of its own.
///
///     accelerate::run_ranks(4, [](accelerate::ProcessGroup group) {
///       accelerate::Accelerator accelerator({.process_group = group});
///     });
ACCELERATE_API void run_ranks(
    int num_ranks,
    const std::function<void(ProcessGroup)>& function,
    const ProcessGroupOptions& options = {});

} // namespace accelerate

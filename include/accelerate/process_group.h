// SPDX-License-Identifier: Apache-2.0
// The processes (or threads) of a run that speak to each other.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "accelerate/process.h"

namespace accelerate {

enum class ReduceOp { kSum, kMean, kMax, kMin };

enum class Backend {
  /// NCCL where every local rank has a GPU of its own, else Gloo.
  kAuto,
  /// CPU tensors, and GPU tensors by way of the CPU.
  kGloo,
  /// GPU tensors by NCCL, CPU tensors by Gloo.
  kNccl,
};

struct ACCELERATE_API ProcessGroupOptions {
  Backend backend = Backend::kAuto;
  /// How long one collective may take before it is a `TimeoutError`.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  /// How long to wait for all ranks to arrive at the meeting point.
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(60);
};

/// A handle to a group of ranks; copies share the group. All ranks must call
/// the same operations in the same order. A group belongs to one thread at a
/// time.
///
/// The collectives here are the raw ones: values must have equal shapes and
/// dtypes on all ranks, and nobody checks unless `check_collectives` was
/// called. `collectives.h` has the checked ones on trees. Each throws
/// `TimeoutError` where it takes too long and `CommError` where a peer is gone;
/// the message names the operation.
class ACCELERATE_API ProcessGroup {
 public:
  /// The group of one rank: every collective is the identity.
  ProcessGroup();

  /// Meets the other ranks. Throws `ConfigError` where the meeting point is
  /// unknown, `TimeoutError` naming the ranks that did not arrive. From then on
  /// the process ignores SIGPIPE, unless it has a handler of its own, so that a
  /// peer that is gone is an exception.
  static ProcessGroup connect(
      const ProcessEnvironment& environment,
      const ProcessGroupOptions& options = {});

  int rank() const;
  int world_size() const;
  /// "solo", "gloo", "nccl", or the name of a backend given from outside.
  std::string backend() const;
  /// Whether `run_ranks` made the group.
  bool ranks_are_threads() const;

  void barrier() const;
  /// In place; every rank ends with `root`'s values.
  void broadcast(at::Tensor tensor, int root) const;
  /// In place; every rank ends with the reduction.
  void all_reduce(at::Tensor tensor, ReduceOp op) const;
  /// Everybody's tensors along a new first dimension, in rank order.
  at::Tensor all_gather(const at::Tensor& tensor) const;
  /// As `all_gather`, on `root` alone; an undefined tensor elsewhere.
  at::Tensor gather(const at::Tensor& tensor, int root) const;
  /// Row `rank()` of `root`'s `rows` (dim 0 is `world_size()`), written to
  /// `output`, which gives shape and dtype; `rows` is ignored elsewhere.
  void scatter(at::Tensor output, const at::Tensor& rows, int root) const;

  /// A message between two ranks that is under way. Waits in its destructor
  /// too, where what goes wrong is dropped.
  class ACCELERATE_API Transfer {
   public:
    Transfer();
    ~Transfer();
    Transfer(Transfer&&) noexcept;
    Transfer& operator=(Transfer&&) noexcept;
    /// Until the tensor may be used again; at once when called again.
    void wait();

   private:
    friend class ProcessGroup;
    struct State;
    std::unique_ptr<State> state_;
  };
  /// Sends or receives the contiguous CPU tensor beside what else goes on.
  /// Messages of one channel between two ranks arrive in order.
  Transfer start_send(const at::Tensor& tensor, int to, int channel) const;
  Transfer start_receive(at::Tensor tensor, int from, int channel) const;
  /// A number for the two functions above that no other caller has. All ranks
  /// must ask for their channels in the same order.
  int open_channel() const;

  /// `root`'s bytes on every rank; others' argument is ignored.
  std::string broadcast_bytes(const std::string& bytes, int root) const;
  /// Everybody's bytes, of any lengths, in rank order.
  std::vector<std::string> all_gather_bytes(const std::string& bytes) const;
  /// Part `rank()` of `root`'s `parts`, one for each rank, of any lengths;
  /// others' argument is ignored.
  std::string scatter_bytes(const std::vector<std::string>& parts, int root)
      const;

  /// Runs `work` that speaks to the other ranks by itself, and gives what goes
  /// wrong there the same exceptions, under the name `operation`.
  void guard(const char* operation, const std::function<void()>& work) const;

  /// From now on the raw collectives of this group compare operation, dtype and
  /// shape across ranks first and throw `MismatchError` on every rank where
  /// they differ: one more exchange each, for debugging. All ranks must call it
  /// between the same two collectives. Messages between two ranks stay
  /// unchecked.
  void check_collectives();

  /// Leaves the group; later collectives throw `UsageError`. Waits for nobody.
  void shutdown();

  class Impl;
  explicit ProcessGroup(std::shared_ptr<Impl> impl);
  const std::shared_ptr<Impl>& impl() const { return impl_; }

 private:
  std::shared_ptr<Impl> impl_;
};

/// Runs `function` as `num_ranks` ranks that are threads of this process, each
/// with its own group, and waits for all. Where one throws, its group is shut
/// down, so that the others fail too, and the first exception is thrown again.
/// Thread ranks share torch's default CPU generator; on GPUs each needs a
/// device of its own.
///
///     accelerate::run_ranks(4, [](accelerate::ProcessGroup group) {
///       accelerate::Accelerator accelerator({.process_group = group});
///     });
ACCELERATE_API void run_ranks(
    int num_ranks,
    const std::function<void(ProcessGroup)>& function,
    const ProcessGroupOptions& options = {});

} // namespace accelerate

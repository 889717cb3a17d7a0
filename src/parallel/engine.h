// SPDX-License-Identifier: Apache-2.0
// How the gradients of one model meet those of the other ranks.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "accelerate/ddp.h"
#include "accelerate/process_group.h"
#include "state/parameter_set.h"

namespace accelerate {

class JoinChannel;
struct JoinNews;

/// One engine per prepared model. Every method is one seam of the training
/// step; the base class does what a single device needs: nothing.
class ParallelEngine {
 public:
  virtual ~ParallelEngine() = default;

  /// Whether gradients never meet those of other ranks.
  virtual bool is_local() const { return true; }
  /// Before the user's forward.
  virtual void before_forward() {}
  /// Whether `after_forward` wants to see the output at this step.
  virtual bool wants_outputs() const { return false; }
  /// After the user's forward, with the tensors of its output where
  /// `wants_outputs` said so. May replace them.
  virtual void after_forward(std::span<at::Tensor* const> /*outputs*/) {}
  /// The model's buffers are other tensors from now on.
  virtual void set_buffers(const std::vector<at::Tensor>& /*buffers*/) {}
  /// While false, backward adds up local gradients and sends nothing.
  virtual void set_sync(bool /*sync*/) {}
  virtual bool sync() const { return true; }
  /// Makes the next backward average all gradients, although the forward ran
  /// while `sync` was false.
  virtual void sync_next_backward() {}

  /// From here to `end_join`, forwards and backwards are announced on `channel`
  /// as those of its model number `index`.
  virtual void begin_join(
      std::shared_ptr<JoinChannel> /*channel*/,
      int64_t /*index*/) {}
  virtual void end_join() {}
  /// On a rank that has no batches left: the collectives of what the others do.
  virtual void match(const JoinNews& /*news*/) {}
  /// Gives all ranks the parameters and buffers of `root`.
  virtual void share_all(int /*root*/) {}
};

std::unique_ptr<ParallelEngine> make_single_device_engine();

/// Gives all ranks rank 0's parameters and buffers, then averages gradients.
/// Throws `MismatchError` naming the odd rank where models differ.
std::unique_ptr<ParallelEngine> make_ddp_engine(
    const ProcessGroup& group,
    const ParameterSet& model,
    const DdpOptions& options);

} // namespace accelerate

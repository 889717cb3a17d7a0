// SPDX-License-Identifier: Apache-2.0
// Engines, which train one model together with the other ranks, and their
// callbacks in a step.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerate/detail/step_scalars.h"
#include "accelerate/export.h"
#include "accelerate/mesh.h"
#include "accelerate/process_group.h"
#include "accelerate/stateful.h"
#include "layout/tensor_layout.h"
#include "parallel/memory_layout.h"
#include "state/parameter_set.h"

namespace accelerate {

class Joinable;

/// What happened to a model's gradients in a backward.
enum class GradientArrival {
  /// The engine does not check.
  kUnknown,
  /// There were none.
  kNone,
  /// They were synchronised, or will be at the end of the accumulation.
  kMet,
  /// They stayed local, because no forward that they belong to was announced.
  kStayed,
};

/// How gradients are cleared after use.
enum class Zeroing {
  /// They are dropped: the next backward creates new ones.
  kDrop,
  /// They are filled with zeros in place, for captured steps.
  kFill,
};

/// One engine per prepared model; the base class is for a single device.
/// Callbacks in the order in which a step calls them:
///
///     before_forward ... after_forward, or abandon_forward
///     before_backward ... after_backward, or abandon_backward
///     (gradient, combine, scale_gradients: clipping, unscaling, windows)
///     before_step ... after_step, or abandon_step
///     zero_gradients
///
/// The `abandon_` callbacks are called instead if the code in between has
/// thrown; the next call starts from a clean state. Gradients are kept: those
/// of earlier backwards and, as in torch, those that had arrived before the
/// error.
///
/// `parameter` is always a tensor of the `ParameterSet` that the engine was
/// created for, or the result of `trained` for it. Used by the training thread;
/// autograd's threads call the engine's own hooks.
class ACCELERATE_API ParallelEngine
    : public Stateful,
      public std::enable_shared_from_this<ParallelEngine> {
 public:
  /// The mesh may be left out if every `tensor_layout` is whole.
  explicit ParallelEngine(MemoryLayout layout = {}, Mesh mesh = {});

  /// Whether gradients are never synchronised and every callback does nothing.
  virtual bool is_local() const { return true; }

  /// Whether it cannot train the model in its current state, because all
  /// parameters were frozen when the engine was created and some no longer are:
  /// the next forward that records a graph creates another engine.
  virtual bool is_outdated() const { return false; }

  // --- forward --------------------------------------------------------------
  virtual void before_forward() {}
  /// Whether `after_forward` needs the output of this step.
  virtual bool wants_outputs() const { return false; }
  /// With the tensors of the output if `wants_outputs` requested them. May
  /// replace them.
  virtual void after_forward(std::span<at::Tensor* const> /*outputs*/) {}
  virtual void abandon_forward() {}
  /// The model's buffers have been replaced by other tensors.
  virtual void set_buffers(
      const std::vector<std::string>& /*names*/,
      const std::vector<at::Tensor>& /*buffers*/) {}

  // --- backward -------------------------------------------------------------
  /// Called around every backward of the run, even one that does not reach this
  /// model.
  virtual void before_backward() {}
  virtual void after_backward() {}
  virtual void abandon_backward() {}
  /// The graph of the coming backward is retained for another one.
  virtual void await_another_backward() {}
  /// Of the latest backward.
  virtual GradientArrival arrival() const { return GradientArrival::kUnknown; }
  /// While false, backward accumulates local gradients and sends nothing.
  virtual void set_sync(bool /*sync*/) {}
  virtual bool sync() const { return true; }
  /// Whether this rank trains the model on its own for a while, as in
  /// `LocalSGD`: its steps do not communicate.
  void set_alone(bool alone) { is_alone_ = alone; }
  bool is_alone() const { return is_alone_; }
  /// Makes the next backward average all gradients, even if the forward ran
  /// while `sync` was false.
  virtual void sync_next_backward() {}

  // --- gradients ------------------------------------------------------------
  /// The gradient as this rank currently holds it: during accumulation what was
  /// accumulated so far, at its end the whole or its slice. Undefined if there
  /// is none.
  virtual at::Tensor gradient(const at::Tensor& parameter) const;
  /// Multiplies the gradients of these parameters accumulated so far. `factor`
  /// is an fp64 tensor with one element.
  virtual void scale_gradients(
      const std::vector<at::Tensor>& parameters,
      const at::Tensor& factor);
  /// All gradients of the model, read-only, with any layout and dtype, if they
  /// belong to these parameters and the engine keeps them only for the step;
  /// otherwise empty.
  virtual std::vector<at::Tensor> kept_gradients(
      const std::vector<at::Tensor>& /*parameters*/) {
    return {};
  }
  /// Multiplies what `kept_gradients` has just returned when it is next read;
  /// not at all if the tensor is undefined.
  virtual void scale_kept_gradients(const at::Tensor& /*factor*/) {}
  /// An optimizer has cleared the gradients of what it trains for these
  /// parameters; the engine clears its own.
  virtual void zero_gradients(
      const std::vector<at::Tensor>& /*parameters*/,
      Zeroing /*how*/) {}

  // --- step -----------------------------------------------------------------
  /// The tensor that an optimizer trains instead of `parameter`: itself, a view
  /// of it, or this rank's slice. Always the same one.
  virtual at::Tensor trained(const at::Tensor& parameter) const {
    return parameter;
  }
  /// Which elements of the parameter `trained(parameter)` contains on each rank
  /// of `mesh()`. Its gradient has the same layout at the end of an
  /// accumulation cycle.
  virtual const TensorLayout& tensor_layout(const at::Tensor& parameter) const;
  /// The pieces of this rank; nothing if every rank has the whole. `parameter`
  /// is a tensor of the `ParameterSet`.
  std::optional<TensorPieces> pieces(const at::Tensor& parameter) const;
  /// Called around the step of each optimizer that trains parameters of the
  /// model.
  virtual void before_step() {}
  /// Before an update that is not skipped: the trained tensors, and the
  /// reduced-precision weights that the model computes with. If the optimizer
  /// `takes` them, it writes both, and may find gradients in the weights'
  /// dtype, to be multiplied; otherwise it finds gradients of the trained
  /// tensors. Null if there are none.
  virtual const ReducedCopies* lend_copies(bool /*takes*/) { return nullptr; }
  /// `did_step` is false if the update was skipped because of an overflow.
  virtual void after_step(bool /*did_step*/) {}
  virtual void abandon_step() {}

  // --- capture --------------------------------------------------------------
  /// Why no step of the model can be recorded; empty if some can.
  virtual std::string why_not_to_record() const { return {}; }
  /// From now on, steps may be recorded, on `StreamRole::kRecording`, which is
  /// the current stream. Not a collective, but it may change later ones: all
  /// ranks call it at the same point.
  virtual void prepare_recording() {}
  /// Whether a step may be recorded or replayed now: its tensors have their
  /// final addresses, and nothing waits for a backward.
  virtual bool is_settled() const { return true; }
  /// Changes when tensors of recorded steps no longer exist.
  virtual size_t num_layouts() const { return 0; }
  /// Whether the next forward starts with its own collective, which depends on
  /// earlier forwards. A replay leaves the same value as the recorded step.
  virtual bool shares_buffers_next() const { return false; }
  virtual void set_shares_buffers_next(bool /*shares*/) {}

  // --- state ----------------------------------------------------------------
  /// What this rank saves of a parameter: the whole, or a `TensorSlice`.
  virtual StateValue saved(const at::Tensor& parameter) const;
  /// Loads such a value; the whole tensor if a different number of ranks saved
  /// slices of it. Throws `UsageError` if its shape differs.
  virtual void load(const at::Tensor& parameter, const StateValue& value);
  /// All ranks have loaded what they save of all parameters: from now on the
  /// model uses it, even if this rank received slices of whole weights.
  /// Collective if ranks hold slices.
  virtual void after_load() {}
  /// If `saved` returns slices or tensors other than the model's: passes the
  /// whole value of each parameter, on the host, with its index in the model,
  /// to `take` on ranks that `keep` them, a few at a time. Collective if there
  /// are slices.
  using TakeWhole = std::function<void(size_t place, const at::Tensor& value)>;
  virtual void visit_whole_parameters(
      bool /*keep*/,
      const TakeWhole& /*take*/) {}
  /// All of them in the order of the model; empty if nothing was passed.
  std::vector<at::Tensor> whole_parameters(bool keep);
  /// What this rank saves of an accumulated gradient: the result of `gradient`,
  /// or a `TensorSlice` of what all ranks have received.
  virtual StateValue saved_gradient(const at::Tensor& parameter) const;
  /// Loads such a value; clears the gradient if it is undefined.
  virtual void load_gradient(
      const at::Tensor& parameter,
      const StateValue& value);
  /// State that the engine itself keeps between steps, such as the error
  /// feedback of a compression. Empty by default.
  StateDict state_dict() const override { return {}; }
  void load_state_dict(const StateDict& /*state*/) override {}

  /// Where parameters and gradients are stored, and the units in which they are
  /// sent.
  const MemoryLayout& layout() const { return layout_; }
  const Mesh& mesh() const { return mesh_; }

  /// Null if ranks cannot have different numbers of batches.
  virtual Joinable* joinable() { return nullptr; }

 protected:
  MemoryLayout layout_;

 private:
  Mesh mesh_;
  bool is_alone_ = false;
};

} // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
// How one model trains together with the other ranks: the seams of a step.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerate/detail/step_scalars.h"
#include "accelerate/export.h"
#include "accelerate/process_group.h"
#include "accelerate/stateful.h"
#include "parallel/memory_layout.h"
#include "state/parameter_set.h"

namespace accelerate {

class Joinable;

/// What became of a model's gradients in a backward.
enum class GradientArrival {
  /// The engine does not look.
  kUnknown,
  /// None came.
  kNone,
  /// They met those of the other ranks, or will at the end of the window.
  kMet,
  /// They stayed on this rank, as no forward was announced that they belong to.
  kStayed,
};

/// What becomes of gradients that were used.
enum class Zeroing {
  /// They are forgotten: the next backward makes new ones.
  kDrop,
  /// Their memory stays and is filled with zeros, as a captured step needs it.
  kFill,
};

/// One engine per prepared model; the base class does what a single device
/// needs. In the order in which a step calls them:
///
///     before_forward ... after_forward, or abandon_forward
///     before_backward ... after_backward, or abandon_backward
///     (gradient, combine, scale_gradients: clipping, unscaling, windows)
///     before_step ... after_step, or abandon_step
///     zero_gradients
///
/// A seam is abandoned if the code between its two sides has thrown: the next
/// one starts from nothing. Gradients stay, those of earlier backwards and, as
/// in torch, those that had arrived before the error.
///
/// `parameter` is always a tensor of the `ParameterSet` that the engine was
/// made for, or what `trained` gave for it. Used by the thread that trains;
/// autograd's threads come in through hooks of the engine's own.
class ACCELERATE_API ParallelEngine
    : public Stateful,
      public std::enable_shared_from_this<ParallelEngine> {
 public:
  explicit ParallelEngine(MemoryLayout layout = {});

  /// Whether gradients never meet those of other ranks and every seam is empty.
  virtual bool is_local() const { return true; }

  /// Whether it cannot train the model as it is now, as all parameters were
  /// frozen when the engine was made and some are not any more: another one is
  /// made before the next forward that records.
  virtual bool is_outdated() const { return false; }

  // --- forward --------------------------------------------------------------
  virtual void before_forward() {}
  /// Whether `after_forward` wants to see the output at this step.
  virtual bool wants_outputs() const { return false; }
  /// With the tensors of the output where `wants_outputs` said so. May replace
  /// them.
  virtual void after_forward(std::span<at::Tensor* const> /*outputs*/) {}
  virtual void abandon_forward() {}
  /// The model's buffers are other tensors from now on.
  virtual void set_buffers(
      const std::vector<std::string>& /*names*/,
      const std::vector<at::Tensor>& /*buffers*/) {}

  // --- backward -------------------------------------------------------------
  /// Around every backward of the run, also one that does not reach this model.
  virtual void before_backward() {}
  virtual void after_backward() {}
  virtual void abandon_backward() {}
  /// The graph of the coming backward is kept for another one.
  virtual void await_another_backward() {}
  /// Of the backward that ended last.
  virtual GradientArrival arrival() const { return GradientArrival::kUnknown; }
  /// While false, backward adds up local gradients and sends nothing.
  virtual void set_sync(bool /*sync*/) {}
  virtual bool sync() const { return true; }
  /// Whether this rank trains the model by itself for a while, as `LocalSGD`
  /// does: its steps ask no other rank for anything.
  void set_alone(bool alone) { is_alone_ = alone; }
  bool is_alone() const { return is_alone_; }
  /// Makes the next backward average all gradients, although the forward ran
  /// while `sync` was false.
  virtual void sync_next_backward() {}

  // --- gradients ------------------------------------------------------------
  /// The gradient as this rank holds it now: in the middle of a window what was
  /// added up so far, at its end the whole or that of its slice. Undefined
  /// where there is none.
  virtual at::Tensor gradient(const at::Tensor& parameter) const;
  /// Whether other ranks hold other slices of the gradients.
  virtual bool holds_slices() const { return false; }
  /// Makes a number that every rank has computed from its own gradients that of
  /// all of them. A collective; nothing where gradients are whole.
  virtual void combine(at::Tensor& /*number*/, ReduceOp /*op*/) const {}
  /// Multiplies what was added up for these parameters so far in a window that
  /// goes on. `factor` is an fp64 tensor of one number.
  virtual void scale_gradients(
      const std::vector<at::Tensor>& parameters,
      const at::Tensor& factor);
  /// All gradients that the model has, as they lie and of whatever type, where
  /// they are those of these parameters and the engine keeps them for the step
  /// alone; to be read only. Empty where not.
  virtual std::vector<at::Tensor> kept_gradients(
      const std::vector<at::Tensor>& /*parameters*/) {
    return {};
  }
  /// Multiplies what `kept_gradients` has just given, when it is read next;
  /// by nothing where the tensor is undefined.
  virtual void scale_kept_gradients(const at::Tensor& /*factor*/) {}
  /// An optimizer has forgotten the gradients of what it trains for these
  /// parameters; the engine forgets what it keeps beside them.
  virtual void zero_gradients(
      const std::vector<at::Tensor>& /*parameters*/,
      Zeroing /*how*/) {}

  // --- step -----------------------------------------------------------------
  /// The tensor that an optimizer trains in the place of `parameter`: itself, a
  /// view of it, or this rank's slice. Always the same one.
  virtual at::Tensor trained(const at::Tensor& parameter) const {
    return parameter;
  }
  /// Which elements of the parameter `trained(parameter)` has; nothing if it is
  /// the whole.
  virtual std::optional<TensorPieces> pieces(
      const at::Tensor& /*parameter*/) const {
    return std::nullopt;
  }
  /// Around the step of each optimizer that trains parameters of the model.
  virtual void before_step() {}
  /// Before an update that is not left out: what `trained` gives, and the
  /// weights of a reduced type that the model computes with in its place. Where
  /// the optimizer `takes` them it writes both, and may find gradients of the
  /// weights' type which it is to multiply; else it finds those of what it
  /// trains. Null where there are none.
  virtual const ReducedCopies* lend_copies(bool /*takes*/) { return nullptr; }
  /// `did_step` is false where the update was left out because of an overflow.
  virtual void after_step(bool /*did_step*/) {}
  virtual void abandon_step() {}

  // --- capture --------------------------------------------------------------
  /// Why no step of the model can be recorded; empty where some can.
  virtual std::string why_not_to_record() const { return {}; }
  /// Steps may be recorded from now on, on `StreamRole::kRecording`, which is
  /// the current stream. No collective, but later ones may be others: called by
  /// all ranks at the same place.
  virtual void prepare_recording() {}
  /// Whether a step may be recorded or replayed now: what it reads and writes
  /// lies where it will stay, and nothing waits for a backward.
  virtual bool is_settled() const { return true; }
  /// Another number when tensors of recorded steps are gone.
  virtual size_t num_layouts() const { return 0; }
  /// Whether the next forward begins with a collective of its own, which
  /// forwards before it decide. A replay leaves what the recorded step left.
  virtual bool shares_buffers_next() const { return false; }
  virtual void set_shares_buffers_next(bool /*shares*/) {}

  // --- state ----------------------------------------------------------------
  /// What this rank saves of a parameter: the whole, or a `TensorSlice`.
  virtual StateValue saved(const at::Tensor& parameter) const;
  /// Puts such a value back; the whole tensor where another number of ranks had
  /// slices of it. Throws `UsageError` where its shape is another.
  virtual void load(const at::Tensor& parameter, const StateValue& value);
  /// All ranks have loaded what they save of all parameters: the model reads it
  /// from now on, also where this rank was given slices of whole weights. A
  /// collective where ranks hold slices.
  virtual void after_load() {}
  /// Where `saved` gives slices or other tensors than the model's: hands the
  /// whole value of each parameter, on the host, with its place in the model,
  /// to `take` on ranks that `keep` them, some at a time. A collective where
  /// there are slices.
  using TakeWhole = std::function<void(size_t place, const at::Tensor& value)>;
  virtual void visit_whole_parameters(
      bool /*keep*/,
      const TakeWhole& /*take*/) {}
  /// All of them in the order of the model; empty where nothing is handed out.
  std::vector<at::Tensor> whole_parameters(bool keep);
  /// What this rank saves of a gradient in the middle of a window: what
  /// `gradient` gives, or a `TensorSlice` of what all ranks have seen.
  virtual StateValue saved_gradient(const at::Tensor& parameter) const;
  /// Puts back such a value; forgets the gradient where it is undefined.
  virtual void load_gradient(
      const at::Tensor& parameter,
      const StateValue& value);
  /// What the engine itself keeps between steps, such as the error feedback of
  /// a compression. Nothing by default.
  StateDict state_dict() const override { return {}; }
  void load_state_dict(const StateDict& /*state*/) override {}

  /// Where parameters and gradients lie, and in which units they travel.
  const MemoryLayout& layout() const { return layout_; }

  /// Null where ranks cannot have different numbers of batches.
  virtual Joinable* joinable() { return nullptr; }

 protected:
  MemoryLayout layout_;

 private:
  bool is_alone_ = false;
};

} // namespace accelerate

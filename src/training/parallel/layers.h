// SPDX-License-Identifier: Apache-2.0
// The interfaces of layers, of which the engine of a model is made.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "accelerate/detail/step_scalars.h"
#include "accelerate/distributed/memory_options.h"
#include "accelerate/distributed/mesh.h"
#include "accelerate/distributed/process_group.h"
#include "accelerate/state/state_dict.h"
#include "core/base/internal.h"
#include "core/layout/tensor_layout.h"
#include "training/state/parameter_set.h"

namespace accelerate {

class Joinable;
class ParallelEngine;

/// What happened to a model's gradients in a backward.
enum class GradientArrival {
  /// No layer checks.
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

/// What a layer is created from.
struct EngineArguments {
  /// The ranks that average gradients: those that see different data.
  ProcessGroup group;
  ParameterSet model;
  MemoryOptions memory = {};
  /// If set, parameters are converted to this dtype and optimizers train fp32
  /// master weights.
  std::optional<at::ScalarType> weights = {};
  /// The arrangement of all ranks.
  Mesh mesh = {};
  /// The device of tensors that have no memory yet
  /// (`state/deferred_tensors.h`), and of gathered parameters' shards.
  c10::Device device = c10::kCPU;
  /// The engine that the layer becomes a part of, and which owns it.
  ParallelEngine* engine = nullptr;
};

/// One concern of training a model together with other ranks. A layer derives
/// from the interfaces below that it needs; `ParallelEngine` calls it only
/// through these. Callbacks in the order in which a step calls them:
///
///     before_forward ... after_forward, or abandon_forward
///     before_backward ... after_backward, or abandon_backward
///     (gradient: clipping, unscaling, accumulation)
///     before_step ... after_step, or abandon_step
///     zero_gradients
///
/// Layers are in the order of their table: `before_` callbacks run from the
/// first to the last layer, `after_` and `abandon_` callbacks from the last to
/// the first. The `abandon_` callbacks are called instead if the code in
/// between has thrown; the next call starts from a clean state. Gradients are
/// kept: those of earlier backwards and, as in torch, those that had arrived
/// before the error.
///
/// `parameter` is a tensor of the `ParameterSet` that the layer was created
/// for, or what is trained instead. Used by the training thread; autograd's
/// threads call the layer's own hooks.
class ACCELERATE_INTERNAL Layer {
 public:
  Layer() = default;
  virtual ~Layer() = default;
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;
};

class ACCELERATE_INTERNAL ForwardLayer : public virtual Layer {
 public:
  /// Whether the engine cannot train the model in its current state, because
  /// all parameters were frozen when it was created and some no longer are: the
  /// next forward that records a graph creates another engine.
  virtual bool is_outdated() const { return false; }
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
};

/// Called around every backward of the run, even one that does not reach this
/// model.
class ACCELERATE_INTERNAL BackwardLayer : public virtual Layer {
 public:
  virtual void before_backward() {}
  virtual void after_backward() {}
  virtual void abandon_backward() {}
};

/// Synchronises gradients. An engine has at most one.
class ACCELERATE_INTERNAL ExchangeLayer : public BackwardLayer {
 public:
  /// While false, backward accumulates local gradients and sends nothing.
  virtual void set_sync(bool sync) = 0;
  virtual bool sync() const = 0;
  /// Makes the next backward average all gradients, even if the forward ran
  /// while `sync` was false.
  virtual void sync_next_backward() = 0;
  /// The graph of the coming backward is retained for another one.
  virtual void await_another_backward() {}
  /// Of the latest backward.
  virtual GradientArrival arrival() const { return GradientArrival::kUnknown; }
  /// A state was loaded: `parameter.grad()` is this rank's part of an
  /// accumulation, or undefined.
  virtual void note_loaded_gradient(const at::Tensor& /*parameter*/) {}
  /// Null if ranks cannot have different numbers of batches.
  virtual Joinable* joinable() { return nullptr; }
};

/// Keeps gradients elsewhere than in `parameter.grad()`.
class ACCELERATE_INTERNAL GradientLayer : public virtual Layer {
 public:
  /// The gradient as this rank currently holds it: during accumulation what was
  /// accumulated so far, at its end the whole or its slice; undefined if there
  /// is none. Nothing if the parameter has its own, which the caller reads.
  virtual std::optional<at::Tensor> gradient(
      const at::Tensor& parameter) const = 0;
  /// An optimizer has cleared the gradients of what it trains for these
  /// parameters; the layer clears its own.
  virtual void zero_gradients(
      const std::vector<at::Tensor>& parameters,
      Zeroing how) = 0;
  /// What this rank saves: `gradient`, or a `TensorSlice` of what all ranks
  /// have received, with pieces of any value.
  virtual std::optional<StateValue> saved_gradient(
      const at::Tensor& parameter) const {
    return gradient(parameter);
  }
  /// Loads such a value; clears the gradient if it is undefined. False if the
  /// caller stores it in `parameter.grad()`.
  virtual bool load_gradient(
      const at::Tensor& /*parameter*/,
      const StateValue& /*value*/) {
    return false;
  }
  /// All gradients of the model, read-only, with any layout and dtype, if they
  /// belong to these parameters and the layer keeps them only for the step;
  /// otherwise empty.
  virtual std::vector<at::Tensor> kept_gradients(
      const std::vector<at::Tensor>& /*parameters*/) {
    return {};
  }
  /// Multiplies what `kept_gradients` has just returned when it is next read;
  /// not at all if the tensor is undefined.
  virtual void scale_kept_gradients(const at::Tensor& /*factor*/) {}
};

/// Called around the step of each optimizer that trains parameters of the
/// model.
class ACCELERATE_INTERNAL UpdateLayer : public virtual Layer {
 public:
  virtual void before_step() {}
  /// Before an update that is not skipped: the trained tensors, and the
  /// reduced-precision weights that the model computes with. If the optimizer
  /// `takes` them, it writes both, and may find gradients in the weights'
  /// dtype, to be multiplied; otherwise it finds gradients of the trained
  /// tensors. Null if there are none.
  virtual const ReducedCopies* reduced_copies(bool /*takes*/) {
    return nullptr;
  }
  /// `did_step` is false if the update was skipped because of an overflow.
  virtual void after_step(bool /*did_step*/) {}
  virtual void abandon_step() {}
};

/// Where a layer puts a tensor that it was given by the layers before it.
struct LayerPlacement {
  /// What an optimizer trains in its place: the tensor itself, a view of it, or
  /// this rank's slice.
  at::Tensor trained;
  /// How ranks divide the elements of the tensor that the layer was given.
  std::vector<TensorPlacement> placements = {};
  TensorMemory memory = TensorMemory::kDevice;
  /// If the model itself has only this rank's part of a larger tensor: the
  /// shape of that one, which `placements` divide. Such layers come first.
  std::vector<int64_t> whole = {};
};

/// Decides what optimizers train, and describes where its elements are.
/// Checkpoints, clipping and `check_ranks_equal` follow from the description.
class ACCELERATE_INTERNAL PlacementLayer : public virtual Layer {
 public:
  /// Called once per parameter, when the engine has all its layers. `tensor` is
  /// the parameter, or what the layers before this one train in its place.
  virtual LayerPlacement place(const at::Tensor& tensor) const = 0;
};

/// An engine without such a layer can be recorded at any time.
class ACCELERATE_INTERNAL CaptureLayer : public virtual Layer {
 public:
  /// Why no step of the model can be recorded; empty if some can.
  virtual std::string why_not_to_record() const { return {}; }
  /// From now on, steps may be recorded, on `StreamRole::kRecording`, which is
  /// the current stream. Not a collective, but it may change later ones: all
  /// ranks call it at the same point.
  virtual void prepare_recording() {}
  /// Whether a step may be recorded or replayed now: its tensors have their
  /// final addresses, and nothing waits for a backward.
  virtual bool is_recordable() const { return true; }
  /// Changes when tensors of recorded steps no longer exist.
  virtual size_t num_layouts() const { return 0; }
  /// Whether the next forward starts with its own collective, which depends on
  /// earlier forwards. A replay leaves the same value as the recorded step.
  virtual bool shares_buffers_next() const { return false; }
  virtual void set_shares_buffers_next(bool /*shares*/) {}
};

/// Has values of parameters besides the trained ones, or state between steps.
class ACCELERATE_INTERNAL StateLayer : public virtual Layer {
 public:
  /// Called with each parameter's value, on the host, and its index in the
  /// model.
  using TakeWhole = std::function<void(size_t index, const at::Tensor& value)>;

  /// The current value of a parameter of which ranks train slices, if this rank
  /// has all of it; otherwise undefined.
  virtual at::Tensor whole_value(const at::Tensor& /*parameter*/) const {
    return {};
  }
  /// Values of parameters are about to be loaded: nothing may still be reading
  /// the current ones.
  virtual void before_load() {}
  /// What is trained for the parameter has a loaded value: updates what the
  /// model computes with. `whole` is the value of the parameter; undefined if
  /// this rank received only its slice.
  virtual void take_loaded(
      const at::Tensor& /*parameter*/,
      const at::Tensor& /*whole*/) {}
  /// All ranks have loaded what they save of all parameters: from now on the
  /// model uses it, even if this rank received slices of whole weights.
  /// Collective if ranks hold slices.
  virtual void after_load() {}
  /// If ranks train slices: passes the value of each parameter to `take` on
  /// ranks that `keep` them, a few at a time. Collective. False if they do not.
  virtual bool visit_parameters(bool /*keep*/, const TakeWhole& /*take*/) {
    return false;
  }
  /// State that the layer itself keeps between steps, such as the error
  /// feedback of a compression. The layers of an engine use different keys; a
  /// loaded state also contains those of the others.
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict& /*state*/) {}
};

} // namespace accelerate

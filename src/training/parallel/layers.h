// SPDX-License-Identifier: Apache-2.0
// The interfaces of layers. The engine of a model consists of layers.
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

/// What happened to a model's gradients in a backward pass.
enum class GradientArrival {
  /// Unknown, because no layer checks.
  kUnknown,
  /// The backward pass computed no gradients.
  kNone,
  /// The gradients were synchronised, or will be at the end of the
  /// accumulation.
  kSynchronised,
  /// The gradients stayed local, because no forward that they belong to was
  /// announced.
  kLocal,
};

/// How gradients are cleared after use.
enum class Zeroing {
  /// Drop the gradients. The next backward pass creates new ones.
  kDrop,
  /// Fill the gradients with zeros in place, for captured steps.
  kFill,
};

/// The arguments from which a layer is created.
struct EngineArguments {
  /// The ranks that see different data, and so average gradients.
  ProcessGroup group;
  ParameterSet model;
  MemoryOptions memory = {};
  /// If set, parameters are converted to this dtype and optimizers train fp32
  /// master weights.
  std::optional<at::ScalarType> weights = {};
  /// The arrangement of all ranks.
  Mesh mesh = {};
  /// The device of tensors that have no memory yet (see
  /// `state/deferred_tensors.h`), and of the shards of gathered parameters.
  c10::Device device = c10::kCPU;
  /// The engine that owns the layer.
  ParallelEngine* engine = nullptr;
};

/// One aspect of training a model with several ranks. A layer implements the
/// interfaces below that it needs. `ParallelEngine` is the only caller. A step
/// calls the callbacks in this order:
///
///     before_forward ... after_forward, or abandon_forward
///     before_backward ... after_backward, or abandon_backward
///     (gradient: clipping, unscaling, accumulation)
///     before_step ... after_step, or abandon_step
///     zero_gradients
///
/// Layers have the order of their table. `before_` callbacks run from the first
/// to the last layer, `after_` and `abandon_` callbacks from the last to the
/// first. If the code between the two callbacks throws, `abandon_` is called
/// instead of `after_`, and the next call starts from a clean state. Gradients
/// are kept: those of earlier backward passes and, as in torch, those that had
/// arrived before the error.
///
/// `parameter` is a tensor of the `ParameterSet` that the layer was created
/// for, or the tensor that is trained in its place. The training thread calls
/// layers. Autograd's threads call the layer's own hooks.
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
  /// all parameters were frozen when it was created and some are trainable
  /// again. The next forward pass that records a graph then creates another
  /// engine.
  virtual bool is_outdated() const { return false; }
  virtual void before_forward() {}
  /// Whether `after_forward` needs the output of this step.
  virtual bool wants_outputs() const { return false; }
  /// `outputs` contains the tensors of the output if `wants_outputs` requested
  /// them. The layer may replace them.
  virtual void after_forward(std::span<at::Tensor* const> /*outputs*/) {}
  virtual void abandon_forward() {}
  /// Called when the model's buffers were replaced with other tensors.
  virtual void set_buffers(
      const std::vector<std::string>& /*names*/,
      const std::vector<at::Tensor>& /*buffers*/) {}
};

/// A layer that is called around every backward pass of the run, even one that
/// does not reach this model.
class ACCELERATE_INTERNAL BackwardLayer : public virtual Layer {
 public:
  virtual void before_backward() {}
  virtual void after_backward() {}
  virtual void abandon_backward() {}
};

/// A layer that synchronises gradients. An engine has at most one such layer.
class ACCELERATE_INTERNAL ExchangeLayer : public BackwardLayer {
 public:
  /// While false, backward accumulates gradients locally and sends nothing.
  virtual void set_sync(bool sync) = 0;
  virtual bool sync() const = 0;
  /// Makes the next backward pass average all gradients, even if the forward
  /// pass ran while `sync` was false.
  virtual void sync_next_backward() = 0;
  /// Called if the graph of the next backward pass is retained for another one.
  virtual void await_another_backward() {}
  /// The arrival of gradients in the latest backward pass.
  virtual GradientArrival arrival() const { return GradientArrival::kUnknown; }
  /// Called after state was loaded: `parameter.grad()` is this rank's share of
  /// an accumulation, or undefined.
  virtual void note_loaded_gradient(const at::Tensor& /*parameter*/) {}
  /// Null if ranks cannot have different numbers of batches.
  virtual Joinable* joinable() { return nullptr; }
};

/// A layer that keeps gradients outside of `parameter.grad()`.
class ACCELERATE_INTERNAL GradientLayer : public virtual Layer {
 public:
  /// The gradient as this rank currently has it: the accumulated gradient
  /// during accumulation, and the whole gradient or this rank's slice at its
  /// end. Undefined if there is no gradient. Returns nullopt if the caller must
  /// read `parameter.grad()`.
  virtual std::optional<at::Tensor> gradient(
      const at::Tensor& parameter) const = 0;
  /// Called when an optimizer has cleared the gradients of the tensors that it
  /// trains for these parameters. The layer clears its own.
  virtual void zero_gradients(
      const std::vector<at::Tensor>& parameters,
      Zeroing how) = 0;
  /// The gradient that this rank saves: `gradient`, or a `TensorSlice` of the
  /// gradient that all ranks have received. Its pieces may have any value.
  virtual std::optional<StateValue> saved_gradient(
      const at::Tensor& parameter) const {
    return gradient(parameter);
  }
  /// Loads such a value, or clears the gradient if the value is undefined.
  /// Returns false if the caller must store the value in `parameter.grad()`.
  virtual bool load_gradient(
      const at::Tensor& /*parameter*/,
      const StateValue& /*value*/) {
    return false;
  }
  /// All gradients of the model, read-only, with any layout and dtype. Empty
  /// unless they belong to these parameters and the layer keeps them only for
  /// the step.
  virtual std::vector<at::Tensor> kept_gradients(
      const std::vector<at::Tensor>& /*parameters*/) {
    return {};
  }
  /// Multiplies the gradients that `kept_gradients` has just returned when they
  /// are next read. An undefined tensor cancels this.
  virtual void scale_kept_gradients(const at::Tensor& /*factor*/) {}
};

/// A layer that is called around the step of each optimizer that trains
/// parameters of the model.
class ACCELERATE_INTERNAL UpdateLayer : public virtual Layer {
 public:
  virtual void before_step() {}
  /// Called before an update that is not skipped. Returns the trained tensors
  /// and the reduced-precision weights that the model computes with. Null if
  /// there are none. If the optimizer `takes` them, it writes both, and its
  /// gradients may have the weights' dtype and a factor that it must apply.
  /// Otherwise its gradients belong to the trained tensors.
  virtual const ReducedCopies* reduced_copies(bool /*takes*/) {
    return nullptr;
  }
  /// `did_step` is false if the update was skipped because of an overflow.
  virtual void after_step(bool /*did_step*/) {}
  virtual void abandon_step() {}
};

/// Where a layer puts a tensor that it received from the layers before it.
struct LayerPlacement {
  /// The tensor that an optimizer trains in its place: the same tensor, a view
  /// of it, or this rank's slice.
  at::Tensor trained;
  /// How ranks divide the elements of the received tensor.
  std::vector<TensorPlacement> placements = {};
  TensorMemory memory = TensorMemory::kDevice;
  /// If the model itself has only this rank's shard of a larger tensor: the
  /// shape of the larger tensor, which `placements` divide. Layers that set
  /// this are first in the table.
  std::vector<int64_t> whole = {};
};

/// A layer that decides which tensors optimizers train. It also describes where
/// their elements are, for checkpoints, clipping and `check_ranks_equal`.
class ACCELERATE_INTERNAL PlacementLayer : public virtual Layer {
 public:
  /// Called once per parameter, after all layers were added. `tensor` is the
  /// parameter, or the tensor that earlier layers train in its place.
  virtual LayerPlacement place(const at::Tensor& tensor) const = 0;
};

/// A layer that restricts recording. An engine without such a layer can be
/// recorded at any time.
class ACCELERATE_INTERNAL CaptureLayer : public virtual Layer {
 public:
  /// Why no step of the model can be recorded. Empty if some steps can.
  virtual std::string why_not_to_record() const { return {}; }
  /// Prepares for recording steps on `StreamRole::kRecording`, which is the
  /// current stream. Not a collective, but it may change later ones, so all
  /// ranks call it at the same point.
  virtual void prepare_recording() {}
  /// Whether a step may be recorded or replayed now. The layer's tensors must
  /// have their final addresses, and no work may wait for a backward pass.
  virtual bool is_recordable() const { return true; }
  /// A number that changes when tensors of recorded steps become invalid.
  virtual size_t num_layouts() const { return 0; }
  /// Whether the next forward pass starts with a collective of this layer. This
  /// depends on earlier forward passes. A replay leaves the same value as the
  /// recorded step.
  virtual bool shares_buffers_next() const { return false; }
  virtual void set_shares_buffers_next(bool /*shares*/) {}
};

/// A layer that has values of parameters besides the trained ones, or state
/// between steps.
class ACCELERATE_INTERNAL StateLayer : public virtual Layer {
 public:
  /// Called with the value of each parameter in host memory, and its index in
  /// the model.
  using TakeWhole = std::function<void(size_t index, const at::Tensor& value)>;

  /// The current value of a parameter whose slices ranks train, if this rank
  /// has all of it. Otherwise, undefined.
  virtual at::Tensor whole_value(const at::Tensor& /*parameter*/) const {
    return {};
  }
  /// Called before values of parameters are loaded. The layer must not read the
  /// old values afterwards.
  virtual void before_load() {}
  /// Called when the tensor trained for the parameter has a loaded value:
  /// updates the weights that the model computes with. `whole` is the value of
  /// the parameter, or undefined if this rank received only its slice.
  virtual void take_loaded(
      const at::Tensor& /*parameter*/,
      const at::Tensor& /*whole*/) {}
  /// Called when all ranks have loaded their parts of all parameters. The model
  /// then uses the loaded values, even if this rank received slices of whole
  /// weights. Collective if ranks hold slices.
  virtual void after_load() {}
  /// If ranks train slices: passes the value of each parameter to `take` on
  /// ranks with `keep`, a few at a time, and returns true. Otherwise returns
  /// false. Collective.
  virtual bool visit_parameters(bool /*keep*/, const TakeWhole& /*take*/) {
    return false;
  }
  /// State that the layer keeps between steps, such as the error feedback of a
  /// compression. The layers of an engine use different keys. A loaded state
  /// also contains the keys of the other layers.
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict& /*state*/) {}
};

} // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
// The engine of a model: its layers in order, and how their results combine.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "accelerate/state/stateful.h"
#include "core/base/internal.h"
#include "training/parallel/layers.h"
#include "training/parallel/memory_layout.h"

namespace accelerate {

/// The engine of one prepared model. Other code uses layers only through the
/// engine. `layers.h` documents the callbacks. Without layers, it trains on a
/// single device. A callback costs nothing if no layer has it.
class ACCELERATE_INTERNAL ParallelEngine final
    : public Stateful,
      public std::enable_shared_from_this<ParallelEngine> {
 public:
  ParallelEngine() = default;
  explicit ParallelEngine(const EngineArguments& arguments);

  /// Adds a layer. Add all layers in their order, before the first use.
  void add(std::unique_ptr<Layer> layer);
  /// Call this after the last `add`.
  void place_parameters();

  /// Whether gradients are never synchronised and no layer needs callbacks
  /// around backward passes and steps.
  bool is_local() const { return backward_.empty() && update_.empty(); }
  /// Whether a layer synchronises gradients.
  bool exchanges() const { return exchange_ != nullptr; }

  // --- forward --------------------------------------------------------------
  bool is_outdated() const;
  void before_forward() {
    first_to_last<&ForwardLayer::before_forward>(forward_);
  }
  bool wants_outputs() const;
  void after_forward(std::span<at::Tensor* const> outputs) {
    last_to_first<&ForwardLayer::after_forward>(forward_, outputs);
  }
  void abandon_forward() {
    last_to_first<&ForwardLayer::abandon_forward>(forward_);
  }
  void set_buffers(
      const std::vector<std::string>& names,
      const std::vector<at::Tensor>& buffers) {
    first_to_last<&ForwardLayer::set_buffers>(forward_, names, buffers);
  }

  // --- backward -------------------------------------------------------------
  void before_backward() {
    first_to_last<&BackwardLayer::before_backward>(backward_);
  }
  void after_backward() {
    last_to_first<&BackwardLayer::after_backward>(backward_);
    has_unsynchronised_ = has_unsynchronised_ && !sync();
  }
  void abandon_backward() {
    has_unsynchronised_ = has_unsynchronised_ || (exchanges() && sync());
    last_to_first<&BackwardLayer::abandon_backward>(backward_);
  }
  /// Whether the backward pass that should have synchronised the gradients
  /// failed, and the gradients were neither cleared nor synchronised since
  /// then.
  bool has_unsynchronised() const { return has_unsynchronised_; }
  void await_another_backward();
  GradientArrival arrival() const;
  void set_sync(bool sync);
  /// True if no layer synchronises gradients.
  bool sync() const { return exchange_ == nullptr || exchange_->sync(); }
  /// Whether the last `set_sync` started an accumulation.
  bool is_accumulating() const { return is_accumulating_; }
  void sync_next_backward();
  Joinable* joinable() const;
  /// Whether this rank trains the model on its own for a while, as in
  /// `LocalSGD`. Its steps then do not communicate.
  void set_alone(bool alone) { is_alone_ = alone; }
  bool is_alone() const { return is_alone_; }

  // --- gradients ------------------------------------------------------------
  at::Tensor gradient(const at::Tensor& parameter) const;
  /// Multiplies the gradients that these parameters have accumulated so far.
  /// `factor` is an fp64 tensor with one element.
  void scale_gradients(
      const std::vector<at::Tensor>& parameters,
      const at::Tensor& factor);
  std::vector<at::Tensor> kept_gradients(
      const std::vector<at::Tensor>& parameters);
  void scale_kept_gradients(const at::Tensor& factor) {
    first_to_last<&GradientLayer::scale_kept_gradients>(gradient_, factor);
  }
  void zero_gradients(const std::vector<at::Tensor>& parameters, Zeroing how) {
    has_unsynchronised_ = false;
    first_to_last<&GradientLayer::zero_gradients>(gradient_, parameters, how);
  }
  StateValue saved_gradient(const at::Tensor& parameter) const;
  void load_gradient(const at::Tensor& parameter, const StateValue& value);

  // --- step -----------------------------------------------------------------
  void before_step() { first_to_last<&UpdateLayer::before_step>(update_); }
  const ReducedCopies* reduced_copies(bool takes);
  void after_step(bool did_step) {
    last_to_first<&UpdateLayer::after_step>(update_, did_step);
  }
  void abandon_step() { last_to_first<&UpdateLayer::abandon_step>(update_); }

  // --- capture --------------------------------------------------------------
  std::string why_not_to_record() const;
  void prepare_recording() {
    first_to_last<&CaptureLayer::prepare_recording>(capture_);
  }
  bool is_recordable() const;
  size_t num_layouts() const;
  bool shares_buffers_next() const;
  void set_shares_buffers_next(bool shares) {
    first_to_last<&CaptureLayer::set_shares_buffers_next>(capture_, shares);
  }

  // --- where parameters are -------------------------------------------------
  /// The tensor that an optimizer trains in place of `parameter`: the parameter
  /// itself, or another one. Always the same tensor.
  const at::Tensor& trained(const at::Tensor& parameter) const;
  /// Which elements of the whole tensor `trained(parameter)` contains on each
  /// rank of `mesh()`. Its gradient has the same layout at the end of an
  /// accumulation cycle.
  const TensorLayout& tensor_layout(const at::Tensor& parameter) const;
  /// The pieces of this rank. Empty if every rank has the whole tensor.
  const std::optional<TensorPieces>& pieces(const at::Tensor& parameter) const;
  /// The same for `parameter` itself, which some layers divide in place.
  const TensorLayout& held_layout(const at::Tensor& parameter) const;
  const std::optional<TensorPieces>& held_pieces(
      const at::Tensor& parameter) const;
  /// Whether ranks train different elements of any parameter.
  bool is_divided() const;
  /// The shape of the whole tensor, over all ranks.
  std::vector<int64_t> whole_sizes(const at::Tensor& parameter) const;
  const Mesh& mesh() const { return mesh_; }
  /// Where parameters and gradients are stored, and which are sent together.
  const MemoryLayout& layout() const { return layout_; }
  MemoryLayout& layout() { return layout_; }

  // --- state ----------------------------------------------------------------
  /// What this rank saves of a parameter: the whole, or a `TensorSlice`.
  StateValue saved(const at::Tensor& parameter) const;
  /// Loads such a value, or the whole tensor if a different number of ranks
  /// saved slices of it. Throws `UsageError` if it does not fit.
  void load(const at::Tensor& parameter, const StateValue& value);
  void after_load() {
    has_unsynchronised_ = false;
    first_to_last<&StateLayer::after_load>(state_);
  }
  /// If `saved` returns slices, or tensors other than the model's: passes the
  /// whole value of each parameter to `take` on ranks with `keep`, a few at a
  /// time. Collective if there are slices.
  using TakeWhole = StateLayer::TakeWhole;
  void visit_whole_parameters(bool keep, const TakeWhole& take);
  /// All whole parameters in the order of the model. Empty if
  /// `visit_parameters` passed none.
  std::vector<at::Tensor> whole_parameters(bool keep);
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override {
    first_to_last<&StateLayer::load_state_dict>(state_, state);
  }

 private:
  template <auto callback, class Interface, class... Arguments>
  static void first_to_last(
      const std::vector<Interface*>& layers,
      const Arguments&... arguments) {
    for (auto* layer : layers) {
      (layer->*callback)(arguments...);
    }
  }
  template <auto callback, class Interface, class... Arguments>
  static void last_to_first(
      const std::vector<Interface*>& layers,
      const Arguments&... arguments) {
    for (auto layer = layers.rbegin(); layer != layers.rend(); ++layer) {
      ((*layer)->*callback)(arguments...);
    }
  }

  /// A parameter that is not trained as a whole, or not by itself.
  struct ParameterEntry {
    at::Tensor parameter;
    at::Tensor trained;
    std::vector<int64_t> whole;
    TensorLayout layout = {};
    std::optional<TensorPieces> pieces = {};
    /// The layout of the tensor that the model has, if that is only a part of
    /// the whole.
    TensorLayout held_layout = {};
    std::optional<TensorPieces> held = {};
  };
  const ParameterEntry* find(const at::Tensor& parameter) const;
  /// An entry of a whole tensor if there is none.
  const ParameterEntry& entry_of(const at::Tensor& parameter) const;
  /// A slice of the model's tensor, or of the one that is trained.
  static StateValue slice_of(
      const ParameterEntry& entry,
      const std::optional<TensorPieces>& pieces,
      const at::Tensor& values);
  at::Tensor gather_held(const ParameterEntry& entry, const at::Tensor& value)
      const;
  void load_slice(const ParameterEntry& entry, const TensorSlice& slice) const;
  [[noreturn]] static void refuse_load(
      const ParameterEntry& entry,
      const std::string& got);

  ParameterSet model_;
  MemoryLayout layout_;
  Mesh mesh_;
  std::vector<std::unique_ptr<Layer>> layers_;
  /// The layers that implement each interface, in order.
  std::vector<ForwardLayer*> forward_;
  std::vector<BackwardLayer*> backward_;
  ExchangeLayer* exchange_ = nullptr;
  std::vector<GradientLayer*> gradient_;
  std::vector<UpdateLayer*> update_;
  std::vector<PlacementLayer*> placement_;
  std::vector<CaptureLayer*> capture_;
  std::vector<StateLayer*> state_;
  std::vector<ParameterEntry> entries_;
  /// The index of each parameter, and of each tensor that is trained in its
  /// place.
  std::unordered_map<const c10::TensorImpl*, size_t> index_of_;
  bool is_accumulating_ = false;
  bool is_alone_ = false;
  bool has_unsynchronised_ = false;
};

} // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
// Tensor parallelism: ranks divide the parameters of layers, and compute each
// layer together.
#include <ATen/ATen.h>

#include <functional>
#include <optional>
#include <string_view>
#include <unordered_set>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/comm/agreement.h"
#include "training/parallel/layer_table.h"
#include "training/parallel/shared_tensors.h"
#include "training/parallel/tensor_ranks.h"
#include "training/random/generators.h"
#include "training/state/deferred_tensors.h"

namespace accelerate {
namespace {

constexpr int kCheckedForwards = 3;

class TensorLayer final : public ForwardLayer, public PlacementLayer {
 public:
  TensorLayer(const EngineArguments& arguments, const TensorPlan& plan)
      : device_(arguments.device),
        ranks_(std::make_shared<TensorRanks>(
            arguments.mesh.group(MeshDimension::kTensor))) {
    const auto& model = arguments.model;
    std::vector<NamedShape> shapes;
    for (size_t i = 0; i < model.names.size(); ++i) {
      shapes.push_back(
          {.name = model.names[i],
           .shape = model.parameters[i].sizes().vec(),
           .is_linear = model.in_linear.contains(model.names[i]),
           .is_embedding = model.in_embedding.contains(model.names[i])});
    }
    const auto splits = tensor_splits(
        plan.empty() ? model.tensor_plan : plan,
        shapes,
        ranks_->group().world_size());
    for (size_t i = 0; i < splits.size(); ++i) {
      check(model, i, splits[i].has_value());
    }
    agree_on_text(
        ranks_->group(), "prepare() of a model", describe_model(model));
    fill_deferred(model.parameters, device_);
    divide_torch_modules();
    const at::NoGradGuard no_grad;
    auto everything = model.buffers;
    everything.insert(
        everything.end(), model.parameters.begin(), model.parameters.end());
    std::erase_if(everything, [](const auto& each) { return !each.defined(); });
    for (auto& tensor : everything) {
      tensor = tensor.detach();
    }
    broadcast_tensors(
        ranks_->group(),
        "broadcast of weights to tensor-parallel ranks",
        everything,
        0);
    for (size_t i = 0; i < splits.size(); ++i) {
      if (splits[i]) {
        divide(model.names[i], model.parameters[i], *splits[i], arguments.mesh);
      }
    }
  }

  LayerPlacement place(const at::Tensor& tensor) const override {
    const auto found = divided_.find(tensor.unsafeGetTensorImpl());
    if (found == divided_.end()) {
      return {tensor};
    }
    const auto info = divided(tensor);
    return {
        tensor, placements(info->split), TensorMemory::kDevice, info->whole};
  }

  void before_forward() override {
    divide_torch_modules(); // this thread may be another one
    forward_.emplace(*ranks_);
    ranks_->open(""); // a recomputed part of a backward may end anywhere
    if (at::GradMode::is_enabled() && num_checked_ < kCheckedForwards) {
      ++num_checked_;
      ranks_->check_next_input();
      watches_operators_.emplace();
    }
    if (ranks_->group().ranks_are_threads()) {
      refuses_dropout_.emplace();
    } else {
      share_generator();
    }
  }
  void after_forward(std::span<at::Tensor* const> /*outputs*/) override {
    if (watches_operators_) {
      watches_operators_->check();
    }
    end_forward();
    ranks_->check_is_closed();
  }
  void abandon_forward() override { end_forward(); }

 private:
  static std::vector<TensorPlacement> placements(const ParameterSplit& split) {
    return {{MeshDimension::kTensor, split.shard}};
  }

  static void check(const ParameterSet& model, size_t index, bool is_divided) {
    const auto& name = model.names[index];
    const auto& parameter = model.parameters[index];
    if (divided(parameter)) {
      throw UsageError(str_cat(
          "[prepare] Parameter '",
          name,
          "' has already been divided among tensor-parallel ranks. Create the "
          "model again"));
    }
    if (parameter.grad().defined()) {
      throw UsageError(str_cat(
          "[prepare] Parameter '",
          name,
          "' already has a gradient. Call zero_grad() before prepare()"));
    }
    if (is_divided && model.sparse_gradients.contains(name)) {
      throw UsageError(str_cat(
          "[prepare] Parameter '",
          name,
          "' has sparse gradients, which tensor parallelism does not support. "
          "Create its Embedding with sparse(false)"));
    }
  }

  // Parts of fused inputs x outputs weights are not next to each other in a
  // row. Stored one after the other, they are boxes like those of any layout:
  // parts x inputs x outputs.
  void divide(
      const std::string& name,
      const at::Tensor& parameter,
      const ParameterSplit& split,
      const Mesh& mesh) {
    auto whole = parameter.sizes().vec();
    const auto pieces = pieces_of(
        whole,
        {.placements = placements(split)},
        mesh.shape(),
        mesh.group().rank());
    const auto& box = pieces.front().box.size;
    std::vector<int64_t> shape = box;
    const auto num = static_cast<int64_t>(pieces.size());
    if (split.shard.dim == 0) {
      shape[0] = 0;
      for (const auto& piece : pieces) {
        shape[0] += piece.box.size[0];
      }
    } else if (num > 1) {
      shape.insert(shape.begin(), num);
    }
    std::vector<at::Tensor> parts;
    for (const auto& piece : pieces) {
      auto part = parameter.detach();
      for (size_t dim = 0; dim < whole.size(); ++dim) {
        part = part.narrow(
            static_cast<int64_t>(dim),
            piece.box.begin[dim],
            piece.box.size[dim]);
      }
      parts.push_back(part.reshape({-1}));
    }
    at::Tensor(parameter).set_data(at::cat(parts).view(shape));
    divided_.insert(parameter.unsafeGetTensorImpl());
    set_divided(
        parameter,
        {.ranks = ranks_,
         .name = name,
         .split = split,
         .whole = std::move(whole),
         .pieces = pieces,
         .is_main = mesh.group().rank() == 0});
  }

  // All ranks must draw the same dropout for activations that all of them have.
  // A rank whose generator is at another point continues with the first one's.
  void share_generator() const {
    const auto& group = ranks_->group();
    auto generator = default_generator(device_);
    auto own = generator_state(generator);
    const auto hash = at::full(
        {1},
        static_cast<int64_t>(std::hash<std::string_view>()(std::string_view(
            static_cast<const char*>(own.const_data_ptr()), own.nbytes()))),
        at::kLong);
    const auto hashes = group.all_gather(hash);
    if (!hashes.eq(hashes[0]).all().item<bool>()) {
      group.broadcast(own, 0);
      set_generator_state(generator, own);
    }
  }

  void end_forward() {
    ranks_->forget_input();
    refuses_dropout_.reset();
    watches_operators_.reset();
    forward_.reset();
  }

  c10::Device device_;
  std::shared_ptr<TensorRanks> ranks_;
  std::unordered_set<const c10::TensorImpl*> divided_;
  std::optional<RefuseDropout> refuses_dropout_;
  std::optional<WatchOperators> watches_operators_;
  std::optional<TensorForward> forward_;
  int num_checked_ = 0;
};

} // namespace

std::unique_ptr<Layer> make_tensor_layer(
    const EngineArguments& arguments,
    const TensorPlan& plan) {
  return std::make_unique<TensorLayer>(arguments, plan);
}

} // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
// The layers with parameters that architectures consist of.
//
// These are not torch::nn's, which draw random values on construction. That
// costs time and changes the generator's state, although a file usually
// replaces the values. Shapes: B batch, T tokens, C channels, I inputs, O
// outputs.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_set>

#include "accelerate/models/model_config.h"
#include "accelerate/training/kernels.h"
#include "training/parallel/tensor_ranks.h"

namespace accelerate::models {

/// Tensors to initialise because no file contained them.
using FreshTensors = std::unordered_set<const c10::TensorImpl*>;

/// A module that owns parameters. Their values are undefined until they are
/// loaded or initialised.
class Layer : public torch::nn::Module {
 public:
  /// Initialises its parameters that are in `fresh`, as transformers does.
  /// `stddev` is the configuration's `initializer_range`.
  virtual void draw(double stddev, const FreshTensors& fresh) = 0;
};

/// x W^T + b, with W of O x I.
class Linear final : public Layer {
 public:
  Linear(int64_t num_inputs, int64_t num_outputs, bool with_bias = true);
  at::Tensor operator()(const at::Tensor& x) const;
  /// The product without the bias.
  at::Tensor product(const at::Tensor& x) const;
  /// The weight as O x I.
  const at::Tensor& matrix() const { return weight; }
  void draw(double stddev, const FreshTensors& fresh) override;

  at::Tensor weight;
  /// Undefined without a bias.
  at::Tensor bias;
};

/// x W + b, with W of I x O: GPT-2's layout of a linear layer.
class Conv1D final : public Layer {
 public:
  /// `stddev_scale` multiplies the standard deviation of initial weights.
  Conv1D(int64_t num_inputs, int64_t num_outputs, double stddev_scale = 1.0);
  at::Tensor operator()(const at::Tensor& x_BTI) const;
  /// The product without the bias.
  at::Tensor product(const at::Tensor& x_BTI) const;
  /// The weight as O x I.
  at::Tensor matrix() const;
  void draw(double stddev, const FreshTensors& fresh) override;

  /// With tensor parallelism, a fused weight is parts x I x O.
  at::Tensor weight;
  at::Tensor bias;

 private:
  double stddev_scale_;
};

class Embedding final : public Layer {
 public:
  /// The row `padding_id` is initialised to zero and gets no gradient.
  Embedding(
      int64_t num_rows,
      int64_t num_channels,
      std::optional<int64_t> padding_id = {});
  at::Tensor operator()(const at::Tensor& ids) const;
  void draw(double stddev, const FreshTensors& fresh) override;

  at::Tensor weight;

 private:
  std::optional<int64_t> padding_id_;
};

class LayerNorm final : public Layer {
 public:
  LayerNorm(int64_t num_channels, double epsilon);
  at::Tensor operator()(const at::Tensor& x) const;
  void draw(double stddev, const FreshTensors& fresh) override;
  double epsilon() const { return epsilon_; }

  at::Tensor weight;
  at::Tensor bias;

 private:
  double epsilon_;
};

/// Divides by the root mean square, which is computed in float32 (float64 for
/// float64 input).
class RmsNorm final : public Layer {
 public:
  RmsNorm(int64_t num_channels, double epsilon);
  at::Tensor operator()(const at::Tensor& x) const;
  void draw(double stddev, const FreshTensors& fresh) override;
  double epsilon() const { return epsilon_; }

  at::Tensor weight;

 private:
  double epsilon_;
};

/// A parameter that is not part of a layer: the bias of a head. Initialised to
/// zero.
class Bias final : public Layer {
 public:
  explicit Bias(int64_t num_channels, std::string name = "bias");
  void draw(double stddev, const FreshTensors& fresh) override;

  at::Tensor value;
};

/// Registers `module` under a path such as "attention.self.query", with plain
/// modules for the levels in between.
void add_at(
    torch::nn::Module& root,
    std::string_view path,
    std::shared_ptr<torch::nn::Module> module);

template <class Module, class... Args>
std::shared_ptr<Module>
make_at(torch::nn::Module& root, std::string_view path, Args&&... args) {
  auto module = std::make_shared<Module>(std::forward<Args>(args)...);
  add_at(root, path, module);
  return module;
}

using Activation = at::Tensor (*)(const at::Tensor&);
/// The kind of gelu. Empty if the function is not a gelu.
std::optional<kernels::Gelu> gelu_of(Activation activation);
/// The activation that the configuration names under `key`. If the name is
/// unknown, throws a `ConfigError` that lists all valid names.
Activation read_activation(
    const ModelConfig& config,
    const char* key,
    const char* fallback);

/// Throws `ConfigError` unless the number of heads divides the channels.
void check_heads(
    const ModelConfig& config,
    int64_t num_channels,
    int64_t num_heads);

/// x W^T + b for W of V x C, where V is the size of the vocabulary, or this
/// rank's part of it with tensor parallelism. The result
/// may have padding columns after the first V. They exist because GPUs multiply
/// bf16 and fp16 several times faster if V is a multiple of 64, which it is for
/// few tokenizers. `bias` may be undefined.
at::Tensor project_to_vocabulary(
    const at::Tensor& x_BTC,
    const at::Tensor& weight_VC,
    const at::Tensor& bias_V);

/// Dropout if `is_training`; otherwise `x` itself.
at::Tensor
apply_dropout(const at::Tensor& x, double probability, bool is_training);

/// Whether our own kernels run the operators between products: on a GPU, if no
/// cast is needed between `x` and the weights.
bool is_fused(const at::Tensor& x, const at::Tensor& weight);

/// Applies three layers, with or without biases, to one input. On a GPU that
/// runs our kernels this is a single product, because one wide product takes
/// less time than three.
std::array<at::Tensor, 3> apply_together(
    const at::Tensor& x,
    const Linear& first,
    const Linear& second,
    const Linear& third);

/// residual + branch, and its norm.
kernels::SumAndNorm add_and_norm(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const RmsNorm& norm);

/// activation(gate) * up.
at::Tensor
gated(Activation activation, const at::Tensor& gate, const at::Tensor& up);

/// A value to be added to a residual.
struct Branch {
  at::Tensor x;
  /// The bias, if our own kernel adds it later. Otherwise `x` includes it.
  at::Tensor bias;
  bool is_fused = false;
};

/// dense(x).
template <class Dense>
Branch branch_of(const Dense& dense, const at::Tensor& x) {
  return is_fused(x, dense.weight) ? Branch{dense.product(x), dense.bias, true}
                                   : Branch{dense(x), {}, false};
}

/// down(activation(up(x))).
template <class Dense>
Branch branch_of(
    const Dense& up,
    Activation activation,
    const Dense& down,
    const at::Tensor& x) {
  const auto gelu = gelu_of(activation);
  if (!gelu || !is_fused(x, up.weight)) {
    return branch_of(down, activation(up(x)));
  }
  const PlainOperators plain;
  return {
      leave_divided(
          kernels::linear_gelu_linear(
              enter_divided(x, up.weight),
              up.matrix(),
              up.bias,
              down.matrix(),
              *gelu),
          down.weight),
      down.bias,
      true};
}

/// residual + dropout(branch).
at::Tensor
add(const at::Tensor& residual, const Branch& branch, double dropout);

/// residual + dropout(branch), and its norm.
kernels::SumAndNorm add_and_norm(
    const at::Tensor& residual,
    const Branch& branch,
    double dropout,
    const LayerNorm& norm);

/// The norm of residual + dropout(branch), for two consumers.
kernels::NormedTwice add_and_norm_twice(
    const at::Tensor& residual,
    const Branch& branch,
    double dropout,
    const LayerNorm& norm);

} // namespace accelerate::models

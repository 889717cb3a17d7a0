// SPDX-License-Identifier: Apache-2.0
#include "models/layers.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>
#include <ATen/autocast_mode.h>

#include <map>
#include <vector>

#include "core/base/str.h"

namespace accelerate::models {
namespace {

void draw_normal(
    const at::Tensor& tensor,
    double stddev,
    const FreshTensors& fresh) {
  if (fresh.contains(tensor.unsafeGetTensorImpl())) {
    tensor.detach().normal_(0.0, stddev);
  }
}

void draw_constant(
    const at::Tensor& tensor,
    double value,
    const FreshTensors& fresh) {
  if (tensor.defined() && fresh.contains(tensor.unsafeGetTensorImpl())) {
    tensor.detach().fill_(value);
  }
}

at::Tensor tanh_gelu(const at::Tensor& x) {
  return at::gelu(x, "tanh");
}
at::Tensor exact_gelu(const at::Tensor& x) {
  return at::gelu(x);
}
at::Tensor silu(const at::Tensor& x) {
  return at::silu(x);
}
at::Tensor relu(const at::Tensor& x) {
  return at::relu(x);
}
at::Tensor tanh(const at::Tensor& x) {
  return at::tanh(x);
}

// The dtype in which a product of `x` is computed.
at::ScalarType product_type(const at::Tensor& x) {
  const auto device = x.device().type();
  return at::autocast::is_autocast_enabled(device)
             ? at::autocast::get_autocast_dtype(device)
             : x.scalar_type();
}

} // namespace

Linear::Linear(int64_t num_inputs, int64_t num_outputs, bool with_bias)
    : weight(
          register_parameter("weight", at::empty({num_outputs, num_inputs}))) {
  if (with_bias) {
    bias = register_parameter("bias", at::empty({num_outputs}));
  }
}
at::Tensor Linear::operator()(const at::Tensor& x) const {
  if (const auto info = divided(weight)) {
    return divided_linear(*info, x, weight, bias);
  }
  return bias.defined() && is_fused(x, weight)
             ? kernels::linear(x, weight, bias)
             : at::linear(x, weight, bias);
}
at::Tensor Linear::product(const at::Tensor& x) const {
  const auto info = divided(weight);
  return info ? divided_linear(*info, x, weight, {}) : at::linear(x, weight);
}
void Linear::draw(double stddev, const FreshTensors& fresh) {
  draw_normal(weight, stddev, fresh);
  draw_constant(bias, 0.0, fresh);
}

Conv1D::Conv1D(int64_t num_inputs, int64_t num_outputs, double stddev_scale)
    : weight(
          register_parameter("weight", at::empty({num_inputs, num_outputs}))),
      bias(register_parameter("bias", at::empty({num_outputs}))),
      stddev_scale_(stddev_scale) {}
at::Tensor Conv1D::operator()(const at::Tensor& x_BTI) const {
  if (divided(weight)) {
    const auto y = product(x_BTI);
    return y + bias.to(y.scalar_type());
  }
  if (is_fused(x_BTI, weight)) {
    return kernels::linear(x_BTI, matrix(), bias);
  }
  const auto flat = x_BTI.reshape({-1, x_BTI.size(-1)});
  return at::addmm(bias, flat, weight)
      .view({x_BTI.size(0), x_BTI.size(1), weight.size(1)});
}
at::Tensor Conv1D::product(const at::Tensor& x_BTI) const {
  const PlainOperators plain;
  const auto flat = enter_divided(x_BTI, weight).reshape({-1, x_BTI.size(-1)});
  at::Tensor y;
  if (weight.dim() == 2) {
    y = at::mm(flat, weight);
  } else {
    std::vector<at::Tensor> parts;
    for (const auto& part : weight.unbind()) {
      parts.push_back(at::mm(flat, part));
    }
    y = at::cat(parts, 1);
  }
  return leave_divided(
      y.view({x_BTI.size(0), x_BTI.size(1), y.size(1)}), weight);
}
at::Tensor Conv1D::matrix() const {
  const PlainOperators plain;
  return weight.dim() == 2 ? weight.t() : weight.transpose(1, 2).flatten(0, 1);
}
void Conv1D::draw(double stddev, const FreshTensors& fresh) {
  draw_normal(weight, stddev * stddev_scale_, fresh);
  draw_constant(bias, 0.0, fresh);
}

Embedding::Embedding(
    int64_t num_rows,
    int64_t num_channels,
    std::optional<int64_t> padding_id)
    : weight(register_parameter("weight", at::empty({num_rows, num_channels}))),
      padding_id_(padding_id) {
  if (padding_id_ && *padding_id_ < 0) {
    padding_id_ = *padding_id_ + num_rows;
  }
}
at::Tensor Embedding::operator()(const at::Tensor& ids) const {
  if (const auto info = divided(weight)) {
    return divided_embedding(*info, weight, ids, padding_id_);
  }
  return kernels::has_kernels(weight.device())
             ? kernels::embedding(weight, ids, padding_id_)
             : at::embedding(weight, ids, padding_id_.value_or(-1));
}
void Embedding::draw(double stddev, const FreshTensors& fresh) {
  draw_normal(weight, stddev, fresh);
  if (padding_id_ && fresh.contains(weight.unsafeGetTensorImpl())) {
    weight.detach().select(0, *padding_id_).zero_();
  }
}

LayerNorm::LayerNorm(int64_t num_channels, double epsilon)
    : weight(register_parameter("weight", at::empty({num_channels}))),
      bias(register_parameter("bias", at::empty({num_channels}))),
      epsilon_(epsilon) {}
at::Tensor LayerNorm::operator()(const at::Tensor& x) const {
  return is_fused(x, weight)
             ? kernels::layer_norm(x, weight, bias, epsilon_)
             : at::layer_norm(x, {weight.size(0)}, weight, bias, epsilon_);
}
void LayerNorm::draw(double /*stddev*/, const FreshTensors& fresh) {
  draw_constant(weight, 1.0, fresh);
  draw_constant(bias, 0.0, fresh);
}

RmsNorm::RmsNorm(int64_t num_channels, double epsilon)
    : weight(register_parameter("weight", at::empty({num_channels}))),
      epsilon_(epsilon) {}
at::Tensor RmsNorm::operator()(const at::Tensor& x) const {
  if (is_fused(x, weight)) {
    return kernels::rms_norm(x, weight, epsilon_);
  }
  const auto exact = x.to(at::toOpMathType(x.scalar_type()));
  const auto variance = exact.pow(2).mean(-1, /*keepdim=*/true);
  return weight * (exact * at::rsqrt(variance + epsilon_)).to(x.scalar_type());
}
void RmsNorm::draw(double /*stddev*/, const FreshTensors& fresh) {
  draw_constant(weight, 1.0, fresh);
}

Bias::Bias(int64_t num_channels, std::string name)
    : value(register_parameter(std::move(name), at::empty({num_channels}))) {}
void Bias::draw(double /*stddev*/, const FreshTensors& fresh) {
  draw_constant(value, 0.0, fresh);
}

void add_at(
    torch::nn::Module& root,
    std::string_view path,
    std::shared_ptr<torch::nn::Module> module) {
  const size_t dot = path.find('.');
  const std::string name(path.substr(0, dot));
  if (dot == std::string_view::npos) {
    root.register_module(name, std::move(module));
    return;
  }
  const auto children = root.named_children();
  const auto* found = children.find(name);
  const auto step =
      found != nullptr
          ? *found
          : root.register_module(name, std::make_shared<torch::nn::Module>());
  add_at(*step, path.substr(dot + 1), std::move(module));
}

Activation read_activation(
    const ModelConfig& config,
    const char* key,
    const char* fallback) {
  // Transformers has several names for one function.
  static const std::map<std::string, Activation> table = {
      {"gelu", exact_gelu},
      {"gelu_fast", tanh_gelu},
      {"gelu_new", tanh_gelu},
      {"gelu_python", exact_gelu},
      {"gelu_pytorch_tanh", tanh_gelu},
      {"relu", relu},
      {"silu", silu},
      {"swish", silu},
      {"tanh", tanh},
  };
  const std::string name = config.text(key, fallback);
  if (const auto found = table.find(name); found != table.end()) {
    return found->second;
  }
  std::string known;
  for (const auto& [other, function] : table) {
    known += known.empty() ? other : ", " + other;
  }
  config.refuse(str_cat(
      "'",
      key,
      "' is '",
      name,
      "', which is not supported. Supported values: ",
      known));
}

std::optional<kernels::Gelu> gelu_of(Activation activation) {
  if (activation == tanh_gelu) {
    return kernels::Gelu::kTanh;
  }
  if (activation == exact_gelu) {
    return kernels::Gelu::kErf;
  }
  return std::nullopt;
}

void check_heads(
    const ModelConfig& config,
    int64_t num_channels,
    int64_t num_heads) {
  if (num_channels % num_heads != 0) {
    config.refuse(str_cat(
        "The hidden size is ",
        num_channels,
        ", but it must be a multiple of the number of attention heads, ",
        num_heads));
  }
}

at::Tensor project_to_vocabulary(
    const at::Tensor& x_BTC,
    const at::Tensor& weight_VC,
    const at::Tensor& bias_V) {
  if (const auto info = divided(weight_VC)) {
    return divided_linear(*info, x_BTC, weight_VC, bias_V);
  }
  constexpr int64_t kMultiple = 64;
  // Padding copies the weights, which pays off only with more rows than one
  // token for each of many sequences.
  constexpr int64_t kMinRows = 256;
  const int64_t V = weight_VC.size(0);
  const int64_t num_missing = (kMultiple - V % kMultiple) % kMultiple;
  const auto type = product_type(x_BTC);
  const bool is_reduced = type == at::kBFloat16 || type == at::kHalf;
  if (num_missing == 0 || x_BTC.is_cpu() || !is_reduced ||
      x_BTC.numel() < kMinRows * x_BTC.size(-1)) {
    return at::linear(x_BTC, weight_VC, bias_V);
  }
  return at::linear(
      x_BTC,
      at::constant_pad_nd(weight_VC.to(type), {0, 0, 0, num_missing}),
      bias_V.defined() ? at::constant_pad_nd(bias_V.to(type), {0, num_missing})
                       : bias_V);
}

at::Tensor
apply_dropout(const at::Tensor& x, double probability, bool is_training) {
  return is_training && probability > 0 ? at::dropout(x, probability, true) : x;
}

bool is_fused(const at::Tensor& x, const at::Tensor& weight) {
  return kernels::has_kernels(x.device()) &&
         x.scalar_type() == weight.scalar_type() &&
         !at::autocast::is_autocast_enabled(x.device().type());
}

std::array<at::Tensor, 3> apply_together(
    const at::Tensor& x,
    const Linear& first,
    const Linear& second,
    const Linear& third) {
  if (!is_fused(x, first.weight)) {
    return {first(x), second(x), third(x)};
  }
  const PlainOperators plain;
  const auto weight = at::cat({first.weight, second.weight, third.weight});
  const auto entered = enter_divided(x, first.weight);
  const auto together =
      first.bias.defined()
          ? kernels::linear(
                entered, weight, at::cat({first.bias, second.bias, third.bias}))
          : at::linear(entered, weight);
  const auto outputs = together.split_with_sizes(
      {first.weight.size(0), second.weight.size(0), third.weight.size(0)}, -1);
  return {outputs[0], outputs[1], outputs[2]};
}

kernels::SumAndNorm add_and_norm(
    const at::Tensor& residual,
    const at::Tensor& branch,
    const RmsNorm& norm) {
  if (is_fused(residual, norm.weight)) {
    return kernels::add_rms_norm(residual, branch, norm.weight, norm.epsilon());
  }
  const auto sum = residual + branch;
  return {sum, norm(sum)};
}

at::Tensor
add(const at::Tensor& residual, const Branch& branch, double dropout) {
  return branch.is_fused
             ? kernels::add_dropout(residual, branch.x, branch.bias, dropout)
             : residual + apply_dropout(branch.x, dropout, true);
}

namespace {

template <auto kOperation>
auto in_one_pass(
    const at::Tensor& residual,
    const Branch& branch,
    double dropout,
    const LayerNorm& norm) {
  return kOperation(
      residual,
      branch.x,
      branch.bias,
      norm.weight,
      norm.bias,
      dropout,
      norm.epsilon());
}

} // namespace

kernels::SumAndNorm add_and_norm(
    const at::Tensor& residual,
    const Branch& branch,
    double dropout,
    const LayerNorm& norm) {
  if (branch.is_fused) {
    return in_one_pass<kernels::add_dropout_layer_norm>(
        residual, branch, dropout, norm);
  }
  const auto sum = add(residual, branch, dropout);
  return {sum, norm(sum)};
}

kernels::NormedTwice add_and_norm_twice(
    const at::Tensor& residual,
    const Branch& branch,
    double dropout,
    const LayerNorm& norm) {
  if (branch.is_fused) {
    return in_one_pass<kernels::add_dropout_layer_norm_twice>(
        residual, branch, dropout, norm);
  }
  const auto normed = norm(add(residual, branch, dropout));
  return {normed, normed};
}

at::Tensor
gated(Activation activation, const at::Tensor& gate, const at::Tensor& up) {
  return activation == silu && is_fused(gate, up) ? kernels::swiglu(gate, up)
                                                  : activation(gate) * up;
}

} // namespace accelerate::models

// SPDX-License-Identifier: Apache-2.0
// Parameter groups by rule.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"

namespace torch::nn {
class Module;
} // namespace torch::nn

namespace accelerate::optim {

/// Parameters with their own settings; settings that are not given are the
/// optimizer's.
struct ACCELERATE_API ParameterGroup {
  std::vector<at::Tensor> parameters = {};
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
};

/// Selects parameters by their full names ("encoder.norm.weight").
using ParameterRule =
    std::function<bool(const std::string& name, const at::Tensor& parameter)>;

/// Returns two groups of trainable parameters: those for which `rule` is false,
/// then those for which it is true, with the settings of `chosen`. Either may
/// be empty.
///
///     // A tenth of the learning rate for the embeddings.
///     auto groups = accelerate::optim::split_groups(
///         *model,
///         [](auto& name, auto&) { return name.starts_with("embeddings."); },
///         {.lr = 1e-4});
///     accelerate::optim::AdamW optimizer(groups, {.lr = 1e-3});
ACCELERATE_API std::vector<ParameterGroup> split_groups(
    const torch::nn::Module& model,
    const ParameterRule& rule,
    ParameterGroup chosen = {});

/// Returns two groups: with weight decay, then without. The second contains
/// parameters with fewer than two dimensions, those whose name ends in "bias",
/// and those of layers whose type ends in "Norm" (`LayerNorm`, `BatchNorm2d`, a
/// custom `RMSNorm`).
///
///     accelerate::optim::AdamW optimizer(
///         accelerate::optim::no_decay_groups(*model),
///         {.lr = 3e-5, .weight_decay = 0.01});
ACCELERATE_API std::vector<ParameterGroup> no_decay_groups(
    const torch::nn::Module& model);

} // namespace accelerate::optim

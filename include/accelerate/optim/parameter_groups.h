// SPDX-License-Identifier: Apache-2.0
// Splits the parameters of a model into groups.
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

/// Parameters with their own settings. Settings that are not set are those of
/// the optimizer.
struct ACCELERATE_API ParameterGroup {
  std::vector<at::Tensor> parameters = {};
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
};

/// Selects parameters by their full names ("encoder.norm.weight").
using ParameterRule =
    std::function<bool(const std::string& name, const at::Tensor& parameter)>;

/// Returns two groups of trainable parameters. The first contains the
/// parameters for which `rule` is false. The second contains those for which it
/// is true, with the settings of `chosen`. Either group may be empty.
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

/// Returns two groups, the first with weight decay and the second without. The
/// second group contains parameters with fewer than two dimensions, parameters
/// whose names end in "bias", and those of layers whose type name ends in
/// "Norm" (`LayerNorm`, `BatchNorm2d`, a custom `RMSNorm`).
///
///     accelerate::optim::AdamW optimizer(
///         accelerate::optim::no_decay_groups(*model),
///         {.lr = 3e-5, .weight_decay = 0.01});
ACCELERATE_API std::vector<ParameterGroup> no_decay_groups(
    const torch::nn::Module& model);

} // namespace accelerate::optim

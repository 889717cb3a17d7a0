// SPDX-License-Identifier: Apache-2.0
// Groups of parameters that an optimizer treats differently, made by a rule.
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

/// Parameters with settings of their own; what is left out is the optimizer's.
struct ACCELERATE_API ParameterGroup {
  std::vector<at::Tensor> parameters = {};
  std::optional<double> lr = {};
  std::optional<double> weight_decay = {};
};

/// Whether a parameter belongs, by its full name ("encoder.norm.weight").
using ParameterRule =
    std::function<bool(const std::string& name, const at::Tensor& parameter)>;

/// Two groups: first the trainable parameters for which `rule` does not hold,
/// then those for which it holds, with `chosen`'s settings. Either may be
/// empty.
///
///     // A tenth of the rate for the embeddings.
///     auto groups = accelerate::optim::split_groups(
///         *model,
///         [](auto& name, auto&) { return name.starts_with("embeddings."); },
///         {.lr = 1e-4});
///     accelerate::optim::AdamW optimizer(groups, {.lr = 1e-3});
ACCELERATE_API std::vector<ParameterGroup> split_groups(
    const torch::nn::Module& model,
    const ParameterRule& rule,
    ParameterGroup chosen = {});

/// Two groups: with weight decay, then without. None for parameters of fewer
/// than two dimensions, for those whose name ends in "bias", and for those of
/// layers whose type ends in "Norm" (`LayerNorm`, `BatchNorm2d`, an `RMSNorm`
/// of your own).
///
///     accelerate::optim::AdamW optimizer(
///         accelerate::optim::no_decay_groups(*model),
///         {.lr = 3e-5, .weight_decay = 0.01});
ACCELERATE_API std::vector<ParameterGroup> no_decay_groups(
    const torch::nn::Module& model);

} // namespace accelerate::optim

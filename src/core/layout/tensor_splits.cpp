// SPDX-License-Identifier: Apache-2.0
#include "core/layout/tensor_splits.h"

#include <algorithm>
#include <string_view>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

/// Removes and returns the first part of a path.
std::string_view take_part(std::string_view& path) {
  const auto dot = path.find('.');
  const auto part = path.substr(0, dot);
  path.remove_prefix(dot == path.npos ? path.size() : dot + 1);
  return part;
}

struct OwnedName {
  std::string module;
  std::string parameter;
};

OwnedName split_name(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos
             ? OwnedName{"", name}
             : OwnedName{name.substr(0, dot), name.substr(dot + 1)};
}

[[noreturn]] void refuse_split(
    const std::string& name,
    const std::string& why) {
  throw ConfigError(str_cat("[tensor parallelism] '", name, "' ", why));
}

void check_module(const TensorPlanEntry& entry, const NamedShape& parameter) {
  if (parameter.is_linear && entry.is_transposed) {
    refuse_split(
        parameter.name,
        "belongs to a torch::nn::Linear, whose weight is outputs x inputs. "
        "Remove is_transposed from the tensor plan");
  }
  if (parameter.is_embedding && entry.split != TensorSplit::kVocabulary) {
    refuse_split(
        parameter.name,
        "is the table of an embedding, which can only be divided by rows. Use "
        "kVocabulary in the tensor plan");
  }
  if (parameter.shape.size() == 1 &&
      split_name(parameter.name).parameter == "weight") {
    refuse_split(
        parameter.name,
        "has 1 dimension, but only linear modules and embeddings can be "
        "divided. Remove it from the tensor plan");
  }
}

/// The dimension that the entry divides; empty for a bias that is added to
/// whole outputs.
std::optional<std::int64_t> divided_dim(
    const TensorPlanEntry& entry,
    const NamedShape& parameter) {
  const auto num_dims = parameter.shape.size();
  // Torch's linear modules add the bias to gathered outputs.
  const bool is_gathered =
      entry.split == TensorSplit::kGatheredColumns ||
      (entry.split == TensorSplit::kVocabulary && parameter.is_linear);
  if (num_dims == 1 && (entry.split == TensorSplit::kRows || is_gathered)) {
    return std::nullopt;
  }
  if (num_dims == 1) {
    return 0;
  }
  if (num_dims != 2) {
    refuse_split(
        parameter.name,
        str_cat(
            "has ",
            num_dims,
            " dimensions, but only weights of linear modules and embeddings "
            "can be divided. Remove it from the tensor plan"));
  }
  const bool divides_inputs = entry.split == TensorSplit::kRows;
  return divides_inputs == entry.is_transposed ? 0 : 1;
}

ParameterSplit split_of(
    const TensorPlanEntry& entry,
    const NamedShape& parameter,
    std::int64_t dim,
    int num_ranks) {
  const auto length = parameter.shape[static_cast<std::size_t>(dim)];
  const auto fused = entry.num_fused;
  if (fused < 1 || length % fused != 0) {
    refuse_split(
        parameter.name,
        str_cat(
            "has ",
            length,
            " features, which cannot be split into ",
            fused,
            " equal projections. Correct num_fused in the tensor plan"));
  }
  if (entry.num_units != 0 &&
      (entry.num_units < 0 || length / fused % entry.num_units != 0)) {
    refuse_split(
        parameter.name,
        str_cat(
            "has ",
            length / fused,
            " features, which cannot be split into ",
            entry.num_units,
            " equal units. Correct num_units in the tensor plan"));
  }
  if (entry.num_units % num_ranks != 0) {
    refuse_split(
        parameter.name,
        str_cat(
            "has ",
            entry.num_units,
            " heads, which cannot be divided equally among ",
            num_ranks,
            " tensor-parallel ranks. Use a tensor size that divides ",
            entry.num_units));
  }
  // Divided features must have the same number on all ranks, so that a random
  // operator draws as many numbers everywhere.
  const bool may_be_uneven = (entry.split == TensorSplit::kVocabulary ||
                              entry.split == TensorSplit::kGatheredColumns) &&
                             fused == 1;
  const auto chunk = (length + num_ranks - 1) / num_ranks;
  if (may_be_uneven ? chunk * (num_ranks - 1) >= length
                    : length / fused % num_ranks != 0) {
    refuse_split(
        parameter.name,
        str_cat(
            "has ",
            length / fused,
            " features, which cannot be divided ",
            may_be_uneven ? "" : "equally ",
            "among ",
            num_ranks,
            " tensor-parallel ranks. Choose another tensor size"));
  }
  ParameterSplit split = {
      .shard = {.dim = dim},
      .divides_inputs = entry.split == TensorSplit::kRows,
      .is_gathered = entry.split == TensorSplit::kGatheredColumns,
      .is_vocabulary = entry.split == TensorSplit::kVocabulary};
  if (fused > 1) {
    split.shard.blocks.assign(static_cast<std::size_t>(fused), length / fused);
  }
  return split;
}

void check_uses(
    const TensorPlan& plan,
    const std::vector<NamedShape>& parameters,
    const std::vector<bool>& is_used) {
  for (std::size_t i = 0; i < plan.size(); ++i) {
    if (is_used[i]) {
      continue;
    }
    const bool fits = std::any_of(
        parameters.begin(), parameters.end(), [&](const auto& parameter) {
          return fits_pattern(
              plan[i].modules, split_name(parameter.name).module);
        });
    throw ConfigError(str_cat(
        "[tensor parallelism] ",
        fits ? "Earlier entries of the tensor plan fit all modules '"
             : "No parameter belongs to a module '",
        plan[i].modules,
        fits ? "'. Remove the duplicate entry"
             : "' of the tensor plan. Correct the path, or remove the entry"));
  }
  const auto find = [&](TensorSplit split) {
    return std::find_if(plan.begin(), plan.end(), [&](const auto& entry) {
      return entry.split == split;
    });
  };
  const auto columns = find(TensorSplit::kColumns);
  if (columns != plan.end() && find(TensorSplit::kRows) == plan.end()) {
    throw ConfigError(str_cat(
        "[tensor parallelism] The outputs of '",
        columns->modules,
        "' stay divided, because the tensor plan has kColumns but no kRows. "
        "Add the linear module that follows with kRows, or use "
        "kGatheredColumns"));
  }
}

} // namespace

bool fits_pattern(const std::string& pattern, const std::string& path) {
  std::string_view expected = pattern;
  std::string_view found = path;
  while (!expected.empty() && !found.empty()) {
    const auto part = take_part(expected);
    const auto own = take_part(found);
    if (part != "*" && part != own) {
      return false;
    }
  }
  return expected.empty() && found.empty();
}

std::vector<std::optional<ParameterSplit>> tensor_splits(
    const TensorPlan& plan,
    const std::vector<NamedShape>& parameters,
    int num_ranks) {
  if (plan.empty()) {
    throw ConfigError(
        "[tensor parallelism] The model has no tensor plan, so it is unknown "
        "how to divide it. Set AcceleratorOptions::tensor_plan, or derive the "
        "model from HasTensorPlan");
  }
  std::vector<std::optional<ParameterSplit>> splits(parameters.size());
  std::vector<bool> is_used(plan.size(), false);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto [module, name] = split_name(parameters[i].name);
    const auto entry = std::find_if(
        plan.begin(), plan.end(), [&module = module](const auto& each) {
          return fits_pattern(each.modules, module);
        });
    if (entry == plan.end()) {
      continue;
    }
    is_used[static_cast<std::size_t>(entry - plan.begin())] = true;
    check_module(*entry, parameters[i]);
    if (const auto dim = divided_dim(*entry, parameters[i])) {
      splits[i] = split_of(*entry, parameters[i], *dim, num_ranks);
    }
  }
  check_uses(plan, parameters, is_used);
  return splits;
}

} // namespace accelerate

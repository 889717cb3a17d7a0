// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/shard_units.h"

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <map>
#include <set>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/observe/hint.h"

namespace accelerate {
namespace {

/// The name up to its first numeric component, e.g. "layers.0".
std::string block_of(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const bool is_number =
        end > begin && end < name.size() &&
        std::all_of(
            name.begin() + static_cast<std::ptrdiff_t>(begin),
            name.begin() + static_cast<std::ptrdiff_t>(end),
            [](char letter) { return letter >= '0' && letter <= '9'; });
    if (is_number) {
      return name.substr(0, end);
    }
    begin = end + 1;
  }
  return {};
}

bool is_in(const std::string& name, const std::string& prefix) {
  return name.starts_with(prefix) &&
         (name.size() == prefix.size() || name[prefix.size()] == '.');
}

std::string longest_of(
    const std::string& name,
    const std::vector<std::string>& prefixes) {
  std::string longest;
  for (const auto& prefix : prefixes) {
    if (is_in(name, prefix) && prefix.size() > longest.size()) {
      longest = prefix;
    }
  }
  return longest;
}

void check_prefixes(
    const ParameterSet& model,
    const char* what,
    const std::vector<std::string>& prefixes) {
  for (const auto& prefix : prefixes) {
    if (std::none_of(
            model.names.begin(), model.names.end(), [&](const auto& name) {
              return is_in(name, prefix);
            })) {
      throw UsageError(str_cat(
          "[prepare] ",
          what,
          " '",
          prefix,
          "' is not a module of the model. Pass the path of a module, such as "
          "the first part of the parameter name '",
          model.names.empty() ? std::string() : model.names.front(),
          "'"));
    }
  }
}

} // namespace

void check_sharding(const ParameterSet& model, const ShardingOptions& options) {
  if (options.prefetch < 1 || options.min_unit_numbers < 0) {
    throw UsageError(str_cat(
        "[prepare] The sharding options have prefetch ",
        options.prefetch,
        " and min_unit_numbers ",
        options.min_unit_numbers,
        ". prefetch must be at least 1 and min_unit_numbers at least 0"));
  }
  if (options.reduce_dtype == Precision::kFp16) {
    throw UsageError(
        "[prepare] Sharding does not support fp16 as reduce_dtype, because "
        "sums of gradients overflow. Use no or bf16");
  }
  check_prefixes(model, "The shard unit", options.units);
  check_prefixes(model, "The ignored module", options.ignored);
  for (const auto& name : model.sparse_gradients) {
    throw UsageError(str_cat(
        "[prepare] Parameter '",
        name,
        "' has sparse gradients, which sharding does not support. Create its "
        "Embedding with ",
        hint("sparse(false)", "sparse=False")));
  }
}

ShardedParameters split_parameters(
    const ParameterSet& model,
    const ShardingOptions& options) {
  ShardedParameters split{.sharded = model, .whole = {}};
  split.sharded.names.clear();
  split.sharded.parameters.clear();
  for (size_t i = 0; i < model.names.size(); ++i) {
    const bool is_whole =
        !longest_of(model.names[i], options.ignored).empty() ||
        !longest_of(model.names[i], model.whole).empty();
    auto& set = is_whole ? split.whole : split.sharded;
    set.names.push_back(model.names[i]);
    set.parameters.push_back(model.parameters[i]);
  }
  return split;
}

std::vector<ShardUnitPlan> plan_shard_units(
    const ParameterSet& model,
    const ShardingOptions& options) {
  const auto& given = options.units.empty() ? model.units : options.units;
  std::vector<std::string> prefixes;
  std::map<std::string, int64_t> sizes;
  for (size_t i = 0; i < model.names.size(); ++i) {
    prefixes.push_back(
        given.empty() ? block_of(model.names[i])
                      : longest_of(model.names[i], given));
    sizes[prefixes.back()] += model.parameters[i].numel();
  }
  std::vector<ShardUnitPlan> units;
  std::map<std::string, size_t> index_of;
  for (size_t i = 0; i < model.names.size(); ++i) {
    const auto& parameter = model.parameters[i];
    const auto& prefix = sizes[prefixes[i]] < options.min_unit_numbers
                             ? std::string()
                             : prefixes[i];
    const auto key = str_cat(
        prefix,
        '|',
        c10::toString(parameter.scalar_type()),
        '|',
        parameter.device(),
        '|',
        parameter.requires_grad());
    const auto [found, is_new] = index_of.emplace(key, units.size());
    if (is_new) {
      units.push_back({prefix, {}});
    }
    units[found->second].members.push_back(i);
  }
  return units;
}

} // namespace accelerate

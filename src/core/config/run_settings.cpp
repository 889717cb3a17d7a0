// SPDX-License-Identifier: Apache-2.0
#include "core/config/run_settings.h"

#include "accelerate/error.h"
#include "core/base/parse.h"
#include "core/base/str.h"
#include "core/base/variables.h"

namespace accelerate {
namespace {

/// `parse` returns nothing for a malformed text; `expected` describes a valid
/// one.
template <class Value, class Parse, class Expected>
Value resolve(
    const std::optional<Value>& code,
    const EnvLookup& env,
    const char* variable,
    Value by_default,
    const Parse& parse,
    const Expected& expected) {
  if (code) {
    return *code;
  }
  const auto text = env(variable);
  if (!text || text->empty()) {
    return by_default;
  }
  const std::optional<Value> value = parse(*text);
  if (!value) {
    throw ConfigError(str_cat(
        "[Accelerator] ",
        variable,
        " must be ",
        expected(*text),
        ", not '",
        *text,
        "'; correct or unset it"));
  }
  return *value;
}

bool resolve_switch(
    const std::optional<bool>& code,
    const EnvLookup& env,
    const char* variable) {
  return resolve(code, env, variable, false, parse_bool, [](const auto&) {
    return "true or false";
  });
}

template <class Count>
Count resolve_count(
    const std::optional<Count>& code,
    const EnvLookup& env,
    const char* variable) {
  return resolve(
      code,
      env,
      variable,
      Count{1},
      [](const std::string& text) {
        const auto count = parse_number<Count>(text);
        return count.value_or(0) >= 1 ? count : std::nullopt;
      },
      [](const std::string&) { return "a whole number of at least 1"; });
}

} // namespace

bool RunSettings::cpu(const std::optional<bool>& code) const {
  return resolve_switch(code, env_, variables::kUseCpu);
}

bool RunSettings::fast() const {
  return resolve_switch(std::nullopt, env_, variables::kFast);
}

bool RunSettings::debug(const std::optional<bool>& code) const {
  return resolve_switch(code, env_, variables::kDebugMode);
}

bool RunSettings::step_summary(const std::optional<bool>& code) const {
  return resolve_switch(code, env_, variables::kStepSummary);
}

Precision RunSettings::mixed_precision(
    const std::optional<Precision>& code) const {
  // Rounding in reduced precision would hide differences between layouts.
  if (const auto folder = env_(variables::kVerifyFolder);
      folder && !folder->empty()) {
    return Precision::kNo;
  }
  return resolve(
      code,
      env_,
      variables::kMixedPrecision,
      Precision::kNo,
      [](const std::string& text) {
        const PrecisionName* row = find_precision(text);
        return row ? std::optional(row->precision) : std::nullopt;
      },
      expected_precision);
}

int64_t RunSettings::gradient_accumulation_steps(
    const std::optional<int64_t>& code) const {
  return resolve_count(code, env_, variables::kGradientAccumulationSteps);
}

MeshSizes RunSettings::parallelism(const MeshSizes& code) const {
  if (code != MeshSizes() ||
      !resolve_switch(std::nullopt, env_, variables::kUseParallelismConfig)) {
    return code;
  }
  const auto size = [&](const char* variable) {
    return resolve_count<int>(std::nullopt, env_, variable);
  };
  const MeshSizes sizes = {
      .replicate = size(variables::kParallelismReplicate),
      .shard = size(variables::kParallelismShard),
      .tensor = size(variables::kParallelismTensor)};
  return sizes == MeshSizes{.replicate = 1, .shard = 1} ? code : sizes;
}

} // namespace accelerate

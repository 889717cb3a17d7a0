// SPDX-License-Identifier: Apache-2.0
#include "core/config/env_bridge.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>

#include "core/base/variables.h"
#include "core/config/fields.h"
#include "core/hardware/gpu_kinds.h"

namespace accelerate {
namespace {

std::optional<std::string> non_empty(
    const EnvLookup& env,
    const std::string& name) {
  auto value = env(name);
  return value && !value->empty() ? value : std::nullopt;
}

std::filesystem::path expand_home(
    const std::string& path,
    const EnvLookup& env) {
  if (path == "~" || path.starts_with("~/")) {
    return home_folder(env) / path.substr(std::min<size_t>(2, path.size()));
  }
  return path;
}

std::filesystem::path hugging_face_home(const EnvLookup& env) {
  if (const auto folder = non_empty(env, variables::kHuggingFaceHome)) {
    return expand_home(*folder, env);
  }
  const auto cache = non_empty(env, variables::kCacheHome);
  return expand_home(cache.value_or("~/.cache"), env) / "huggingface";
}

bool is_decided(const LaunchConfig& config, const Field& field) {
  return format_field(config, field) != format_field(LaunchConfig{}, field);
}

bool is_for_workers(const LaunchConfig& config, const Field& field) {
  switch (field.workers) {
    case WorkerRule::kNever:
      return false;
    case WorkerRule::kWhereDecided:
      return is_decided(config, field);
    case WorkerRule::kWhereGroupDecided: {
      const auto fields = launch_fields();
      return std::any_of(fields.begin(), fields.end(), [&](const Field& other) {
        return other.group == field.group && is_decided(config, other);
      });
    }
    case WorkerRule::kAlways:
      return true;
  }
  return false;
}

// The value of a boolean in the original's spelling.
std::string worker_switch(const Field& field, bool is_on) {
  if (field.workers == WorkerRule::kAlways ||
      field.workers == WorkerRule::kWhereGroupDecided) {
    return is_on ? "True" : "False";
  }
  // Libraries compare the values of these variables with a string.
  return field.variable == variables::kUseParallelismConfig ||
                 field.variable == variables::kUseFsdp ||
                 field.variable == variables::kUseDeepSpeed
             ? "true"
             : "1";
}

} // namespace

std::filesystem::path home_folder(const EnvLookup& env) {
  if (const auto folder = non_empty(env, variables::kHome)) {
    return *folder;
  }
  const passwd* user = getpwuid(getuid());
  return user != nullptr ? user->pw_dir : "/";
}

ConfigLayer read_environment(const EnvLookup& env) {
  ConfigLayer layer;
  for (const Field& field : launch_fields()) {
    if (field.variable.empty()) {
      continue;
    }
    const std::string variable(field.variable);
    const auto value = non_empty(env, variable);
    // OpenMP's list of counts per nesting level is inherited unchanged.
    const bool is_omp_list = value && variable == variables::kOmpNumThreads &&
                             value->find(',') != std::string::npos;
    if (value && !is_omp_list) {
      layer[std::string(field.name)] = {*value, variable};
    }
  }
  return layer;
}

std::map<std::string, std::string> worker_variables(
    const LaunchConfig& config) {
  std::map<std::string, std::string> result;
  for (const Field& field : launch_fields()) {
    if (is_for_workers(config, field)) {
      result[std::string(field.variable)] =
          field.is_flag() ? worker_switch(field, is_decided(config, field))
                          : format_field(config, field);
    }
  }
  if (!config.gpu_ids.empty()) {
    for (const auto& kind : gpu_kinds()) {
      result[kind.visibility_variable] =
          format_field(config, *find_field("gpu_ids"));
    }
  }
  return result;
}

std::filesystem::path hub_cache(const EnvLookup& env) {
  for (const char* name : {variables::kHubCache, variables::kOldHubCache}) {
    if (const auto folder = non_empty(env, name)) {
      return expand_home(*folder, env);
    }
  }
  return hugging_face_home(env) / "hub";
}

std::filesystem::path default_config_path(const EnvLookup& env) {
  const auto folder = hugging_face_home(env) / "accelerate";
  const auto yaml = folder / "default_config.yaml";
  const auto json = folder / "default_config.json";
  std::error_code ignored;
  const bool only_json = !std::filesystem::exists(yaml, ignored) &&
                         std::filesystem::exists(json, ignored);
  return only_json ? json : yaml;
}

} // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
#include "config/env_bridge.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>

#include "base/variables.h"
#include "config/fields.h"
#include "hardware/gpu_kinds.h"

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

// As the original writes them.
std::string worker_switch(const Field& field, bool is_on) {
  if (field.workers == WorkerRule::kAlways) {
    return is_on ? "True" : "False";
  }
  // Libraries compare these with a text.
  return field.variable == variables::kUseFsdp ||
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
    // OpenMP's list of counts per nesting level is inherited as it is.
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
    const std::string text = format_field(config, field);
    const bool is_decided = text != format_field(LaunchConfig{}, field);
    if (field.workers == WorkerRule::kAlways ||
        (field.workers == WorkerRule::kWhereDecided && is_decided)) {
      result[std::string(field.variable)] =
          field.is_flag() ? worker_switch(field, is_decided) : text;
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

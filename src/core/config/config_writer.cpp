// SPDX-License-Identifier: Apache-2.0
// Writes values to a file that Hugging Face's loader accepts.
#include "accelerate/error.h"
#include "core/base/atomic_file.h"
#include "core/base/str.h"
#include "core/config/config_file.h"
#include "core/config/fields.h"
#include "core/config/yaml_tree.h"

namespace accelerate {
namespace {

using nlohmann::json;

bool is_several(const LaunchConfig& config) {
  return config.num_machines.most > 1 || config.num_processes.value_or(1) > 1;
}

std::string distributed_type(const LaunchConfig& config) {
  if (config.use_fsdp) {
    return "FSDP";
  }
  if (config.use_deepspeed) {
    return "DEEPSPEED";
  }
  if (config.multi_gpu || (is_several(config) && !config.cpu)) {
    return "MULTI_GPU";
  }
  return is_several(config) ? "MULTI_CPU" : "NO";
}

json typed_value(const LaunchConfig& config, const Field& field) {
  const std::string text = format_field(config, field);
  if (field.is_flag() || text == "true" || text == "false") {
    return text == "true";
  }
  const bool is_number =
      field.is_number() ||
      (field.is_range() && text.find(':') == std::string::npos);
  return is_number ? json::parse(text) : json(text);
}

// Whether to write the field. The original omits some fields, or writes null,
// if they were not set.
bool is_given(const LaunchConfig& config, const Field& field) {
  const std::string text = format_field(config, field);
  if (field.name == "gpu_ids") {
    return !config.cpu;
  }
  const bool is_default = text == format_field(LaunchConfig{}, field);
  const bool may_be_unset = text.empty() || text == field.unset_word;
  // A section that only disables something is omitted.
  const bool is_inner_switch =
      field.is_flag() && field.yaml_key.find('.') != std::string_view::npos;
  return field.is_shared_key && !is_inner_switch ? !may_be_unset : !is_default;
}

json::json_pointer pointer_of(const Field& field) {
  std::string path = "/" + std::string(field.yaml_key);
  for (char& c : path) {
    c = c == '.' ? '/' : c;
  }
  return json::json_pointer(path);
}

} // namespace

LaunchConfig values_of(const ConfigFile& file) {
  LaunchConfig values;
  for (const Field& field : launch_fields()) {
    const auto found = file.values.find(std::string(field.name));
    if (found != file.values.end()) {
      assign_field(values, field, found->second);
    }
  }
  return values;
}

json to_document(const LaunchConfig& config) {
  // Constants that the original writes for all machines.
  json document = {
      {"compute_environment", "LOCAL_MACHINE"},
      {"distributed_type", distributed_type(config)},
      {"downcast_bf16", "no"},
      {"main_training_function", "main"},
      {"rdzv_backend", "static"},
      {"same_network", true},
      {"tpu_env", json::array()},
      {"tpu_use_cluster", false},
      {"tpu_use_sudo", false},
  };
  for (const Field& field : launch_fields()) {
    if (!field.yaml_key.empty() && is_given(config, field)) {
      document[pointer_of(field)] = typed_value(config, field);
    }
  }
  return document;
}

json complete_document(const ConfigFile& file, int num_gpus) {
  json document = file.document;
  for (const auto& [key, value] : file.document.items()) {
    if (value.is_object() && value.empty()) {
      document.erase(key);
    }
  }
  if (document.value("compute_environment", "") == "AMAZON_SAGEMAKER") {
    return document; // its keys are different
  }
  LaunchConfig values = values_of(file);
  const bool is_open = !values.multi_gpu && !values.cpu &&
                       !document.contains("distributed_type");
  values.cpu = values.cpu || (is_open && is_several(values) && num_gpus == 0);
  json defaults = to_document(values);
  defaults.erase("gpu_ids"); // all GPUs are also the default
  for (const auto& [key, value] : defaults.items()) {
    document.emplace(key, value);
  }
  return document;
}

std::filesystem::path config_target(const std::filesystem::path& path) {
  constexpr int kMostLinks = 40; // the kernel's limit
  std::filesystem::path target = path;
  std::error_code error;
  for (int i = 0; i < kMostLinks; ++i) {
    const auto next = std::filesystem::read_symlink(target, error);
    if (error) {
      break;
    }
    target = target.parent_path() / next;
  }
  check_replaceable(target);
  return target;
}

void write_config_file(
    const std::filesystem::path& path,
    const json& document) {
  const bool is_json = path.extension() == ".json";
  try {
    const auto target = config_target(path);
    std::error_code ignored;
    // If this fails, creating the file reports the reason.
    std::filesystem::create_directories(target.parent_path(), ignored);
    AtomicFile file(target);
    file.write(is_json ? document.dump(2) + "\n" : to_yaml(document));
    file.commit();
  } catch (const SystemError& refused) {
    throw SystemError(
        str_cat(refused.what(), ", or choose another file with --config_file"));
  }
}

} // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
#include "core/config/config_file.h"

#include <unistd.h>

#include "accelerate/error.h"
#include "core/base/parse.h"
#include "core/base/printable.h"
#include "core/base/small_file.h"
#include "core/base/str.h"
#include "core/config/fields.h"
#include "core/config/foreign.h"
#include "core/config/nearest.h"
#include "core/config/yaml_tree.h"

namespace accelerate {
namespace {

using nlohmann::json;

const Field* find_field_by_key(const std::string& key) {
  for (const Field& field : launch_fields()) {
    if (!field.yaml_key.empty() && field.yaml_key == key) {
      return &field;
    }
  }
  return nullptr;
}

std::vector<std::string> known_keys(const std::string& prefix) {
  std::vector<std::string> keys;
  for (const Field& field : launch_fields()) {
    if (!field.yaml_key.empty() && field.yaml_key.starts_with(prefix)) {
      keys.emplace_back(field.yaml_key.substr(prefix.size()));
    }
  }
  if (prefix.empty()) {
    keys.insert(keys.end(), {"compute_environment", "distributed_type"});
  }
  return keys;
}

/// Sorts the entries of a file into values, kept entries and errors.
class FileReader {
 public:
  explicit FileReader(const std::filesystem::path& path) { file_.path = path; }

  ConfigFile read(const std::vector<YamlEntry>& entries) {
    for (const YamlEntry& entry : entries) {
      if (!entry.value.is_null()) {
        file_.document[entry.key] = entry.value;
      }
      read_top(entry);
    }
    enable_parallelism();
    ignore_count_if_alone();
    return std::move(file_);
  }

 private:
  std::string location(const YamlEntry& entry) const {
    return str_cat(file_.path.string(), ":", entry.line);
  }

  [[noreturn]] void refuse(const YamlEntry& entry, const std::string& what) {
    throw ConfigError(str_cat("[", location(entry), "] ", printable(what)));
  }

  void read_top(const YamlEntry& entry) {
    if (const Field* field = find_field_by_key(entry.key)) {
      if (!field->is_flag()) {
        keep_text(entry);
      }
      read_field(*field, entry);
    } else if (entry.key == "compute_environment") {
      read_compute_environment(entry);
    } else if (entry.key == "distributed_type") {
      read_distributed_type(entry);
    } else if (entry.key == "fp16") {
      read_fp16(entry);
    } else if (
        entry.key == "mpirun_config" || entry.key == "fsdp_config" ||
        entry.key == "deepspeed_config" || entry.key == "dynamo_config" ||
        entry.key == "parallelism_config") {
      read_section(entry);
    } else if (entry.key == "dynamo_backend") {
      read_dynamo_backend(entry);
    } else if (const ForeignKey* foreign = find_foreign_key(entry.key)) {
      read_foreign(*foreign, entry);
    } else {
      refuse_unknown(entry, "");
    }
  }

  [[noreturn]] void refuse_unknown(
      const YamlEntry& entry,
      const std::string& prefix) {
    const std::string nearest = nearest_name(entry.key, known_keys(prefix));
    refuse(
        entry,
        str_cat(
            "unknown key '",
            prefix,
            entry.key,
            "'; ",
            nearest.empty() ? "docs/options.md lists all keys"
                            : "did you mean '" + nearest + "'?"));
  }

  // The original writes null for options that were not set.
  static bool is_unset(const YamlEntry& entry) {
    return entry.value.is_null() ||
           (entry.value.is_structured() && entry.value.empty());
  }

  void read_field(const Field& field, const YamlEntry& entry) {
    if (is_unset(entry)) {
      return;
    }
    if (field.name == "num_processes" && entry.value == -1) {
      // The original writes -1 for jobs of Slurm.
      file_.values[std::string(field.name)] = {
          std::string(field.unset_word), location(entry)};
      return;
    }
    if (field.name == "mixed_precision" && entry.text == "fp8") {
      add_foreign(entry, find_foreign_key("fp8_config")->advice);
      return;
    }
    LayerValue value{entry.text, location(entry)};
    if (field.is_list() && entry.value.is_array()) {
      value.text = join_list(field, entry);
    } else {
      check_type(field, entry);
    }
    LaunchConfig scratch;
    assign_field(scratch, field, value);
    file_.values[std::string(field.name)] = std::move(value);
  }

  // An unquoted `no` is a boolean in YAML, and would be written as one.
  void keep_text(const YamlEntry& entry) {
    if (entry.value.is_boolean()) {
      file_.document[entry.key] = entry.text;
    }
  }

  std::string join_list(const Field& field, const YamlEntry& entry) {
    std::string text;
    for (const json& item : entry.value) {
      if (item.is_structured() || item.is_null()) {
        wrong_type(field, entry);
      }
      text += (text.empty() ? "" : ",") +
              (item.is_string() ? item.get<std::string>() : item.dump());
    }
    return text;
  }

  void check_type(const Field& field, const YamlEntry& entry) {
    const json& value = entry.value;
    const bool fits = field.is_flag()     ? value.is_boolean()
                      : field.is_number() ? value.is_number_integer()
                      : field.is_range()
                          ? value.is_number_integer() ||
                                entry.text.find(':') != std::string::npos
                          : !value.is_structured();
    if (!fits) {
      wrong_type(field, entry);
    }
  }

  static bool is_text(const Field& field) {
    return !field.is_flag() && !field.is_number() && !field.is_range() &&
           field.choices.empty();
  }

  [[noreturn]] void wrong_type(const Field& field, const YamlEntry& entry) {
    refuse(
        entry,
        str_cat(
            entry.key,
            " must be ",
            expectation(field),
            entry.value.is_string() && !is_text(field) ? " (without quotes)"
                                                       : "",
            ", not ",
            entry.value.dump()));
  }

  void read_compute_environment(const YamlEntry& entry) {
    if (entry.text == "AMAZON_SAGEMAKER") {
      add_foreign(entry, find_foreign_key("ec2_instance_type")->advice);
    } else if (entry.text != "LOCAL_MACHINE") {
      refuse(
          entry,
          str_cat(
              "compute_environment must be LOCAL_MACHINE, not ",
              entry.value.dump()));
    }
  }

  void read_distributed_type(const YamlEntry& entry) {
    keep_text(entry);
    const auto& type = entry.text;
    const LayerValue yes{"true", location(entry)};
    if (type == "MULTI_GPU") {
      file_.values["multi_gpu"] = yes;
    } else if (type == "MULTI_CPU") {
      file_.values["cpu"] = yes;
    } else if (type == "FSDP") {
      file_.values["use_fsdp"] = yes;
    } else if (type == "DEEPSPEED") {
      file_.values["use_deepspeed"] = yes;
    } else if (const auto advice = foreign_distributed_type(type);
               !advice.empty()) {
      add_foreign(entry, advice);
    } else if (type == "NO") {
      is_alone_ = true;
    } else {
      refuse(
          entry,
          str_cat(
              "distributed_type must be NO, MULTI_GPU, MULTI_CPU, FSDP or "
              "DEEPSPEED, not ",
              entry.value.dump()));
    }
  }

  // Files older than `mixed_precision` have `fp16`.
  void read_fp16(const YamlEntry& entry) {
    if (!entry.value.is_boolean()) {
      refuse(entry, "fp16 must be true or false; use mixed_precision instead");
    }
    file_.document.erase("fp16");
    if (entry.value.get<bool>() && !file_.values.contains("mixed_precision")) {
      file_.values["mixed_precision"] = {"fp16", location(entry)};
      file_.document.emplace("mixed_precision", "fp16");
    }
  }

  // Files older than `dynamo_config` have this key.
  void read_dynamo_backend(const YamlEntry& entry) {
    file_.document.erase(entry.key);
    if (entry.value.is_null()) {
      return;
    }
    read_field(*find_field("dynamo_backend"), entry);
    if (!is_off(entry.text)) {
      file_.document["dynamo_config"] = {{"dynamo_backend", entry.value}};
    }
  }

  void read_section(const YamlEntry& entry) {
    if (entry.value.is_null()) {
      return;
    }
    if (!entry.value.is_object()) {
      refuse(
          entry,
          str_cat(entry.key, " must be a mapping; indent its keys under it"));
    }
    const std::string prefix = entry.key + ".";
    for (const YamlEntry& inner : entry.entries) {
      const Field* field = find_field_by_key(prefix + inner.key);
      if (field == nullptr && entry.key != "mpirun_config") {
        field = find_field_by_key(prefix + long_name(entry.key, inner.key));
      }
      // The key has the same meaning inside and outside of the section.
      if (entry.key == "deepspeed_config" &&
          inner.key == "gradient_accumulation_steps") {
        field = find_field_by_key(inner.key);
      }
      if (field != nullptr) {
        read_field(*field, inner);
      } else if (entry.key == "parallelism_config") {
        read_other_parallelism(entry, inner);
      } else if (inner.key == "mpirun_ccl") { // removed with oneCCL's bindings
        file_.document[entry.key].erase(inner.key);
      } else if (entry.key != "mpirun_config") {
        note_unknown(inner, prefix);
      } else {
        refuse_unknown(inner, prefix);
      }
    }
  }

  // Reads sizes of unsupported dimensions. The original always writes them,
  // together with modes and backends.
  void read_other_parallelism(
      const YamlEntry& section,
      const YamlEntry& inner) {
    if (inner.key.ends_with("_size") && inner.text != "1" &&
        !is_off(inner.text)) {
      add_foreign(section, foreign_flag(section.key + "_"));
    }
  }

  // Unknown keys are not an error here: the original accepts any key, for later
  // versions.
  void note_unknown(const YamlEntry& entry, const std::string& prefix) {
    const std::string nearest = nearest_name(entry.key, known_keys(prefix));
    file_.notes.push_back(str_cat(
        prefix,
        entry.key,
        " (",
        location(entry),
        ") is ignored: ",
        nearest.empty() ? "unknown key" : "did you mean '" + nearest + "'?"));
  }

  // The full name of a key: files of the first versions and hand-written ones
  // have shorter names.
  static std::string long_name(
      const std::string& section,
      const std::string& key) {
    if (key == "fsdp_backward_prefetch_policy") {
      return "fsdp_backward_prefetch";
    }
    return section == "parallelism_config"
               ? section + "_" + key
               : section.substr(0, section.find('_') + 1) + key;
  }

  void read_foreign(const ForeignKey& foreign, const YamlEntry& entry) {
    const json& value = entry.value;
    const bool is_set =
        value.is_structured() ? asks(entry) : !is_off(entry.text);
    if (foreign.is_gone) {
      file_.document.erase(entry.key);
    }
    if (!is_set) {
      return;
    }
    if (foreign.kind == ForeignKind::kNote) {
      file_.notes.push_back(str_cat(
          entry.key, " (", location(entry), ") is ignored: ", foreign.advice));
    }
  }

  // A section whose values are all off (`ipex: false`) requests nothing.
  static bool asks(const YamlEntry& entry) {
    if (entry.value.is_array()) {
      return !entry.value.empty();
    }
    for (const YamlEntry& inner : entry.entries) {
      if (inner.value.is_structured() ? !inner.value.empty()
                                      : !is_off(inner.text)) {
        return true;
      }
    }
    return false;
  }

  // A size above 1 enables parallelism. A size of 1 does not, because the
  // original always writes it.
  void enable_parallelism() {
    for (const char* name :
         {"parallelism_config_dp_replicate_size",
          "parallelism_config_dp_shard_size",
          "parallelism_config_tp_size"}) {
      const auto size = file_.values.find(name);
      if (size != file_.values.end() &&
          parse_number<int>(size->second.text).value_or(1) > 1) {
        file_.values["use_parallelism_config"] = {
            "true", size->second.location};
      }
    }
  }

  // Example files say NO next to the number of processes from another file. The
  // original then starts one process.
  void ignore_count_if_alone() {
    const auto found = file_.values.find("num_processes");
    if (!is_alone_ || file_.values.contains("use_parallelism_config") ||
        found == file_.values.end() ||
        parse_number<int>(found->second.text).value_or(1) <= 1) {
      return;
    }
    file_.notes.push_back(str_cat(
        "num_processes ",
        found->second.text,
        " (",
        found->second.location,
        ") is ignored because distributed_type is NO; use MULTI_GPU, "
        "MULTI_CPU or --num_processes to start several processes"));
    found->second.text = "1";
  }

  void add_foreign(const YamlEntry& entry, std::string_view advice) {
    file_.foreign.push_back(
        {entry.key, entry.text, location(entry), std::string(advice)});
  }

  ConfigFile file_;
  bool is_alone_ = false;
};

} // namespace

ConfigFile parse_config(
    std::string_view text,
    const std::filesystem::path& path) {
  return FileReader(path).read(parse_yaml_mapping(text, path));
}

ConfigFile read_config_file(const std::filesystem::path& path) {
  if (path.empty()) {
    throw ConfigError("--config_file is empty. Pass a file, or leave it out");
  }
  if (access(path.c_str(), R_OK) != 0) {
    throw ConfigError(str_cat(
        "[config] cannot read the configuration file '",
        path.string(),
        "'; check the path, or create the file with `accelerate config "
        "--config_file ",
        path.string(),
        "`"));
  }
  return parse_config(read_small_file(path, "the configuration file"), path);
}

} // namespace accelerate

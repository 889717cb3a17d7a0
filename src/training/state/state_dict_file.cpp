// SPDX-License-Identifier: Apache-2.0
// Writes a StateDict to one file.
#include <ATen/ATen.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "accelerate/error.h"
#include "accelerate/safetensors.h"
#include "accelerate/state/state_dict.h"
#include "core/base/printable.h"
#include "core/base/str.h"
#include "core/base/utf8.h"
#include "training/state/file_tensors.h"

namespace accelerate {
namespace {

constexpr const char* kValuesKey = "accelerate.state";

/// Doubles are stored as their bits, because JSON cannot represent some and
/// rounds others.
nlohmann::json json_of_value(double value) {
  int64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return {{"double", bits}};
}

StateValue value_of_json(const nlohmann::json& value) {
  if (value.is_boolean()) {
    return value.get<bool>();
  }
  if (value.is_number_integer()) {
    return value.get<int64_t>();
  }
  if (value.is_string()) {
    return value.get<std::string>();
  }
  const auto bits = value.at("double").get<int64_t>();
  double number = 0;
  std::memcpy(&number, &bits, sizeof(bits));
  return number;
}

void check_text(const std::string& name, const std::string& text) {
  if (const auto position = find_invalid_utf8(text)) {
    throw UsageError(str_cat(
        "[save] The string '",
        printable(name),
        "' is not valid UTF-8 at byte ",
        *position,
        ". Store bytes as a uint8 tensor"));
  }
}

} // namespace

void save(const StateDict& state, const std::filesystem::path& file) {
  FileTensors tensors("[save]", "Convert it first");
  auto values = nlohmann::json::object();
  for (const auto& [name, value] : state) {
    check_text(name, name);
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      tensors.add(name, *tensor);
    } else if (std::holds_alternative<TensorSlice>(value)) {
      throw UsageError(str_cat(
          "[save] '",
          name,
          "' is this rank's shard of a tensor. Use Accelerator::save_state "
          "for sharded state"));
    } else if (const auto* number = std::get_if<double>(&value)) {
      values[name] = json_of_value(*number);
    } else if (const auto* flag = std::get_if<bool>(&value)) {
      values[name] = *flag;
    } else if (const auto* whole = std::get_if<int64_t>(&value)) {
      values[name] = *whole;
    } else {
      check_text(name, std::get<std::string>(value));
      values[name] = std::get<std::string>(value);
    }
  }
  safetensors::write_file(
      file,
      tensors.views(),
      {.metadata = {{"format", "pt"}, {kValuesKey, values.dump()}}});
}

StateDict load(const std::filesystem::path& file) {
  const safetensors::File content(file);
  StateDict state;
  for (const auto& view : content.tensors()) {
    state.set(view.name, tensor_in(content, view).clone());
  }
  const auto values = content.metadata().find(kValuesKey);
  if (values == content.metadata().end()) {
    throw DataError(str_cat(
        "[load] ",
        file.string(),
        " was not written by accelerate::save. Read other safetensors files "
        "with safetensors.h"));
  }
  try {
    const auto parsed = nlohmann::json::parse(values->second);
    for (const auto& [name, value] : parsed.items()) {
      state.set(name, value_of_json(value));
    }
  } catch (const nlohmann::json::exception& error) {
    throw DataError(
        str_cat("[load] ", file.string(), " is damaged: ", error.what()));
  }
  return state;
}

} // namespace accelerate

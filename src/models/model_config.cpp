// SPDX-License-Identifier: Apache-2.0
#include "accelerate/models/model_config.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate::models {

struct ModelConfig::Impl {
  nlohmann::json values;
  std::string source;

  // The value under `key`; null if the key is missing.
  const nlohmann::json& at(const char* key) const {
    static const nlohmann::json null;
    const auto found = values.find(key);
    return found == values.end() ? null : *found;
  }
};

namespace {

std::string shown(const nlohmann::json& value) {
  if (value.is_structured()) {
    return str_cat("an ", value.type_name());
  }
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

[[noreturn]] void refuse_value(
    const ModelConfig& config,
    const char* key,
    const nlohmann::json& value,
    const char* expected) {
  config.refuse(
      str_cat("'", key, "' is ", shown(value), ", expected ", expected));
}

} // namespace

ModelConfig ModelConfig::read(const std::filesystem::path& folder) {
  if (!std::filesystem::is_directory(folder)) {
    throw ConfigError(str_cat(
        "[from_pretrained] ",
        folder.string(),
        " is not a folder. Pass the path of a downloaded Hugging Face model"));
  }
  const auto path = folder / "config.json";
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw ConfigError(str_cat(
        "[from_pretrained] ",
        folder.string(),
        " has no readable config.json. Pass a complete model folder, with "
        "config.json and model.safetensors"));
  }
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return parse(text, path.string());
}

ModelConfig ModelConfig::parse(std::string_view text, std::string source) {
  auto impl = std::make_unique<Impl>();
  impl->values = nlohmann::json::parse(text, nullptr, false);
  impl->source = std::move(source);
  ModelConfig config(std::move(impl));
  if (!config.impl_->values.is_object()) {
    config.refuse(
        config.impl_->values.is_discarded()
            ? "The file is not JSON. Download it again"
            : "The file is not a JSON object");
  }
  return config;
}

ModelConfig::ModelConfig(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ModelConfig::ModelConfig(const ModelConfig& other)
    : impl_(std::make_unique<Impl>(*other.impl_)) {}
ModelConfig::ModelConfig(ModelConfig&& other) noexcept = default;
ModelConfig& ModelConfig::operator=(ModelConfig other) noexcept {
  impl_ = std::move(other.impl_);
  return *this;
}
ModelConfig::~ModelConfig() = default;

std::string ModelConfig::model_type() const {
  const std::string type = text("model_type", "");
  if (type.empty()) {
    refuse(
        "'model_type' is missing. Set it to the architecture of the weights, "
        "such as \"bert\"");
  }
  return type;
}

bool ModelConfig::has(const char* key) const {
  return !impl_->at(key).is_null();
}

int64_t ModelConfig::size(const char* key, int64_t fallback) const {
  constexpr int64_t kMax = int64_t{1} << 31;
  const auto& value = impl_->at(key);
  if (value.is_null()) {
    return fallback;
  }
  if (!value.is_number_integer() || value.get<int64_t>() < 1 ||
      value.get<int64_t>() > kMax) {
    refuse_value(*this, key, value, "an integer above 0");
  }
  return value.get<int64_t>();
}

std::optional<int64_t> ModelConfig::integer(const char* key) const {
  const auto& value = impl_->at(key);
  if (value.is_null()) {
    return std::nullopt;
  }
  if (!value.is_number_integer()) {
    refuse_value(*this, key, value, "an integer");
  }
  return value.get<int64_t>();
}

std::vector<int64_t> ModelConfig::integers(const char* key) const {
  const auto& value = impl_->at(key);
  if (!value.is_array()) {
    const auto one = integer(key);
    return one ? std::vector<int64_t>{*one} : std::vector<int64_t>{};
  }
  std::vector<int64_t> numbers;
  for (const auto& element : value) {
    if (!element.is_number_integer()) {
      refuse_value(*this, key, element, "integers");
    }
    numbers.push_back(element.get<int64_t>());
  }
  return numbers;
}

double ModelConfig::number(const char* key, double fallback) const {
  const auto& value = impl_->at(key);
  if (value.is_null()) {
    return fallback;
  }
  if (!value.is_number()) {
    refuse_value(*this, key, value, "a number");
  }
  return value.get<double>();
}

bool ModelConfig::boolean(const char* key, bool fallback) const {
  const auto& value = impl_->at(key);
  if (value.is_null()) {
    return fallback;
  }
  if (!value.is_boolean()) {
    refuse_value(*this, key, value, "true or false");
  }
  return value.get<bool>();
}

std::string ModelConfig::text(const char* key, const std::string& fallback)
    const {
  const auto& value = impl_->at(key);
  if (value.is_null()) {
    return fallback;
  }
  if (!value.is_string()) {
    refuse_value(*this, key, value, "a text");
  }
  return value.get<std::string>();
}

ModelConfig ModelConfig::section(const char* key) const {
  const auto& value = impl_->at(key);
  if (!value.is_null() && !value.is_object()) {
    refuse_value(*this, key, value, "an object");
  }
  auto impl = std::make_unique<Impl>();
  impl->values = value.is_null() ? nlohmann::json::object() : value;
  impl->source = str_cat(impl_->source, ": ", key);
  return ModelConfig(std::move(impl));
}

int64_t ModelConfig::num_labels() const {
  const auto& names = impl_->at("id2label");
  if (names.is_object() && !names.empty()) {
    return static_cast<int64_t>(names.size());
  }
  return size("num_labels", 2);
}

std::vector<std::string> ModelConfig::labels() const {
  const int64_t count = num_labels();
  const auto& names = impl_->at("id2label");
  std::vector<std::string> labels;
  for (int64_t i = 0; i < count; ++i) {
    const auto found =
        names.is_object() ? names.find(std::to_string(i)) : names.end();
    const bool is_named = found != names.end() && found->is_string();
    labels.push_back(
        is_named ? found->get<std::string>() : str_cat("LABEL_", i));
  }
  return labels;
}

void ModelConfig::set_labels(const std::vector<std::string>& labels) {
  auto by_id = nlohmann::json::object();
  auto by_name = nlohmann::json::object();
  for (size_t i = 0; i < labels.size(); ++i) {
    by_id[std::to_string(i)] = labels[i];
    by_name[labels[i]] = i;
  }
  impl_->values["id2label"] = std::move(by_id);
  impl_->values["label2id"] = std::move(by_name);
  impl_->values.erase("num_labels");
}

void ModelConfig::set(const char* key, const std::string& value) {
  impl_->values[key] = value;
}
void ModelConfig::set_integer(const char* key, int64_t value) {
  impl_->values[key] = value;
}
void ModelConfig::set(const char* key, double value) {
  impl_->values[key] = value;
}
void ModelConfig::set(const char* key, bool value) {
  impl_->values[key] = value;
}
void ModelConfig::set(const char* key, const std::vector<std::string>& values) {
  impl_->values[key] = values;
}

std::string ModelConfig::json() const {
  return impl_->values.dump(2) + '\n';
}

const std::string& ModelConfig::source() const {
  return impl_->source;
}

void ModelConfig::refuse(const std::string& what) const {
  throw ConfigError(str_cat("[ModelConfig] ", impl_->source, ": ", what));
}

} // namespace accelerate::models

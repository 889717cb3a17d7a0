// SPDX-License-Identifier: Apache-2.0
// A node of a JSON file that knows its path, for messages.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate::text {

/// Borrows the JSON value. Every getter throws a `ConfigError` that names the
/// file and path if the value is missing or has another type.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string file, std::string path = {})
      : value_(&value), file_(std::move(file)), path_(std::move(path)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& path() const { return path_; }
  bool is_null() const { return value_->is_null(); }

  [[noreturn]] void refuse(const std::string& what) const {
    throw ConfigError(str_cat(
        "[Tokenizer] ",
        file_,
        ": ",
        path_.empty() ? "the file" : path_,
        " ",
        what));
  }

  bool has(const char* key) const {
    return value_->is_object() && value_->contains(key) &&
           !(*value_)[key].is_null();
  }

  JsonNode at(const std::string& key) const {
    expect(value_->is_object(), "an object");
    const auto found = value_->find(key);
    if (found == value_->end()) {
      refuse(str_cat("has no '", key, "'"));
    }
    return {*found, file_, path_.empty() ? key : str_cat(path_, ".", key)};
  }

  JsonNode at(size_t index) const {
    return {(*value_)[index], file_, str_cat(path_, "[", index, "]")};
  }

  size_t array_size() const {
    expect(value_->is_array(), "an array");
    return value_->size();
  }

  const std::string& text() const {
    expect(value_->is_string(), "a string");
    return value_->get_ref<const std::string&>();
  }

  bool boolean() const {
    expect(value_->is_boolean(), "true or false");
    return value_->get<bool>();
  }

  static bool is_number(const nlohmann::json& value, int32_t max) {
    return value.is_number_integer() &&
           (value.is_number_unsigned() || value.get<int64_t>() >= 0) &&
           value.get<uint64_t>() <= static_cast<uint64_t>(max);
  }

  int32_t number(int32_t max) const {
    if (!is_number(*value_, max)) {
      expect(false, str_cat("an integer from 0 to ", max));
    }
    return value_->get<int32_t>();
  }

  bool boolean_or(const char* key, bool fallback) const {
    return has(key) ? at(key).boolean() : fallback;
  }

  /// Rejects keys that no reader uses, because they might change the meaning.
  void allow_keys(std::initializer_list<std::string_view> keys) const {
    expect(value_->is_object(), "an object");
    for (const auto& [key, value] : value_->items()) {
      bool is_known = false;
      for (const std::string_view allowed : keys) {
        is_known = is_known || key == allowed;
      }
      if (!is_known) {
        refuse(str_cat("has the key '", key, "', which is not supported"));
      }
    }
  }

  /// The `type` of a node, for messages and decisions.
  const std::string& type() const { return at("type").text(); }

  [[noreturn]] void refuse_type(const char* read) const {
    refuse(str_cat(
        "is of type '",
        type(),
        "', which is not supported. Supported: ",
        read));
  }

 private:
  void expect(bool condition, const std::string& what) const {
    if (!condition) {
      refuse(str_cat("is ", description(), ", expected ", what));
    }
  }

  // Does not serialise arrays and objects: that is recursive, and a file may
  // nest them as deep as it is long.
  std::string description() const {
    if (value_->is_structured()) {
      return str_cat("an ", value_->type_name());
    }
    const std::string text =
        value_->dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return text.size() > 60 ? text.substr(0, 60) + "..." : text;
  }

  const nlohmann::json* value_;
  std::string file_;
  std::string path_;
};

} // namespace accelerate::text

// SPDX-License-Identifier: Apache-2.0
// Event-based JSON reading without a tree: a hostile text uses no more memory
// than what its reader keeps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace accelerate::safetensors {

/// Calls the virtual functions for each value. A key for which `on_key` returns
/// false is skipped with its value.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;

  /// `text` must be UTF-8.
  void read(std::string_view text);

 protected:
  enum class Kind { kString, kUnsigned, kObject, kArray, kOther };
  static const char* describe(Kind kind);

  virtual bool on_key(std::string& key) = 0;
  /// A value that is not skipped, with its `text` or `number`. An integer that
  /// does not fit into 64 bits or has a sign is kOther.
  virtual void on_value(Kind kind, std::string& text, std::uint64_t number) = 0;
  /// The end of an object or array passed to `on_value`.
  virtual void on_end() = 0;
  /// A number with a fraction, an exponent or a sign. By default, it is a value
  /// of kind kOther.
  virtual void on_number(double value);
  virtual void on_null();
  /// Throws the error type for this kind of file.
  [[noreturn]] virtual void fail(const std::string& what) const = 0;

 private:
  class Adapter;

  bool is_skipped() const { return skip_next_ || skip_depth_ != 0; }
  void skip_value();
  void key(std::string& text);
  void value(Kind kind, std::string& text, std::uint64_t number);
  void begin(Kind kind);
  void end();

  std::string none_;
  std::size_t depth_ = 0;
  /// The depth at which skipping began. 0 if nothing is skipped.
  std::size_t skip_depth_ = 0;
  bool skip_next_ = false;
};

} // namespace accelerate::safetensors

// SPDX-License-Identifier: Apache-2.0
// JSON read event by event: no tree is built, so a hostile text costs no more
// memory than what is kept of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace accelerate::safetensors {

/// Calls the virtual functions as values come. A key for which `on_key`
/// returns false is skipped with its value.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;

  /// `text` must be UTF-8.
  void read(std::string_view text);

 protected:
  enum class Kind { kString, kUnsigned, kObject, kArray, kOther };
  static const char* describe(Kind kind);

  virtual bool on_key(std::string& key) = 0;
  /// A value that is not skipped; `text` and `number` where it has one. A
  /// whole number that does not fit 64 bits, or one with a sign, is kOther.
  virtual void on_value(Kind kind, std::string& text, std::uint64_t number) = 0;
  /// The end of an object or an array that `on_value` announced.
  virtual void on_end() = 0;
  /// A number with a fraction, an exponent or a sign: by default kOther.
  virtual void on_number(double value);
  virtual void on_null();
  /// Throws the error that fits the kind of file.
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
  /// The depth at which skipping began; 0 while nothing is skipped.
  std::size_t skip_depth_ = 0;
  bool skip_next_ = false;
};

} // namespace accelerate::safetensors

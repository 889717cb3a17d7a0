// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/json_events.h"

#include "core/base/str.h"

namespace accelerate::safetensors {
namespace {

// The limit of Rust's serde_json; the format itself needs three.
constexpr std::size_t kMaxDepth = 128;

} // namespace

class JsonEvents::Adapter : public nlohmann::json_sax<nlohmann::json> {
 public:
  explicit Adapter(JsonEvents& events) : events_(events) {}

  bool null() override {
    if (events_.is_skipped()) {
      events_.skip_value();
    } else {
      events_.on_null();
    }
    return true;
  }
  bool boolean(bool) override { return other(); }
  bool number_integer(number_integer_t value) override {
    return number(static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    events_.value(Kind::kUnsigned, events_.none_, value);
    return true;
  }
  bool number_float(number_float_t value, const string_t&) override {
    return number(value);
  }
  bool string(string_t& value) override {
    events_.value(Kind::kString, value, 0);
    return true;
  }
  bool binary(binary_t&) override { return other(); }
  bool start_object(std::size_t) override {
    events_.begin(Kind::kObject);
    return true;
  }
  bool start_array(std::size_t) override {
    events_.begin(Kind::kArray);
    return true;
  }
  bool key(string_t& value) override {
    events_.key(value);
    return true;
  }
  bool end_object() override {
    events_.end();
    return true;
  }
  bool end_array() override {
    events_.end();
    return true;
  }
  bool parse_error(
      std::size_t position,
      const std::string&,
      const nlohmann::json::exception&) override {
    events_.fail(str_cat("is not JSON at byte ", position));
    return false;
  }

 private:
  bool other() {
    events_.value(Kind::kOther, events_.none_, 0);
    return true;
  }
  bool number(double value) {
    if (events_.is_skipped()) {
      events_.skip_value();
    } else {
      events_.on_number(value);
    }
    return true;
  }

  JsonEvents& events_;
};

void JsonEvents::read(std::string_view text) {
  // The parser would skip a byte order mark and stop at a zero byte.
  if (text.starts_with("\xEF\xBB\xBF") || text.find('\0') != text.npos) {
    fail("has a byte order mark or a zero byte, which JSON does not allow");
  }
  Adapter adapter(*this);
  nlohmann::json::sax_parse(text.begin(), text.end(), &adapter);
}

const char* JsonEvents::describe(Kind kind) {
  switch (kind) {
    case Kind::kString:
      return "a string";
    case Kind::kUnsigned:
      return "a number";
    case Kind::kObject:
      return "an object";
    case Kind::kArray:
      return "an array";
    case Kind::kOther:
      break;
  }
  return "null, a boolean, or a number that is not a 64-bit integer";
}

void JsonEvents::on_number(double) {
  on_value(Kind::kOther, none_, 0);
}

void JsonEvents::on_null() {
  on_value(Kind::kOther, none_, 0);
}

void JsonEvents::skip_value() {
  skip_next_ = false;
}

void JsonEvents::key(std::string& text) {
  if (skip_depth_ == 0) {
    skip_next_ = !on_key(text);
  }
}

void JsonEvents::value(Kind kind, std::string& text, std::uint64_t number) {
  if (is_skipped()) {
    skip_value();
  } else {
    on_value(kind, text, number);
  }
}

void JsonEvents::begin(Kind kind) {
  if (++depth_ > kMaxDepth) {
    fail(str_cat("is nested deeper than ", kMaxDepth, " levels"));
  }
  if (skip_next_) {
    skip_depth_ = depth_;
    skip_next_ = false;
  } else if (skip_depth_ == 0) {
    on_value(kind, none_, 0);
  }
}

void JsonEvents::end() {
  if (skip_depth_ == 0) {
    on_end();
  } else if (skip_depth_ == depth_) {
    skip_depth_ = 0;
  }
  --depth_;
}

} // namespace accelerate::safetensors

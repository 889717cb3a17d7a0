// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/header_json.h"

#include <unordered_set>

#include "core/base/str.h"
#include "core/safetensors/json_events.h"
#include "core/safetensors/shown.h"

namespace accelerate::safetensors {
namespace {

constexpr const char* kMetadataKey = "__metadata__";

class HeaderReader : public JsonEvents {
 public:
  explicit HeaderReader(const std::string& source) : source_(source) {}

  HeaderJson take() {
    check_names();
    return std::move(header_);
  }

 private:
  enum class Section { kStart, kTop, kMetadata, kTensor, kShape, kOffsets };
  enum class Field { kDtype, kShape, kOffsets };

  bool on_key(std::string& key) override;
  void on_value(Kind kind, std::string& text, std::uint64_t number) override;
  void on_null() override;
  void on_end() override;
  [[noreturn]] void fail(const std::string& what) const override;

  void begin_entry(Kind kind);
  void set_field(Kind kind, const std::string& text);
  void end_tensor();
  void check_names() const;
  void expect(Kind got, Kind wanted) const;
  [[noreturn]] void fail_twice(const std::string& key) const;
  std::string where() const;

  const std::string& source_;
  HeaderJson header_;
  Section section_ = Section::kStart;
  std::string key_; // of the entry, or of the metadata
  bool has_metadata_ = false;
  Field field_ = Field::kDtype;
  bool has_field_[3] = {};
  std::size_t num_offsets_ = 0;
};

std::string HeaderReader::where() const {
  const bool is_in_tensor = section_ == Section::kTensor ||
                            section_ == Section::kShape ||
                            section_ == Section::kOffsets;
  return str_cat(
      "[safetensors] the header of '",
      source_,
      is_in_tensor ? "', tensor " + shown(header_.entries.back().name) + ","
                   : "'");
}

void HeaderReader::fail(const std::string& what) const {
  throw InvalidJsonError(str_cat(
      where(),
      " ",
      what,
      "; expected {name: {dtype, shape, data_offsets}}. Write the file again"));
}

void HeaderReader::fail_twice(const std::string& key) const {
  throw DuplicateNameError(str_cat(
      where(),
      " has ",
      shown(key),
      " twice, so its value is ambiguous; write the file again"));
}

void HeaderReader::expect(Kind got, Kind wanted) const {
  if (got != wanted) {
    fail(str_cat("has ", describe(got), " instead of ", describe(wanted)));
  }
}

bool HeaderReader::on_key(std::string& key) {
  if (section_ == Section::kTensor) {
    static constexpr const char* kFields[] = {"dtype", "shape", "data_offsets"};
    for (int i = 0; i < 3; ++i) {
      if (key == kFields[i]) {
        if (has_field_[i]) {
          fail_twice(key);
        }
        has_field_[i] = true;
        field_ = static_cast<Field>(i);
        return true;
      }
    }
    return false;
  }
  const bool is_twice = section_ == Section::kMetadata
                            ? header_.metadata.contains(key)
                            : key == kMetadataKey && has_metadata_;
  if (is_twice) {
    fail_twice(key);
  }
  key_ = std::move(key);
  return true;
}

void HeaderReader::on_value(
    Kind kind,
    std::string& text,
    std::uint64_t number) {
  switch (section_) {
    case Section::kStart:
      expect(kind, Kind::kObject);
      section_ = Section::kTop;
      break;
    case Section::kTop:
      begin_entry(kind);
      break;
    case Section::kMetadata:
      expect(kind, Kind::kString);
      header_.metadata.emplace(std::move(key_), std::move(text));
      break;
    case Section::kTensor:
      set_field(kind, text);
      break;
    case Section::kShape:
      expect(kind, Kind::kUnsigned);
      header_.entries.back().shape.push_back(number);
      break;
    case Section::kOffsets: {
      expect(kind, Kind::kUnsigned);
      HeaderEntry& entry = header_.entries.back();
      (num_offsets_++ == 0 ? entry.begin : entry.end) = number;
      break;
    }
  }
}

void HeaderReader::begin_entry(Kind kind) {
  expect(kind, Kind::kObject);
  if (key_ == kMetadataKey) {
    has_metadata_ = true;
    section_ = Section::kMetadata;
    return;
  }
  header_.entries.push_back({.name = std::move(key_), .shape = {}});
  std::fill(std::begin(has_field_), std::end(has_field_), false);
  num_offsets_ = 0;
  section_ = Section::kTensor;
}

void HeaderReader::set_field(Kind kind, const std::string& text) {
  if (field_ != Field::kDtype) {
    expect(kind, Kind::kArray);
    section_ = field_ == Field::kShape ? Section::kShape : Section::kOffsets;
    return;
  }
  expect(kind, Kind::kString);
  const auto dtype = try_parse_dtype(text);
  if (!dtype) {
    throw UnknownDtypeError(str_cat(
        where(),
        " has the dtype ",
        shown(text),
        ", which is not a known dtype (BOOL, U8, ..., F32, F64); a newer "
        "version may support it"));
  }
  header_.entries.back().dtype = *dtype;
}

void HeaderReader::on_null() {
  // The Rust library writes a missing map as null.
  if (section_ == Section::kTop && key_ == kMetadataKey) {
    has_metadata_ = true;
    return;
  }
  JsonEvents::on_null();
}

void HeaderReader::on_end() {
  if (section_ == Section::kOffsets && num_offsets_ != 2) {
    fail(str_cat("has ", num_offsets_, " data_offsets instead of 2"));
  }
  if (section_ == Section::kTensor) {
    end_tensor();
  }
  const bool is_in_field =
      section_ == Section::kShape || section_ == Section::kOffsets;
  section_ = is_in_field                 ? Section::kTensor
             : section_ == Section::kTop ? Section::kStart
                                         : Section::kTop;
}

void HeaderReader::end_tensor() {
  if (!has_field_[0] || !has_field_[1] || !has_field_[2]) {
    fail("has no dtype, shape or data_offsets");
  }
}

void HeaderReader::check_names() const {
  std::unordered_set<std::string_view> names;
  names.reserve(header_.entries.size());
  for (const auto& entry : header_.entries) {
    if (!names.insert(entry.name).second) {
      fail_twice(entry.name);
    }
  }
}

std::string escaped(char c) {
  switch (c) {
    case '"':
      return "\\\"";
    case '\\':
      return "\\\\";
    case '\b':
      return "\\b";
    case '\t':
      return "\\t";
    case '\n':
      return "\\n";
    case '\f':
      return "\\f";
    case '\r':
      return "\\r";
    default:
      break;
  }
  constexpr const char* kDigits = "0123456789abcdef";
  return {'\\', 'u', '0', '0', kDigits[c / 16], kDigits[c % 16]};
}

// Uses exactly the escapes of Rust's serde_json.
void append_text(std::string& out, std::string_view text) {
  out += '"';
  std::size_t done = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (static_cast<unsigned char>(c) < 0x20 || c == '"' || c == '\\') {
      out.append(text, done, i - done);
      out += escaped(c);
      done = i + 1;
    }
  }
  out.append(text, done);
  out += '"';
}

void append_entry(std::string& out, const HeaderEntry& entry) {
  append_text(out, entry.name);
  out += ":{\"dtype\":\"";
  out += dtype_name(entry.dtype);
  out += "\",\"shape\":[";
  for (std::size_t i = 0; i < entry.shape.size(); ++i) {
    out += (i == 0 ? "" : ",") + std::to_string(entry.shape[i]);
  }
  out += "],\"data_offsets\":[" + std::to_string(entry.begin) + ',' +
         std::to_string(entry.end) + "]}";
}

} // namespace

HeaderJson parse_header_json(std::string_view text, const std::string& source) {
  HeaderReader reader(source);
  reader.read(text);
  return reader.take();
}

std::string format_header_json(
    const Metadata& metadata,
    const std::vector<HeaderEntry>& entries) {
  std::string out = "{";
  const auto separate = [&] {
    if (out.back() != '{') {
      out += ',';
    }
  };
  if (!metadata.empty()) {
    append_text(out, kMetadataKey);
    out += ":{";
    for (const auto& [key, value] : metadata) {
      separate();
      append_text(out, key);
      out += ':';
      append_text(out, value);
    }
    out += '}';
  }
  for (const auto& entry : entries) {
    separate();
    append_entry(out, entry);
  }
  out += '}';
  out.resize((out.size() + 7) / 8 * 8, ' ');
  return out;
}

} // namespace accelerate::safetensors

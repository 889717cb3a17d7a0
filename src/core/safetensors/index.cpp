// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "accelerate/files/safetensors_index.h"
#include "core/base/mapped_file.h"
#include "core/base/str.h"
#include "core/base/utf8.h"
#include "core/safetensors/json_events.h"
#include "core/safetensors/shown.h"

namespace accelerate::safetensors {
namespace {

class IndexReader : public JsonEvents {
 public:
  explicit IndexReader(const std::string& source) : source_(source) {}

  ShardIndex take() {
    if (!has_weight_map_) {
      fail("has no weight_map");
    }
    return std::move(index_);
  }

  [[noreturn]] void fail(const std::string& what) const override {
    throw InvalidIndexError(str_cat(
        "[safetensors] the index '",
        source_,
        "' ",
        what,
        "; expected {metadata: {total_size}, weight_map: {tensor: file}}. "
        "Write or download it again"));
  }

 private:
  enum class Section { kStart, kTop, kMetadata, kWeightMap };

  bool on_key(std::string& key) override {
    if (section_ == Section::kTop) {
      const bool is_known = key == "metadata" || key == "weight_map";
      key_ = std::move(key);
      return is_known;
    }
    if (section_ == Section::kMetadata) {
      return key == "total_size";
    }
    key_ = std::move(key);
    return true;
  }

  void on_value(Kind kind, std::string& text, std::uint64_t number) override {
    switch (section_) {
      case Section::kStart:
        expect(kind, Kind::kObject);
        section_ = Section::kTop;
        break;
      case Section::kTop:
        expect(kind, Kind::kObject);
        begin_section();
        break;
      case Section::kMetadata:
        expect(kind, Kind::kUnsigned);
        index_.total_size = number;
        break;
      case Section::kWeightMap:
        expect(kind, Kind::kString);
        add_weight(text);
        break;
    }
  }

  // Older writers used a floating-point number.
  void on_number(double value) override {
    constexpr double kMaxExact = 9007199254740992.0; // 2^53
    if (section_ == Section::kMetadata && value >= 0 && value <= kMaxExact) {
      index_.total_size = static_cast<std::uint64_t>(value);
      return;
    }
    JsonEvents::on_number(value);
  }

  void on_null() override {
    if (section_ != Section::kMetadata &&
        !(section_ == Section::kTop && key_ == "metadata")) {
      JsonEvents::on_null();
    }
  }

  void on_end() override {
    section_ = section_ == Section::kTop ? Section::kStart : Section::kTop;
  }

  void begin_section() {
    if (key_ == "metadata") {
      section_ = Section::kMetadata;
      return;
    }
    if (has_weight_map_) {
      fail("has weight_map twice");
    }
    has_weight_map_ = true;
    section_ = Section::kWeightMap;
  }

  void add_weight(std::string& file) {
    // A file name with a path could reach any file on the machine.
    if (file.empty() || file == "." || file == ".." ||
        file.find_first_of(std::string_view("/\\\0", 3)) != file.npos) {
      fail(str_cat(
          "assigns tensor ",
          shown(key_),
          " to ",
          shown(file),
          ", which is not the name of a file in the same folder"));
    }
    const auto [at, is_new] = index_.weight_map.emplace(key_, std::move(file));
    if (!is_new) {
      fail(str_cat("has tensor ", shown(key_), " twice"));
    }
  }

  void expect(Kind got, Kind wanted) const {
    if (got != wanted) {
      fail(str_cat("has ", describe(got), " instead of ", describe(wanted)));
    }
  }

  const std::string& source_;
  ShardIndex index_;
  Section section_ = Section::kStart;
  std::string key_;
  bool has_weight_map_ = false;
};

} // namespace

ShardIndex parse_index(std::string_view text, const std::string& source) {
  IndexReader reader(source);
  if (text.size() > kMaxHeaderBytes) {
    reader.fail(str_cat(
        "has ", text.size(), " bytes, but at most 100000000 are allowed"));
  }
  if (const auto at = find_invalid_utf8(text)) {
    reader.fail(str_cat("is not valid UTF-8 at byte ", *at));
  }
  reader.read(text);
  return reader.take();
}

ShardIndex read_index(const std::filesystem::path& path) {
  const MappedFile file(path, "safetensors", "safetensors file");
  return parse_index(
      {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()},
      path.string());
}

std::string format_index(const ShardIndex& index) {
  nlohmann::json json = {
      {"metadata", nlohmann::json::object()}, {"weight_map", index.weight_map}};
  if (index.total_size) {
    json["metadata"]["total_size"] = *index.total_size;
  }
  return json.dump(2, ' ', /*ensure_ascii=*/true) + '\n';
}

} // namespace accelerate::safetensors

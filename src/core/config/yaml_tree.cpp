// SPDX-License-Identifier: Apache-2.0
#include "core/config/yaml_tree.h"

#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <charconv>
#include <set>
#include <sstream>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/base/utf8.h"

namespace accelerate {
namespace {

using nlohmann::json;

constexpr size_t kMaxBytes = 1 << 20;
constexpr int kMaxDepth = 32;
constexpr int kMaxNodes = 20000;
constexpr const char* kTooDeep =
    "the file is nested too deeply or too large for a configuration file";

[[noreturn]] void
refuse(const std::filesystem::path& path, int line, const std::string& what) {
  throw ConfigError(str_cat("[", path.string(), ":", line, "] ", what));
}

// Booleans and nulls of YAML 1.1, as in Python's loader.
json type_plain(const std::string& text) {
  for (const char* word : {"", "~", "null", "Null", "NULL"}) {
    if (text == word) {
      return nullptr;
    }
  }
  for (const char* word :
       {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"}) {
    if (text == word) {
      return true;
    }
  }
  for (const char* word :
       {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"}) {
    if (text == word) {
      return false;
    }
  }
  const char* begin = text.data() + (text[0] == '+' ? 1 : 0);
  const char* end = text.data() + text.size();
  int64_t whole = 0;
  const auto [whole_stop, whole_error] = std::from_chars(begin, end, whole);
  if (whole_error == std::errc() && whole_stop == end) {
    return whole;
  }
  double real = 0;
  const auto [stop, error] = std::from_chars(begin, end, real);
  // Python's loader reads a number without a dot, such as 1e8, as a string.
  if (error == std::errc() && stop == end &&
      text.find('.') != std::string::npos) {
    return real;
  }
  return text;
}

/// Converts nodes to entries; the budget limits the expansion of aliases.
class TreeReader {
 public:
  explicit TreeReader(const std::filesystem::path& path) : path_(path) {}

  std::vector<YamlEntry> mapping(const YAML::Node& node, int depth) {
    std::vector<YamlEntry> entries;
    std::vector<YamlEntry> merged;
    std::set<std::string> seen;
    for (const auto& pair : node) {
      const YAML::Node& key = pair.first;
      const int line = std::max(0, key.Mark().line) + 1;
      if (!key.IsScalar()) {
        refuse(
            path_, line, "a key must be a plain string; write `name: value`");
      }
      if (!seen.insert(key.Scalar()).second) {
        refuse(
            path_,
            line,
            "key '" + key.Scalar() + "' appears twice; remove one");
      }
      YamlEntry entry{.key = key.Scalar(), .line = line};
      if (key.Scalar() == "<<" && !is_quoted(key)) {
        merge(pair.second, line, depth, merged);
        continue;
      }
      fill(pair.second, entry, depth + 1);
      entries.push_back(std::move(entry));
    }
    for (YamlEntry& entry : merged) {
      if (seen.insert(entry.key).second) {
        entries.push_back(std::move(entry));
      }
    }
    return entries;
  }

 private:
  static bool is_quoted(const YAML::Node& node) { return node.Tag() != "?"; }

  // Merges `<<: *base`, or a list of bases. Keys of the mapping itself take
  // precedence, then those of the first base in the list.
  void merge(
      const YAML::Node& node,
      int line,
      int depth,
      std::vector<YamlEntry>& merged) {
    if (!node.IsSequence()) {
      merge_one(node, line, depth, merged);
      return;
    }
    for (const auto& item : node) {
      merge_one(item, line, depth, merged);
    }
  }

  void merge_one(
      const YAML::Node& node,
      int line,
      int depth,
      std::vector<YamlEntry>& merged) {
    if (!node.IsMap()) {
      refuse(
          path_,
          line,
          "'<<' must refer to a mapping; write `<<: *name`, with `&name` "
          "before "
          "that mapping");
    }
    YamlEntry base{.line = line};
    fill(node, base, depth + 1);
    std::move(
        base.entries.begin(), base.entries.end(), std::back_inserter(merged));
  }

  void fill(const YAML::Node& node, YamlEntry& entry, int depth) {
    if (depth > kMaxDepth || ++num_nodes_ > kMaxNodes) {
      refuse(path_, entry.line, kTooDeep);
    }
    if (node.IsMap()) {
      entry.entries = mapping(node, depth);
      entry.value = json::object();
      for (const YamlEntry& inner : entry.entries) {
        entry.value[inner.key] = inner.value;
      }
    } else if (node.IsSequence()) {
      entry.value = json::array();
      for (const auto& item : node) {
        YamlEntry inner{.line = entry.line};
        fill(item, inner, depth + 1);
        entry.value.push_back(std::move(inner.value));
      }
    } else if (node.IsScalar()) {
      entry.text = node.Scalar();
      entry.value = is_quoted(node) ? json(entry.text) : type_plain(entry.text);
    }
  }

  const std::filesystem::path& path_;
  int num_nodes_ = 0;
};

/// Reads a document without storing it.
class IgnoreEvents : public YAML::EventHandler {
 public:
  using Mark = YAML::Mark;
  using Anchor = YAML::anchor_t;
  using Style = YAML::EmitterStyle::value;
  void OnDocumentStart(const Mark&) override {}
  void OnDocumentEnd() override {}
  void OnNull(const Mark&, Anchor) override {}
  void OnAlias(const Mark&, Anchor) override {}
  void OnScalar(const Mark&, const std::string&, Anchor, const std::string&)
      override {}
  void OnSequenceStart(const Mark&, const std::string&, Anchor, Style)
      override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const Mark&, const std::string&, Anchor, Style) override {}
  void OnMapEnd() override {}
};

// `YAML::LoadAll` never returns for some texts with content after the first
// document, so this is checked first.
bool has_one_document(const std::string& text) {
  std::istringstream in(text);
  YAML::Parser parser(in);
  IgnoreEvents ignore;
  return parser.HandleNextDocument(ignore) && !parser;
}

std::string quote_scalar(const std::string& text) {
  const auto is_plain = [](unsigned char c) {
    return std::isalnum(c) || c == '_' || c == '/' || c == '.' || c == '-';
  };
  const bool is_word = !text.empty() &&
                       (std::isalpha(static_cast<unsigned char>(text[0])) ||
                        text[0] == '/' || text[0] == '_') &&
                       std::all_of(text.begin(), text.end(), is_plain) &&
                       type_plain(text).is_string();
  if (is_word) {
    return text;
  }
  const bool needs_escapes = std::any_of(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20; });
  if (needs_escapes) {
    return json(text).dump(); // JSON strings are valid double-quoted YAML
  }
  std::string quoted = "'";
  for (const char c : text) {
    quoted += c == '\'' ? "''" : std::string(1, c);
  }
  return quoted + "'";
}

bool has_structures(const json& list) {
  return std::any_of(list.begin(), list.end(), [](const json& item) {
    return item.is_structured();
  });
}

/// The text after `key:`, including the end of the line.
std::string dump_value(const json& value, const std::string& indent) {
  if (value.is_string()) {
    return " " + quote_scalar(value.get<std::string>()) + "\n";
  }
  if (!value.is_structured() || value.empty() ||
      (value.is_array() && has_structures(value))) {
    return " " + value.dump() + "\n"; // JSON is valid YAML flow style
  }
  std::string out = "\n";
  if (value.is_array()) {
    for (const json& item : value) {
      out += indent + "-" + dump_value(item, indent);
    }
    return out;
  }
  const std::string inner = indent + "  ";
  for (const auto& [key, item] : value.items()) {
    out += inner + quote_scalar(key) + ":" + dump_value(item, inner);
  }
  return out;
}

bool is_indented_by_tab(std::string_view text, int line) {
  for (int i = 1; i < line; ++i) {
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  }
  const auto start = text.find_first_not_of(' ');
  return start != text.npos && text[start] == '\t';
}

} // namespace

std::vector<YamlEntry> parse_yaml_mapping(
    std::string_view text,
    const std::filesystem::path& path) {
  if (text.size() > kMaxBytes) {
    refuse(path, 1, "the file is larger than 1 MiB; pass a configuration file");
  }
  if (text.find('\0') != std::string_view::npos || find_invalid_utf8(text)) {
    refuse(path, 1, "the file is not UTF-8 text; pass a configuration file");
  }
  try {
    const std::string whole(text);
    if (!has_one_document(whole)) {
      refuse(
          path,
          1,
          "the file is not a list of `key: value` lines; run `accelerate "
          "config` to write one");
    }
    const YAML::Node document = YAML::Load(whole);
    if (!document.IsMap()) {
      refuse(
          path,
          1,
          "no `key: value` lines were found; run `accelerate config` to write "
          "them");
    }
    return TreeReader(path).mapping(document, 0);
  } catch (const YAML::DeepRecursion& error) {
    refuse(path, std::max(0, error.mark.line) + 1, kTooDeep);
  } catch (const YAML::Exception& error) {
    const int line = std::max(0, error.mark.line) + 1;
    refuse(
        path,
        line,
        is_indented_by_tab(text, line)
            ? std::string("this line starts with a tab; indent with spaces")
            : str_cat("invalid YAML (", error.msg, "); correct this line"));
  }
}

std::string to_yaml(const json& value) {
  std::string out;
  for (const auto& [key, item] : value.items()) {
    out += quote_scalar(key) + ":" + dump_value(item, "");
  }
  return out;
}

} // namespace accelerate

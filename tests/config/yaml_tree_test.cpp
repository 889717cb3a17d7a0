// SPDX-License-Identifier: Apache-2.0
#include "core/config/yaml_tree.h"

#include <gmock/gmock.h>

#include "accelerate/error.h"

namespace accelerate {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

json value_of(const std::string& scalar) {
  return parse_yaml_mapping("key: " + scalar, "f").at(0).value;
}

// The types are those of Python's yaml.safe_load.
TEST(YamlTree, TypesScalarsAsPythonDoes) {
  EXPECT_EQ(value_of("no"), json(false));
  EXPECT_EQ(value_of("'no'"), json("no"));
  EXPECT_EQ(value_of("\"no\""), json("no"));
  EXPECT_EQ(value_of("On"), json(true));
  EXPECT_EQ(value_of("~"), json(nullptr));
  EXPECT_EQ(value_of(""), json(nullptr));
  EXPECT_EQ(value_of("NO"), json(false));
  EXPECT_EQ(value_of("-12"), json(-12));
  EXPECT_EQ(value_of("+12"), json(12));
  EXPECT_EQ(value_of("1.5"), json(1.5));
  EXPECT_EQ(value_of("1e8"), json("1e8"));
  EXPECT_EQ(value_of("0,1"), json("0,1"));
  EXPECT_EQ(value_of("10.0.0.1"), json("10.0.0.1"));
}

TEST(YamlTree, KnowsTheLineOfEachKey) {
  const auto entries = parse_yaml_mapping("a: 1\n\n# c\nb:\n  c: 2\n", "f");
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].line, 1);
  EXPECT_EQ(entries[1].line, 4);
  EXPECT_EQ(entries[1].entries.at(0).line, 5);
}

TEST(YamlTree, ReadsJson) {
  const auto entries =
      parse_yaml_mapping("{\n\"a\": [1, null],\n\"b\": {\"c\": \"x\"}}\n", "f");
  ASSERT_EQ(entries.size(), 2U);
  EXPECT_EQ(entries[0].value, json::parse("[1, null]"));
  EXPECT_EQ(entries[1].value, json::parse(R"({"c": "x"})"));
}

std::string nested(int depth) {
  return "a: " + std::string(static_cast<size_t>(depth), '[') +
         std::string(static_cast<size_t>(depth), ']');
}

// Ten levels of ten aliases each: ten billion nodes.
std::string alias_bomb() {
  std::string text = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n";
  for (int i = 1; i < 10; ++i) {
    const std::string alias = "*a" + std::to_string(i - 1);
    std::string items = alias;
    for (int j = 1; j < 10; ++j) {
      items += ", " + alias;
    }
    text += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" +
            items + "]\n";
  }
  return text;
}

TEST(YamlTree, RejectsAnythingButAMappingInOneLine) {
  const std::pair<std::string, const char*> cases[] = {
      {"", "`key: value` lines"},
      {"# only a comment\n", "`key: value` lines"},
      {"just text", "no `key: value` lines"},
      {"- a\n- b\n", "no `key: value` lines"},
      {"a: 1\n---\nb: 2\n", "is not a list of"},
      {"{\"a\": \"b\"},\n\"c\": {}\n", "is not a list of"},
      {"a: 1\na: 2\n", "[f:2] key 'a' appears twice"},
      {"a:\n  b: 1\n  b: 2\n", "[f:3] key 'b' appears twice"},
      {"? [a, b]\n: 1\n", "a key must be a plain string"},
      {"{\"a\": 1, ", "[f:1] invalid YAML"},
      {"a: 1\n b: 2\n", "[f:2] invalid YAML"},
      {"a:\n\tb: 2\n", "[f:2] this line starts with a tab"},
      {"a: *missing\n", "invalid YAML"},
      {std::string("a: \0b", 5), "not UTF-8 text"},
      {"\x7f"
       "ELF\x02\xff\xfe",
       "not UTF-8 text"},
      {"a: \xc3\x28\n", "not UTF-8 text"},
      {nested(100), "nested too deeply"},
      {nested(100000), "[f:1]"},
      {alias_bomb(), "too large"},
      {"a: &a [*a]\n", "[f:1]"},
      {std::string(2 << 20, 'a'), "larger than 1 MiB"},
  };
  for (const auto& [text, part] : cases) {
    try {
      parse_yaml_mapping(text, "f");
      ADD_FAILURE() << "taken: " << text.substr(0, 40);
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), HasSubstr(part)) << text.substr(0, 40);
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    }
  }
}

// The values are PyYAML's for the same texts.
TEST(YamlTree, MergesMappings) {
  const std::pair<const char*, const char*> cases[] = {
      {"a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n", R"({"x":1,"y":3})"},
      {"a: &a {x: 1, y: 2}\nb:\n  y: 3\n  <<: *a\n", R"({"x":1,"y":3})"},
      {"a: &a {x: 1}\nc: &c {x: 2, y: 2}\nb:\n  <<: [*a, *c]\n",
       R"({"x":1,"y":2})"},
      {"a: &a {x: 1}\nc: &c {<<: *a, y: 2}\nb:\n  <<: *c\n",
       R"({"x":1,"y":2})"},
      {"b: {\"<<\": 1}\n", R"({"<<":1})"},
  };
  for (const auto& [text, expected] : cases) {
    const auto entries = parse_yaml_mapping(text, "f");
    EXPECT_EQ(entries.back().value.dump(), expected) << text;
  }
  EXPECT_THROW(parse_yaml_mapping("<<: 1\n", "f"), ConfigError);
  EXPECT_THROW(parse_yaml_mapping("<<: [[{a: 1}]]\n", "f"), ConfigError);
}

TEST(ToYaml, WritesWhatTheReaderTakesBack) {
  const json document = json::parse(R"({
    "empty_list": [], "empty_map": {}, "list": ["a", "no", 1],
    "map": {"inner": {"deep": "x: y"}, "no": "'quoted'"},
    "null": null, "number": 1.5, "off": false,
    "text": "tab\tand\nline", "word": "true", "zero": "0",
    "nested": [[1, 2], {"a": "b"}], "unicode": "\u00e9", "path": "/a b"
  })");
  json read = json::object();
  for (const YamlEntry& entry : parse_yaml_mapping(to_yaml(document), "f")) {
    read[entry.key] = entry.value;
  }
  EXPECT_EQ(read, document);
}

} // namespace
} // namespace accelerate

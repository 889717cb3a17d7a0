// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "text/readers.h"

namespace accelerate::text {
namespace {

using Kind = TemplateSlot::Kind;
using Slots = std::vector<TemplateSlot>;

constexpr const char* kPostProcessors =
    "TemplateProcessing, BertProcessing, RobertaProcessing, ByteLevel, and "
    "Sequence of them";

TemplateSlot special(std::vector<int32_t> ids, int32_t type_id) {
  return {Kind::kSpecial, std::move(ids), type_id, type_id};
}

Slots without_special(Slots slots) {
  std::erase_if(slots, [](const TemplateSlot& slot) {
    return slot.kind == Kind::kSpecial;
  });
  return slots;
}

void set_slots(PostProcessor& processor, Slots single, Slots pair) {
  processor.plain_single = without_special(single);
  processor.plain_pair = without_special(pair);
  processor.single = std::move(single);
  processor.pair = std::move(pair);
}

std::vector<int32_t> ids_of_special(
    const JsonNode& piece,
    const JsonNode& special_tokens) {
  const JsonNode ids = special_tokens.at(piece.at("id").text()).at("ids");
  std::vector<int32_t> result;
  for (size_t i = 0; i < ids.array_size(); ++i) {
    result.push_back(ids.at(i).number(kMaxTokenId));
  }
  return result;
}

TemplateSlot read_slot(const JsonNode& node, const JsonNode& special_tokens) {
  node.allow_keys({"SpecialToken", "Sequence"});
  const bool is_special = node.has("SpecialToken");
  const JsonNode piece = node.at(is_special ? "SpecialToken" : "Sequence");
  const int32_t type_id = piece.at("type_id").number(1 << 30);
  if (is_special) {
    return special(ids_of_special(piece, special_tokens), type_id);
  }
  const JsonNode id = piece.at("id");
  const std::string& name = id.text();
  if (name != "A" && name != "B") {
    id.refuse(str_cat("is '", name, "', expected A or B"));
  }
  return name == "A" ? TemplateSlot{Kind::kFirst, {}, type_id, 0}
                     : TemplateSlot{Kind::kSecond, {}, type_id, 1};
}

Slots read_template(
    const JsonNode& node,
    const JsonNode& special_tokens,
    bool is_pair) {
  Slots slots;
  for (size_t i = 0; i < node.array_size(); ++i) {
    slots.push_back(read_slot(node.at(i), special_tokens));
  }
  const auto count = [&](Kind kind) {
    return std::count_if(slots.begin(), slots.end(), [&](const auto& slot) {
      return slot.kind == kind;
    });
  };
  if (count(Kind::kFirst) != 1 || count(Kind::kSecond) != (is_pair ? 1 : 0)) {
    node.refuse(
        is_pair ? "is not supported: it must use both A and B exactly once"
                : "is not supported: it must use A exactly once and must not "
                  "use B");
  }
  return slots;
}

void read_template_processing(const JsonNode& node, PostProcessor& processor) {
  node.allow_keys({"type", "single", "pair", "special_tokens"});
  const JsonNode special_tokens = node.at("special_tokens");
  set_slots(
      processor,
      read_template(node.at("single"), special_tokens, false),
      read_template(node.at("pair"), special_tokens, true));
}

int32_t read_token_and_id(const JsonNode& node) {
  if (node.array_size() != 2) {
    node.refuse("is not a token and its id");
  }
  return node.at(size_t{1}).number(kMaxTokenId);
}

void read_bert(const JsonNode& node, PostProcessor& processor) {
  node.allow_keys({"type", "sep", "cls"});
  const int32_t sep = read_token_and_id(node.at("sep"));
  const int32_t cls = read_token_and_id(node.at("cls"));
  const TemplateSlot first{Kind::kFirst, {}, 0, 0};
  const TemplateSlot second{Kind::kSecond, {}, 1, 1};
  set_slots(
      processor,
      {special({cls}, 0), first, special({sep}, 0)},
      {special({cls}, 0), first, special({sep}, 0), second, special({sep}, 1)});
}

void read_roberta(const JsonNode& node, PostProcessor& processor) {
  node.allow_keys({"type", "sep", "cls", "trim_offsets", "add_prefix_space"});
  const int32_t sep = read_token_and_id(node.at("sep"));
  const int32_t cls = read_token_and_id(node.at("cls"));
  const TemplateSlot first{Kind::kFirst, {}, 0, 0};
  const TemplateSlot second{Kind::kSecond, {}, 0, 0};
  const TemplateSlot start = special({cls}, 0);
  const TemplateSlot end = special({sep}, 0);
  set_slots(
      processor,
      {start, first, end},
      {start, first, special({sep, sep}, 0), second, end});
  // Without special tokens, overflowing tokens keep the type of their text.
  processor.plain_pair[1].overflow_type_id = 1;
  if (node.at("trim_offsets").boolean()) {
    processor.trims.push_back(node.at("add_prefix_space").boolean());
  }
}

// Reads one part. Returns whether it arranges texts, which only one part may
// do.
bool read_one(const JsonNode& node, PostProcessor& processor) {
  const std::string& type = node.type();
  if (type == "ByteLevel") {
    node.allow_keys({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    if (node.at("trim_offsets").boolean()) {
      processor.trims.push_back(node.at("add_prefix_space").boolean());
    }
    return false;
  }
  if (type == "TemplateProcessing") {
    read_template_processing(node, processor);
  } else if (type == "BertProcessing") {
    read_bert(node, processor);
  } else if (type == "RobertaProcessing") {
    read_roberta(node, processor);
  } else {
    node.refuse_type(kPostProcessors);
  }
  return true;
}

} // namespace

void read_post_processor(
    const JsonNode& node,
    TokenizerComponents& components) {
  if (node.type() != "Sequence") {
    read_one(node, components.post_processor);
    return;
  }
  node.allow_keys({"type", "processors"});
  const JsonNode inner = node.at("processors");
  bool is_arranged = false;
  for (size_t i = 0; i < inner.array_size(); ++i) {
    if (read_one(inner.at(i), components.post_processor)) {
      if (is_arranged) {
        inner.at(i).refuse(
            "is a second template in a Sequence, which is not supported");
      }
      is_arranged = true;
    }
  }
}

} // namespace accelerate::text

// SPDX-License-Identifier: Apache-2.0
#include "core/safetensors/pickle.h"

#include <algorithm>
#include <unordered_map>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate::safetensors {

bool PickleValue::is_call_of(std::string_view global) const {
  return kind == Kind::kCall && items[0]->is(Kind::kGlobal) &&
         items[0]->text == global;
}

const PickleValue* PickleValue::find(std::string_view key) const {
  for (std::size_t i = 0; kind == Kind::kDict && i + 1 < items.size(); i += 2) {
    if (items[i]->is(Kind::kText) && items[i]->text == key) {
      return items[i + 1];
    }
  }
  return nullptr;
}

class PickleMachine {
 public:
  PickleMachine(
      std::span<const std::byte> bytes,
      const std::string& where,
      std::deque<PickleValue>& values)
      : bytes_(bytes), where_(where), values_(values) {}

  const PickleValue* run() {
    while (true) {
      const auto code = static_cast<unsigned char>(number(1));
      if (code == '.') {
        return pop();
      }
      if (!takes_value(code) && !takes_container(code) && !takes_call(code) &&
          !takes_memo(code)) {
        refuse(str_cat("has the instruction ", static_cast<int>(code)));
      }
    }
  }

 private:
  using Kind = PickleValue::Kind;

  [[noreturn]] void refuse(const std::string& what) const {
    throw DataError(str_cat(
        where_,
        " ",
        what,
        " at byte ",
        at_,
        ", so it was not written by torch. Save it again"));
  }

  std::span<const std::byte> take(std::uint64_t count) {
    if (count > bytes_.size() - at_) {
      refuse("ends too early");
    }
    const auto taken = bytes_.subspan(at_, count);
    at_ += count;
    return taken;
  }

  // Reads a little-endian integer; `is_signed` extends the sign bit.
  std::uint64_t number(std::size_t num_bytes, bool is_signed = false) {
    if (num_bytes > sizeof(std::uint64_t)) {
      refuse("has a number that is too large");
    }
    const auto taken = take(num_bytes);
    std::uint64_t value = 0;
    for (std::size_t i = 0; i < num_bytes; ++i) {
      value |= std::to_integer<std::uint64_t>(taken[i]) << (8 * i);
    }
    const bool is_negative = is_signed && num_bytes > 0 &&
                             num_bytes < sizeof(value) &&
                             ((value >> (8 * num_bytes - 1)) & 1) != 0;
    return is_negative ? value | (~std::uint64_t{0} << (8 * num_bytes)) : value;
  }

  std::string text(std::uint64_t count) {
    const auto taken = take(count);
    return {reinterpret_cast<const char*>(taken.data()), taken.size()};
  }

  std::string line() {
    std::string found;
    for (std::string c = text(1); c != "\n"; c = text(1)) {
      found += c;
    }
    return found;
  }

  PickleValue* push(PickleValue value) {
    values_.push_back(std::move(value));
    stack_.push_back(&values_.back());
    return stack_.back();
  }

  PickleValue* pop() {
    const std::size_t floor = marks_.empty() ? 0 : marks_.back();
    if (stack_.size() <= floor) {
      refuse("reads more values than it contains");
    }
    auto* const last = stack_.back();
    stack_.pop_back();
    return last;
  }

  std::vector<const PickleValue*> pop_to_mark() {
    if (marks_.empty()) {
      refuse("has no mark");
    }
    const auto first =
        stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<const PickleValue*> items(first, stack_.end());
    stack_.erase(first, stack_.end());
    marks_.pop_back();
    return items;
  }

  // The top of the stack, which must be of this kind.
  PickleValue& top(Kind kind) {
    auto* const last = pop();
    if (!last->is(kind)) {
      refuse("appends to a value that is not a container");
    }
    stack_.push_back(last);
    return *last;
  }

  void push_number(std::uint64_t value) {
    push({.kind = Kind::kNumber, .number = static_cast<std::int64_t>(value)});
  }

  bool takes_value(unsigned char code) {
    switch (code) {
      case 0x80: // Protocol.
        number(1);
        return true;
      case 0x95: // Frame.
        number(8);
        return true;
      case 'N':
        push({});
        return true;
      case 0x88:
      case 0x89:
        push({.kind = Kind::kBool, .number = code == 0x88 ? 1 : 0});
        return true;
      case 'K':
        push_number(number(1));
        return true;
      case 'M':
        push_number(number(2));
        return true;
      case 'J':
        push_number(number(4, true));
        return true;
      case 0x8a:
        push_number(number(number(1), true));
        return true;
      case 'G':
        take(8);
        push({.kind = Kind::kFloat});
        return true;
      case 0x8c:
      case 'X':
      case 0x8d:
        push(
            {.kind = Kind::kText,
             .text = text(number(
                 code == 'X'    ? 4
                 : code == 0x8c ? 1
                                : 8))});
        return true;
      case 'C':
      case 'B':
      case 0x8e:
        push(
            {.kind = Kind::kBytes,
             .text = text(number(
                 code == 'B'   ? 4
                 : code == 'C' ? 1
                               : 8))});
        return true;
      default:
        return false;
    }
  }

  bool takes_container(unsigned char code) {
    switch (code) {
      case '(':
        marks_.push_back(stack_.size());
        return true;
      case '0':
        pop();
        return true;
      case ']':
      case '}':
      case ')':
        push(
            {.kind = code == ']'   ? Kind::kList
                     : code == '}' ? Kind::kDict
                                   : Kind::kTuple});
        return true;
      case 't': {
        auto items = pop_to_mark();
        push({.kind = Kind::kTuple, .items = std::move(items)});
        return true;
      }
      case 0x85:
      case 0x86:
      case 0x87: {
        std::vector<const PickleValue*> items(code - 0x84U);
        for (std::size_t i = items.size(); i > 0; --i) {
          items[i - 1] = pop();
        }
        push({.kind = Kind::kTuple, .items = std::move(items)});
        return true;
      }
      case 'a': {
        const auto* const item = pop();
        top(Kind::kList).items.push_back(item);
        return true;
      }
      case 'e':
        add(pop_to_mark(), Kind::kList);
        return true;
      case 's': {
        const auto* const value = pop();
        const auto* const key = pop();
        add({key, value}, Kind::kDict);
        return true;
      }
      case 'u': {
        auto items = pop_to_mark();
        if (items.size() % 2 != 0) {
          refuse("has a key without a value");
        }
        add(items, Kind::kDict);
        return true;
      }
      default:
        return false;
    }
  }

  void add(const std::vector<const PickleValue*>& items, Kind kind) {
    auto& held = top(kind).items;
    held.insert(held.end(), items.begin(), items.end());
  }

  bool takes_call(unsigned char code) {
    switch (code) {
      case 'c': {
        const std::string module = line();
        push({.kind = Kind::kGlobal, .text = str_cat(module, " ", line())});
        return true;
      }
      case 0x93: {
        const auto* const name = pop();
        const auto* const module = pop();
        if (!name->is(Kind::kText) || !module->is(Kind::kText)) {
          refuse("names nothing");
        }
        push(
            {.kind = Kind::kGlobal,
             .text = str_cat(module->text, " ", name->text)});
        return true;
      }
      case 'R':
      case 0x81: {
        const auto* const arguments = pop();
        const auto* const called = pop();
        push({.kind = Kind::kCall, .items = {called, arguments}});
        return true;
      }
      case 'b': {
        const auto* const state = pop();
        top(Kind::kCall).items.push_back(state);
        return true;
      }
      case 'Q': {
        const auto* const id = pop();
        push({.kind = Kind::kReference, .items = {id}});
        return true;
      }
      default:
        return false;
    }
  }

  bool takes_memo(unsigned char code) {
    switch (code) {
      case 0x94:
        keep(memo_.size());
        return true;
      case 'q':
        keep(number(1));
        return true;
      case 'r':
        keep(number(4));
        return true;
      case 'h':
      case 'j': {
        const auto found = memo_.find(number(code == 'h' ? 1 : 4));
        if (found == memo_.end()) {
          refuse("refers to a value that it has not stored");
        }
        stack_.push_back(found->second);
        return true;
      }
      default:
        return false;
    }
  }

  void keep(std::uint64_t index) {
    auto* const last = pop();
    stack_.push_back(last);
    memo_[index] = last;
  }

  std::span<const std::byte> bytes_;
  std::size_t at_ = 0;
  const std::string& where_;
  std::deque<PickleValue>& values_;
  std::vector<PickleValue*> stack_;
  std::vector<std::size_t> marks_;
  std::unordered_map<std::uint64_t, PickleValue*> memo_;
};

Pickle::Pickle(std::span<const std::byte> bytes, const std::string& where)
    : root_(PickleMachine(bytes, where, values_).run()) {}

} // namespace accelerate::safetensors

// SPDX-License-Identifier: Apache-2.0
// Python's pickles as values. Nothing of a pickle is ever run: what it would
// call is a name beside its arguments, for the reader to know or to refuse.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/export.h"

namespace accelerate::safetensors {

struct ACCELERATE_API PickleValue {
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kNumber,
    /// With a fraction; its value is not kept.
    kFloat,
    kText,
    kBytes,
    kTuple,
    kList,
    /// Keys and values in turn.
    kDict,
    /// "module name".
    kGlobal,
    /// What would be called, its arguments, and the state where there is one.
    kCall,
    /// What another part of the archive holds, by a tuple.
    kReference,
  };

  bool is(Kind other) const { return kind == other; }
  /// The call of this class or function.
  bool is_call_of(std::string_view global) const;
  /// The entry of a dictionary with this text as its key, or null.
  const PickleValue* find(std::string_view key) const;

  Kind kind = Kind::kNone;
  std::int64_t number = 0;
  std::string text = {};
  std::vector<const PickleValue*> items = {};
};

/// One pickle of protocol 2 to 5, as much of them as torch's files use. Takes
/// memory in proportion to the bytes, whatever they say.
class ACCELERATE_API Pickle {
 public:
  /// Throws `DataError` that begins with `where`.
  Pickle(std::span<const std::byte> bytes, const std::string& where);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return *root_; }

 private:
  friend class PickleMachine;

  // Values may hold each other in circles, so none of them owns another.
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

} // namespace accelerate::safetensors

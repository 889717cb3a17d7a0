// SPDX-License-Identifier: Apache-2.0
// Parses Python pickles as data. Nothing in a pickle is run: calls are
// represented by the name and the arguments, for the reader to recognise or
// reject.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/internal.h"

namespace accelerate::safetensors {

struct ACCELERATE_INTERNAL PickleValue {
  enum class Kind : std::uint8_t {
    kNone,
    kBool,
    kNumber,
    /// A floating-point number. Its value is not stored.
    kFloat,
    kText,
    kBytes,
    kTuple,
    kList,
    /// Alternating keys and values.
    kDict,
    /// "module name".
    kGlobal,
    /// The callee, its arguments, and the state if there is one.
    kCall,
    /// A reference to another part of the archive, as a tuple.
    kReference,
  };

  bool is(Kind other) const { return kind == other; }
  /// Whether this is a call of this class or function.
  bool is_call_of(std::string_view global) const;
  /// The entry of a dictionary with this string as its key, or null.
  const PickleValue* find(std::string_view key) const;

  Kind kind = Kind::kNone;
  std::int64_t number = 0;
  std::string text = {};
  std::vector<const PickleValue*> items = {};
};

/// One pickle of protocol 2 to 5, limited to what torch's files use. Memory is
/// proportional to the number of bytes, whatever they contain.
class ACCELERATE_INTERNAL Pickle {
 public:
  /// Throws a `DataError` whose message begins with `where`.
  Pickle(std::span<const std::byte> bytes, const std::string& where);
  Pickle(const Pickle&) = delete;
  Pickle& operator=(const Pickle&) = delete;

  const PickleValue& root() const { return *root_; }

 private:
  friend class PickleMachine;

  // Values may form cycles, so none of them owns another.
  std::deque<PickleValue> values_;
  const PickleValue* root_ = nullptr;
};

} // namespace accelerate::safetensors

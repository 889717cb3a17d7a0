// SPDX-License-Identifier: Apache-2.0
// Keys and flags of Hugging Face Accelerate that belong to engines which this
// program does not have.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "accelerate/export.h"

namespace accelerate {

enum class ForeignKind {
  /// Read only by an engine that another key has to ask for.
  kSilent,
  /// Worth a line to the user where it holds something.
  kNote,
  /// Asks for the engine by itself.
  kAsks,
};

struct ForeignKey {
  std::string_view key;
  ForeignKind kind;
  /// What the key belongs to, and what to use instead.
  std::string_view advice;
  /// No current version of the original loads it: not written again.
  bool is_gone = false;
  /// How the names of those keys of the section end that turn the engine on;
  /// empty: any does. The original writes the others (modes, backends) always.
  std::string_view switches = {};
};

/// A flag of the original that is taken, so that its command lines work, but
/// that has nothing to decide here.
struct IgnoredFlag {
  std::string_view name;
  bool takes_value;
  /// The value about which there is nothing to say.
  std::string_view usual;
  /// Why it changes nothing.
  std::string_view reason;
};

ACCELERATE_API std::span<const IgnoredFlag> ignored_flags();

/// Null where `key` is not one of theirs.
ACCELERATE_API const ForeignKey* find_foreign_key(std::string_view key);

/// Whether a scalar, as text, leaves the engine off: empty, no, none, false,
/// static.
ACCELERATE_API bool is_off(std::string_view text);

/// Advice on a value of `distributed_type` that is another engine's; empty for
/// a text that never was one.
ACCELERATE_API std::string_view foreign_distributed_type(std::string_view text);

/// Advice on a launch flag (without dashes in front, `_` inside) of another
/// engine; empty where it never was one.
ACCELERATE_API std::string_view foreign_flag(std::string_view name);

} // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
// Hugging Face Accelerate's keys and flags for unsupported engines.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/base/internal.h"

namespace accelerate {

enum class ForeignKind {
  /// Only read by an engine that another key requests.
  kSilent,
  /// Worth a note to the user if it is set.
  kNote,
};

struct ForeignKey {
  std::string_view key;
  ForeignKind kind;
  /// What the key belongs to, and what to use instead.
  std::string_view advice;
  /// Whether the current original ignores the key, so that it is not written
  /// again.
  bool is_gone = false;
};

/// A flag of the original that is accepted so that its command lines work, but
/// has no effect here.
struct IgnoredFlag {
  std::string_view name;
  bool takes_value;
  /// The value that needs no note.
  std::string_view usual;
  /// Why it has no effect.
  std::string_view reason;
};

ACCELERATE_INTERNAL std::span<const IgnoredFlag> ignored_flags();

/// The row of `key`. Null if it is not a key of an unsupported engine.
const ForeignKey* find_foreign_key(std::string_view key);

/// Whether a scalar, as text, leaves the engine disabled: empty, no, none,
/// false, static.
ACCELERATE_INTERNAL bool is_off(std::string_view text);

/// Advice about a `distributed_type` of another engine. Empty for unknown
/// values.
std::string_view foreign_distributed_type(std::string_view text);

/// Advice about a launch flag (without leading dashes, with `_`) of another
/// engine. Empty for unknown flags.
std::string_view foreign_flag(std::string_view name);

} // namespace accelerate

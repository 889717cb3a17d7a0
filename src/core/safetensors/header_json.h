// SPDX-License-Identifier: Apache-2.0
// Parses the JSON of an untrusted header.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "accelerate/safetensors.h"

namespace accelerate::safetensors {

struct HeaderEntry {
  std::string name;
  Dtype dtype = Dtype::kBool;
  std::vector<std::uint64_t> shape;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

struct HeaderJson {
  Metadata metadata;
  /// The entries in the order of the text.
  std::vector<HeaderEntry> entries;
};

/// `text` must be UTF-8. Throws `InvalidJsonError`, `DuplicateNameError` and
/// `UnknownDtypeError`.
HeaderJson parse_header_json(std::string_view text, const std::string& source);

/// The header of `entries`, in order, padded with spaces to a multiple of 8
/// bytes.
std::string format_header_json(
    const Metadata& metadata,
    const std::vector<HeaderEntry>& entries);

} // namespace accelerate::safetensors

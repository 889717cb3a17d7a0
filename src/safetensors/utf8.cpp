// SPDX-License-Identifier: Apache-2.0
#include "safetensors/utf8.h"

#include <cstdint>
#include <cstring>

namespace accelerate::safetensors {
namespace {

struct Form {
  std::size_t length; // 0: no character begins so.
  unsigned char low;  // The second byte lies in [low, high].
  unsigned char high;
};

// Table 3-7 of the Unicode standard.
Form form_of(unsigned char lead) {
  if (lead < 0x80) {
    return {1, 0, 0};
  }
  if (lead < 0xC2) {
    return {0, 0, 0};
  }
  if (lead < 0xE0) {
    return {2, 0x80, 0xBF};
  }
  if (lead < 0xF0) {
    const unsigned char low = lead == 0xE0 ? 0xA0 : 0x80;
    const unsigned char high = lead == 0xED ? 0x9F : 0xBF;
    return {3, low, high};
  }
  if (lead < 0xF5) {
    const unsigned char low = lead == 0xF0 ? 0x90 : 0x80;
    const unsigned char high = lead == 0xF4 ? 0x8F : 0xBF;
    return {4, low, high};
  }
  return {0, 0, 0};
}

bool is_well_formed(const unsigned char* at, std::size_t left) {
  const Form form = form_of(*at);
  if (form.length == 0 || form.length > left) {
    return false;
  }
  if (form.length > 1 && (at[1] < form.low || at[1] > form.high)) {
    return false;
  }
  for (std::size_t i = 2; i < form.length; ++i) {
    if ((at[i] & 0xC0) != 0x80) {
      return false;
    }
  }
  return true;
}

} // namespace

std::optional<std::size_t> find_invalid_utf8(std::string_view text) {
  constexpr std::uint64_t kHighBits = 0x8080808080808080u;
  const auto* bytes = reinterpret_cast<const unsigned char*>(text.data());
  std::size_t at = 0;
  while (at < text.size()) {
    // Headers are nearly all ASCII: eight bytes at a time.
    if (text.size() - at >= 8) {
      std::uint64_t word = 0;
      std::memcpy(&word, bytes + at, 8);
      if ((word & kHighBits) == 0) {
        at += 8;
        continue;
      }
    }
    if (!is_well_formed(bytes + at, text.size() - at)) {
      return at;
    }
    at += form_of(bytes[at]).length;
  }
  return std::nullopt;
}

} // namespace accelerate::safetensors

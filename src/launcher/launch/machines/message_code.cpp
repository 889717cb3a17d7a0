// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/message_code.h"

#include <sodium.h>

namespace accelerate {
namespace {

const unsigned char* bytes_of(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

} // namespace

std::string message_code(std::string_view key, std::string_view text) {
  static_assert(kCodeBytes == crypto_auth_hmacsha256_BYTES);
  crypto_auth_hmacsha256_state state;
  crypto_auth_hmacsha256_init(&state, bytes_of(key), key.size());
  crypto_auth_hmacsha256_update(&state, bytes_of(text), text.size());
  std::string code(kCodeBytes, '\0');
  crypto_auth_hmacsha256_final(
      &state, reinterpret_cast<unsigned char*>(code.data()));
  sodium_memzero(&state, sizeof(state));
  return code;
}

bool is_same_code(std::string_view a, std::string_view b) {
  return a.size() == b.size() &&
         sodium_memcmp(a.data(), b.data(), a.size()) == 0;
}

} // namespace accelerate

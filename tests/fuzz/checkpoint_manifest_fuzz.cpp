// SPDX-License-Identifier: Apache-2.0
// Checkpoint manifests: any text is rejected or parsed, and what is parsed
// round-trips.
#include <cstdlib>

#include "accelerate/error.h"
#include "core/base/checksum.h"
#include "core/checkpoint/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accelerate;
  std::string text(reinterpret_cast<const char*>(data), size);
  for (const bool is_signed : {false, true}) {
    if (is_signed) {
      // A fuzzer cannot guess a checksum, so provide a valid one.
      const auto checksum = checksum_of(text);
      text += ",\n  \"checksum\": \"" + checksum + "\"\n}\n";
    }
    try {
      const auto manifest = parse_manifest(text, "input");
      const auto again =
          parse_manifest(format_manifest(manifest), "what was written");
      if (again.files != manifest.files || again.state != manifest.state ||
          again.moment != manifest.moment) {
        std::abort();
      }
    } catch (const Error&) {
    }
  }
  return 0;
}

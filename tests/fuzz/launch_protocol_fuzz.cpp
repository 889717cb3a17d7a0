// SPDX-License-Identifier: Apache-2.0
// Bytes from the network: frames, then messages, then back again.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "accelerate/error.h"
#include "launcher/launch/machines/protocol.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accelerate;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    FrameReader reader;
    reader.add(bytes);
    while (const auto payload = reader.next()) {
      const Message message = decode_payload(*payload);
      FrameReader again;
      again.add(frame_of(encode_payload(message)));
      if (decode_payload(again.next().value()) != message) {
        std::abort();
      }
    }
  } catch (const CommError&) {
    // Refused, as the contract says.
  }
  return 0;
}

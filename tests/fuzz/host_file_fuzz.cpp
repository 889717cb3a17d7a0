// SPDX-License-Identifier: Apache-2.0
// Any bytes as a host file: rejected with one printable line, or parsed to
// hosts that ssh cannot mistake for options.
#include <algorithm>
#include <cstdint>
#include <string_view>

#include "accelerate/error.h"
#include "core/base/host_name.h"
#include "core/base/printable.h"
#include "launcher/launch/plan/host_file.h"
#include "require.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accelerate;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto hosts = parse_host_file(text, "hosts");
    require(!hosts.empty());
    std::string again;
    for (const auto& host : hosts) {
      require(is_ssh_target(host.name) && !host.name.starts_with('-'));
      require(is_host_name(host.address()));
      require(!host.slots || *host.slots > 0);
      again += host.name;
      again += host.slots ? " slots=" + std::to_string(*host.slots) : "";
      again += '\n';
    }
    require(parse_host_file(again, "again") == hosts);
  } catch (const ConfigError& error) {
    require(printable(error.what()) == error.what());
  }
  return 0;
}

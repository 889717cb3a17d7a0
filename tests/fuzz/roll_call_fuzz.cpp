// SPDX-License-Identifier: Apache-2.0
// Machines that join, leave and rejoin in any order, compared with a simple
// model of who has joined.
#include <cstdint>
#include <map>

#include "launcher/launch/machines/roll_call.h"
#include "require.h"

namespace {

using accelerate::HelloMessage;
using accelerate::RollCall;

constexpr int kMachines = 4;

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const HelloMessage own{
      .version = "1", .host = "node", .agreement = {{"cpu", "no"}}};
  RollCall roll(own, kMachines, true);
  std::map<int, bool> here = {{0, true}};
  std::map<int, int> sizes;
  for (size_t i = 0; i + 1 < size; i += 2) {
    HelloMessage hello = own;
    hello.machine_rank = data[i] % (kMachines + 2);
    hello.num_local = 1 + data[i + 1] % 3;
    const bool is_known =
        hello.machine_rank > 0 && hello.machine_rank < kMachines;
    const int action = data[i + 1] / 3 % 8;
    if (action == 0 && is_known) {
      roll.leave(static_cast<size_t>(hello.machine_rank));
      here[hello.machine_rank] = false;
    } else {
      if (action == 1) {
        hello.agreement["cpu"] = "yes";
      }
      if (action == 2) {
        hello.version = "2";
      }
      const auto had = sizes.find(hello.machine_rank);
      const bool fits = action != 1 && action != 2 && is_known &&
                        !here[hello.machine_rank] &&
                        (had == sizes.end() || had->second == hello.num_local);
      require(roll.take(hello).empty() == fits);
      if (fits) {
        here[hello.machine_rank] = true;
        sizes[hello.machine_rank] = hello.num_local;
      }
    }
    bool is_complete = true;
    for (int machine = 0; machine < kMachines; ++machine) {
      require(roll.is_here(static_cast<size_t>(machine)) == here[machine]);
      is_complete = is_complete && here[machine];
    }
    require(roll.is_complete() == is_complete);
  }
  return 0;
}

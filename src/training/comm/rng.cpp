// SPDX-License-Identifier: Apache-2.0
#include "accelerate/distributed/collectives.h"
#include "training/random/generators.h"

namespace accelerate {

void synchronize_rng_states(const ProcessGroup& group, c10::Device device) {
  std::vector<c10::Device> devices = {c10::Device(c10::kCPU)};
  if (!device.is_cpu()) {
    devices.push_back(device);
  }
  for (const auto& each : devices) {
    auto generator = default_generator(each);
    auto state = generator_state(generator);
    group.broadcast(state, 0);
    set_generator_state(generator, state);
  }
}

} // namespace accelerate

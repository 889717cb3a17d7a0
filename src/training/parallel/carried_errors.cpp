// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/carried_errors.h"

#include <atomic>

namespace accelerate {
namespace {

std::atomic<ErrorCarrier> error_carrier = nullptr;

} // namespace

void set_error_carrier(ErrorCarrier carrier) {
  error_carrier = carrier;
}

void throw_carried() {
  if (const auto carrier = error_carrier.load()) {
    carrier();
  }
  throw; // keeps its class
}

} // namespace accelerate

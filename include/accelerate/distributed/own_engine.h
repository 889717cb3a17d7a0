// SPDX-License-Identifier: Apache-2.0
// Custom layers of engines.
#pragma once

#include <functional>
#include <memory>

#include "accelerate/export.h"

namespace accelerate {

class Layer;
struct EngineArguments;

/// Creates a custom layer for the engine of each prepared model, instead of the
/// DDP layer, even on a single rank. `parallel/layers.h` in the sources defines
/// the interfaces of layers. These interfaces may change between versions.
struct ACCELERATE_API OwnEngine {
  using Make = std::function<std::unique_ptr<Layer>(const EngineArguments&)>;
  Make make = {};
};

} // namespace accelerate

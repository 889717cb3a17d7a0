// SPDX-License-Identifier: Apache-2.0
// Custom layers of engines.
#pragma once

#include <functional>
#include <memory>

#include "accelerate/export.h"

namespace accelerate {

class Layer;
struct EngineArguments;

/// Creates a layer of the engine of each prepared model instead of DDP's, even
/// on a single rank. The interfaces of layers are in `parallel/layers.h` in the
/// sources; they may change between versions.
struct ACCELERATE_API OwnEngine {
  using Make = std::function<std::unique_ptr<Layer>(const EngineArguments&)>;
  Make make = {};
};

} // namespace accelerate

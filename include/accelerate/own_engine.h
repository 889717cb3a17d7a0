// SPDX-License-Identifier: Apache-2.0
// A strategy that this library does not have.
#pragma once

#include <functional>
#include <memory>

#include "accelerate/export.h"

namespace accelerate {

class ParallelEngine;
struct EngineArguments;

/// Makes the engine of each prepared model in the place of the library's own,
/// on one rank too. The seams of an engine stand in `parallel/engine.h` of the
/// sources; they may change between versions.
struct ACCELERATE_API OwnEngine {
  using Make =
      std::function<std::unique_ptr<ParallelEngine>(const EngineArguments&)>;
  Make make = {};
};

} // namespace accelerate

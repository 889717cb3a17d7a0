// SPDX-License-Identifier: Apache-2.0
// Custom parallel strategies.
#pragma once

#include <functional>
#include <memory>

#include "accelerate/export.h"

namespace accelerate {

class ParallelEngine;
struct EngineArguments;

/// Creates the engine of each prepared model instead of the built-in ones, even
/// on a single rank. The interface of engines is `parallel/engine.h` in the
/// sources; it may change between versions.
struct ACCELERATE_API OwnEngine {
  using Make =
      std::function<std::unique_ptr<ParallelEngine>(const EngineArguments&)>;
  Make make = {};
};

} // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
// Calls a pair of callbacks on several engines.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "training/parallel/engine.h"

namespace accelerate {

/// Calls the first callback on every living engine. Calls `abandon` if it is
/// destroyed before `finish`, or if a first callback throws. `engine_of`
/// returns the engine of an owner. Keeps a reference to the list.
template <class Owner, class EngineOf>
class EngineScope {
 public:
  using Owners = std::vector<std::weak_ptr<Owner>>;
  using Callback = void (ParallelEngine::*)();

  EngineScope(
      const Owners& owners,
      EngineOf engine_of,
      Callback open,
      Callback abandon)
      : owners_(owners), engine_of_(std::move(engine_of)), abandon_(abandon) {
    try {
      for_each([&](ParallelEngine& engine) { (engine.*open)(); });
    } catch (...) {
      give_up();
      throw;
    }
  }
  ~EngineScope() {
    if (!is_finished_) {
      give_up();
    }
  }
  EngineScope(const EngineScope&) = delete;
  EngineScope& operator=(const EngineScope&) = delete;

  /// Calls `close(engine)` for each engine.
  template <class Close>
  void finish(Close&& close) {
    for_each(close);
    is_finished_ = true;
  }

 private:
  template <class Work>
  void for_each(Work&& work) {
    for (const auto& weak : owners_) {
      if (const auto owner = weak.lock()) {
        work(engine_of_(*owner));
      }
    }
  }
  void give_up() {
    for_each([this](ParallelEngine& engine) { (engine.*abandon_)(); });
  }

  const Owners& owners_;
  EngineOf engine_of_;
  Callback abandon_;
  bool is_finished_ = false;
};

} // namespace accelerate

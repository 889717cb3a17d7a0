// SPDX-License-Identifier: Apache-2.0
// Calls a pair of callbacks on several engines.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "training/parallel/engine.h"

namespace accelerate {

/// Calls the first callback on every living engine; calls the `abandon` one if
/// it is destroyed before `finish`, or if a first callback throws. `engine_of`
/// returns the engine of an owner. Borrows the list.
template <class Owner, class EngineOf>
class SeamScope {
 public:
  using Owners = std::vector<std::weak_ptr<Owner>>;
  using Seam = void (ParallelEngine::*)();

  SeamScope(const Owners& owners, EngineOf engine_of, Seam open, Seam abandon)
      : owners_(owners), engine_of_(std::move(engine_of)), abandon_(abandon) {
    try {
      for_each([&](ParallelEngine& engine) { (engine.*open)(); });
    } catch (...) {
      give_up();
      throw;
    }
  }
  ~SeamScope() {
    if (!is_finished_) {
      give_up();
    }
  }
  SeamScope(const SeamScope&) = delete;
  SeamScope& operator=(const SeamScope&) = delete;

  /// Calls `close(engine)` for each.
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
  Seam abandon_;
  bool is_finished_ = false;
};

} // namespace accelerate

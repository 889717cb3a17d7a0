// SPDX-License-Identifier: Apache-2.0
// Stands in for gloo's header, which the torch wheel does not ship although
// its ProcessGroupGloo.hpp includes it. Declarations only: nothing here is
// instantiated by this project.
#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace gloo::rendezvous {
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::vector<char>& value) = 0;
  virtual std::vector<char> get(const std::string& key) = 0;
  virtual void wait(const std::vector<std::string>& keys) = 0;
  virtual void wait(
      const std::vector<std::string>& keys,
      const std::chrono::milliseconds& timeout) = 0;
};
} // namespace gloo::rendezvous

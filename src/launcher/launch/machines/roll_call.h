// SPDX-License-Identifier: Apache-2.0
// Which machines of a job have joined.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/internal.h"
#include "launcher/launch/machines/protocol.h"

namespace accelerate {

/// Records the machines of one job. Each joins once, and only with the same
/// version and configuration as machine 0. A machine that left may rejoin with
/// the same number of processes. An elastic job accepts any number.
class ACCELERATE_INTERNAL RollCall {
 public:
  /// `own` is machine 0's own introduction. `shows_values` says whether a
  /// rejection may contain values of machine 0. It must be false if anyone can
  /// connect.
  RollCall(
      HelloMessage own,
      int num_machines,
      bool shows_values,
      bool is_elastic = false);

  /// The index for a machine of an elastic job that names none: the one its
  /// host had before, or the first free one, or `kAnyMachine`.
  int index_for(const std::string& host) const;
  /// Accepts the machine. Returns an empty string, or why it is rejected.
  std::string take(const HelloMessage& hello);
  /// Frees the machine's index. Its introduction stays in `entries`.
  void leave(size_t machine);

  bool is_here(size_t machine) const { return here_[machine]; }
  int num_here() const;
  bool is_complete() const;
  /// The introductions by machine. Empty for machines that never joined.
  const std::vector<std::optional<HelloMessage>>& entries() const {
    return entries_;
  }

 private:
  std::string reason_to_refuse(const HelloMessage& hello) const;
  std::string first_difference(const HelloMessage& hello) const;

  std::vector<std::optional<HelloMessage>> entries_;
  std::vector<bool> here_;
  bool shows_values_;
  bool is_elastic_;
};

/// One line per machine: host, ranks, devices.
std::string format_roll(const std::vector<HelloMessage>& roll);

} // namespace accelerate

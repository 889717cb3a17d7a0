// SPDX-License-Identifier: Apache-2.0
// Which machines of a job are here.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "launch/machines/protocol.h"

namespace accelerate {

/// The roll of one job: each machine once, and only with the same version and
/// configuration as machine 0. A machine that left may come again, with as
/// many processes as it had; to an elastic job with any number.
class ACCELERATE_API RollCall {
 public:
  /// `own` is what machine 0 would say itself. `tells_values`: a refusal may
  /// name what machine 0 has; not where anybody can ask.
  RollCall(
      HelloMessage own,
      int num_machines,
      bool tells_values,
      bool is_elastic = false);

  /// The place for a machine that names none in an elastic job: the one that
  /// its host had before, else the first that is free; else `kAnyMachine`.
  int place_for(const std::string& host) const;
  /// Takes the machine in. Returns why not, else an empty text.
  std::string take(const HelloMessage& hello);
  /// Its place is free again; what it had said stays in `entries`.
  void leave(size_t machine);

  bool is_here(size_t machine) const { return here_[machine]; }
  int num_here() const;
  bool is_complete() const;
  /// By machine; those that never came are unset.
  const std::vector<std::optional<HelloMessage>>& entries() const {
    return entries_;
  }

 private:
  std::string reason_to_refuse(const HelloMessage& hello) const;
  std::string first_difference(const HelloMessage& hello) const;

  std::vector<std::optional<HelloMessage>> entries_;
  std::vector<bool> here_;
  bool tells_values_;
  bool is_elastic_;
};

/// One line per machine: host, ranks, devices.
ACCELERATE_API std::string format_roll(const std::vector<HelloMessage>& roll);

} // namespace accelerate

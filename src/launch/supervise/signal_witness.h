// SPDX-License-Identifier: Apache-2.0
// Who knows whether a signal was sent to the launcher or to its whole group.
#pragma once

#include <optional>
#include <string>

#include "accelerate/export.h"
#include "base/unique_file.h"
#include "launch/supervise/signal_file.h"

namespace accelerate {

/// A process that does nothing but report the signals it gets. It stands where
/// the workers stand: in the launcher's process group, session and control
/// group, but not under the launcher's name. What reaches it has reached the
/// workers too; what reaches the launcher alone (`killall accelerate`, the
/// hangup of a terminal whose session the launcher leads) has not.
///
/// Ends with this process, and with the object.
class ACCELERATE_API SignalWitness {
 public:
  /// Starts the process; `signals` says which ones it reports. `command` is
  /// what the workers run: whoever picks processes by their command line picks
  /// the witness where he picks the workers. Throws `SystemError`.
  SignalWitness(SignalFileGuard& signals, const std::string& command);
  ~SignalWitness();
  SignalWitness(const SignalWitness&) = delete;
  SignalWitness& operator=(const SignalWitness&) = delete;

  pid_t pid() const { return pid_; }
  /// Readable while a report waits.
  int file() const { return reports_.get(); }
  /// The next report; nothing where there is none.
  std::optional<Signal> next();
  /// Somebody else has taken its end: there is none any more.
  void forget() { pid_ = 0; }
  /// Whether a signal may be on its way from there.
  bool is_busy(int signal) const;

 private:
  UniqueFile reports_;
  pid_t pid_ = 0;
};

} // namespace accelerate

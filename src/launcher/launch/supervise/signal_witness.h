// SPDX-License-Identifier: Apache-2.0
// Detects whether a signal was sent to the launcher or to its whole group.
#pragma once

#include <optional>
#include <string>

#include "core/base/unique_file.h"
#include "launcher/launch/supervise/signal_file.h"

namespace accelerate {

/// A process that only reports the signals it receives. Like the workers, it is
/// in the launcher's process group, session and control group, but does not
/// have the launcher's name. Signals that it receives have also reached the
/// workers. Signals to the launcher alone (`killall accelerate`, or the hangup
/// of a terminal whose session leader is the launcher) have not.
///
/// The process ends with this process and with the object.
class SignalWitness {
 public:
  /// Starts the process. `signals` determines which signals it reports.
  /// `command` is what the workers run, so that tools that select processes by
  /// command line select the witness together with the workers. Throws
  /// `SystemError`.
  SignalWitness(SignalFileGuard& signals, const std::string& command);
  ~SignalWitness();
  SignalWitness(const SignalWitness&) = delete;
  SignalWitness& operator=(const SignalWitness&) = delete;

  pid_t pid() const { return pid_; }
  /// Readable while a report is pending.
  int file() const { return reports_.get(); }
  /// The next report. Empty if there is none.
  std::optional<Signal> next();
  /// Says that the process was already reaped.
  void forget() { pid_ = 0; }
  /// Whether the witness may still report this signal.
  bool is_busy(int signal) const;

 private:
  UniqueFile reports_;
  pid_t pid_ = 0;
};

} // namespace accelerate

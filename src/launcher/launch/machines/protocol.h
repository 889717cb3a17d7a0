// SPDX-License-Identifier: Apache-2.0
// The messages between launchers of one job. See docs/launch_protocol.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/internal.h"
#include "launcher/launch/job.h"
#include "launcher/launch/plan/plan.h"

namespace accelerate {

inline constexpr int kProtocolVersion = 4;
/// The maximum size of one frame, without its length.
inline constexpr size_t kMaxFrameBytes = 64 * 1024;
/// The maximum size of frames from a peer that is not authenticated yet.
inline constexpr size_t kMaxUnauthenticatedBytes = 1024;
/// The length of the random numbers and proofs of a handshake.
inline constexpr size_t kHandshakeDigits = 64;

/// The first frame of every connection (`knock`): a machine requests a
/// challenge.
struct ChallengeRequestMessage {
  int protocol = kProtocolVersion;
  /// Random hexadecimal digits.
  std::string number = {};
  bool operator==(const ChallengeRequestMessage&) const = default;
};
/// Machine 0 requests a proof that the token is known.
struct ChallengeMessage {
  std::string number = {};
  bool operator==(const ChallengeMessage&) const = default;
};
/// Each side's proof, the member's first. See `Handshake`.
struct ProofMessage {
  std::string proof = {};
  bool operator==(const ProofMessage&) const = default;
};
/// A machine introduces itself after mutual authentication.
struct HelloMessage {
  std::string version = {};
  /// `kAnyMachine` if machine 0 should choose.
  int machine_rank = 0;
  std::string host = {};
  int num_local = 1;
  std::string devices = {};
  /// Problems that `--check` found on this machine.
  std::vector<std::string> problems = {};
  std::map<std::string, std::string> agreement = {};

  bool operator==(const HelloMessage&) const = default;
};
/// Machine 0 accepts the machine.
struct AcceptedMessage {
  bool operator==(const AcceptedMessage&) const = default;
};
/// Machine 0 rejects the machine, with the reason.
struct RefusedMessage {
  std::string reason = {};
  bool operator==(const RefusedMessage&) const = default;
};
/// All machines are ready: start the workers. `roll` is the table to print.
/// Empty if unchanged.
struct StartMessage {
  StartOrder order = {};
  std::string roll = {};
  bool operator==(const StartMessage&) const = default;
};
struct StopMessage {
  StopOrder order = {};
  bool operator==(const StopMessage&) const = default;
};
struct EndMessage {
  JobEnding ending = {};
  bool operator==(const EndMessage&) const = default;
};
struct FailedMessage {
  FailureReport report = {};
  bool operator==(const FailedMessage&) const = default;
};
/// The machine could not start its workers at all.
struct CannotStartMessage {
  std::string reason = {};
  bool operator==(const CannotStartMessage&) const = default;
};
struct FinishedMessage {
  bool operator==(const FinishedMessage&) const = default;
};
struct StoppedMessage {
  ExitSummary exit_summary = {};
  bool operator==(const StoppedMessage&) const = default;
};
/// The launcher of this machine was asked to end.
struct InterruptedMessage {
  int signal = 15;
  bool operator==(const InterruptedMessage&) const = default;
};
/// A machine has received SIGUSR1 or SIGUSR2, which do not end the job. It
/// tells machine 0, which tells all other machines, so that all workers get the
/// signal.
struct SignalMessage {
  int signal = 10;
  bool operator==(const SignalMessage&) const = default;
};
/// The sender is alive and has nothing else to say.
struct AliveMessage {
  bool operator==(const AliveMessage&) const = default;
};

using Message = std::variant<
    ChallengeRequestMessage,
    ChallengeMessage,
    ProofMessage,
    HelloMessage,
    AcceptedMessage,
    RefusedMessage,
    StartMessage,
    StopMessage,
    EndMessage,
    FailedMessage,
    CannotStartMessage,
    FinishedMessage,
    StoppedMessage,
    InterruptedMessage,
    SignalMessage,
    AliveMessage>;

/// One message as JSON. Strings that would not fit are shortened.
ACCELERATE_INTERNAL std::string encode_payload(const Message& message);

/// One frame: four bytes of length, most significant first, then the payload.
ACCELERATE_INTERNAL std::string frame_of(const std::string& payload);

/// Parses a payload and escapes its strings as `printable` does. Throws
/// `CommError` unless it is exactly one message with values in range.
ACCELERATE_INTERNAL Message decode_payload(std::string_view payload);

/// Splits a byte stream into frames.
class ACCELERATE_INTERNAL FrameReader {
 public:
  /// Longer frames are rejected before they are stored.
  void set_limit(size_t limit) { limit_ = limit; }
  void add(std::string_view bytes) { bytes_ += bytes; }
  /// The next complete payload. Empty if more bytes are needed. Throws
  /// `CommError` if a length is zero or above the limit.
  std::optional<std::string> next();

 private:
  std::string bytes_;
  size_t limit_ = kMaxFrameBytes;
};

} // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
// The sending half of a control connection.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "launcher/launch/machines/handshake.h"
#include "launcher/launch/machines/protocol.h"

namespace accelerate {

/// Writes messages to a socket without blocking. The launcher's main thread
/// sends messages. `beat` is for the thread of a `Pulse`.
class Outbox {
 public:
  /// The socket belongs to the caller, and must stay open until `close`.
  explicit Outbox(int socket) : socket_(socket) {}

  void send(const Message& message);
  /// Authenticates every later frame, and starts to send alive messages.
  void seal(FrameSeal seal);
  /// Sends more pending data. Returns whether some is left.
  bool flush();
  /// Reports that the launcher's main thread is running.
  void turn();
  /// Sends an alive message if nothing else is pending.
  void beat();
  void close();

 private:
  void flush_locked();

  std::mutex mutex_;
  int socket_;
  std::optional<FrameSeal> seal_;
  std::string unsent_;
  std::chrono::steady_clock::time_point last_turn_ =
      std::chrono::steady_clock::now();
};

} // namespace accelerate

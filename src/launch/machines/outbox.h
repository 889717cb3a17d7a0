// SPDX-License-Identifier: Apache-2.0
// The sending half of a control connection.
#pragma once

#include <chrono>
#include <mutex>
#include <optional>
#include <string>

#include "accelerate/export.h"
#include "launch/machines/handshake.h"
#include "launch/machines/protocol.h"

namespace accelerate {

/// Puts messages on a socket without ever waiting for it. The launcher's own
/// thread sends; `beat` is for the thread of a `Pulse`.
class ACCELERATE_API Outbox {
 public:
  /// The socket stays the caller's, and open until `close`.
  explicit Outbox(int socket) : socket_(socket) {}

  void send(const Message& message);
  /// Every later frame is sealed; signs of life begin.
  void seal(FrameSeal seal);
  /// Sends more of what waits; returns whether something still does.
  bool flush();
  /// The launcher's own thread still turns.
  void turn();
  /// A sign of life, where nothing else is under way.
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

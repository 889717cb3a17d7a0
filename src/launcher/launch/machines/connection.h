// SPDX-License-Identifier: Apache-2.0
// A control connection between two launchers.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "core/base/internal.h"
#include "core/base/unique_file.h"
#include "launcher/launch/machines/outbox.h"
#include "launcher/launch/machines/protocol.h"
#include "launcher/launch/machines/pulse.h"
#include "launcher/launch/supervise/event_loop.h"

namespace accelerate {

/// How long a peer may be silent. A cut cable or a power failure does not close
/// a connection, so peers send an alive message every second.
struct Patience {
  /// After this time, the silence is reported.
  std::chrono::milliseconds notice{5000};
  /// After this time, the peer is considered lost.
  std::chrono::milliseconds limit{30000};
};

/// "NAME has been silent ...": the message for `Callbacks::silent` and
/// `Callbacks::heard_again`.
std::string silence_message(
    const std::string& name,
    const Patience& patience,
    const std::string& how);
std::string return_message(
    const std::string& name,
    std::chrono::seconds silence);

/// Sends and receives messages on a connected socket. The loop calls the
/// callbacks, none after `closed`. A callback may destroy the connection only
/// through `EventLoop::after`.
class ACCELERATE_INTERNAL Connection {
 public:
  struct Callbacks {
    std::function<void(Message)> received = {};
    /// `why` completes "the connection ...".
    std::function<void(const std::string& why)> closed = {};
    /// Called once per silence longer than `Patience::notice`. `how` completes
    /// "it has been silent for 5 s: ...".
    std::function<void(const std::string& how)> silent = {};
    /// Called when the peer is heard again after a silence.
    std::function<void(std::chrono::seconds silence)> heard_again = {};
  };

  Connection(
      EventLoop& loop,
      Pulse& pulse,
      UniqueFile socket,
      Patience patience,
      Callbacks callbacks);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void send(const Message& message);
  /// Call it after the handshake: later frames of both directions are
  /// authenticated. Before the handshake, the peer is untrusted: its frames
  /// must be short, and its time limit is `Patience::notice`.
  void seal(FrameSeal outgoing, FrameSeal incoming);
  /// Closes the connection after everything was sent, without a callback.
  void close();
  bool is_open() const { return static_cast<bool>(socket_); }
  /// Whether the peer has been silent for `Patience::notice`.
  bool is_silent() const { return is_named_; }

 private:
  void on_events(short events);
  void read_some();
  void heard();
  Message open_frame(const std::string& payload);
  void watch();
  void look();
  void fail(const std::string& why);

  EventLoop& loop_;
  Pulse& pulse_;
  UniqueFile socket_;
  Outbox outbox_;
  Patience patience_;
  Callbacks callbacks_;
  FrameReader reader_;
  std::optional<FrameSeal> incoming_;
  EventLoop::Clock::time_point last_heard_ = EventLoop::Clock::now();
  bool is_named_ = false;
  EventLoop::TimerId timer_ = 0;
};

} // namespace accelerate

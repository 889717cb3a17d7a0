// SPDX-License-Identifier: Apache-2.0
// One control connection between two launchers.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "accelerate/export.h"
#include "launch/machines/protocol.h"
#include "launch/supervise/event_loop.h"
#include "launch/supervise/unique_file.h"

namespace accelerate {

/// Sends a sign of life every second and notices a peer that is silent for
/// five: a cut cable or a machine that lost its power close no connection.
inline constexpr std::chrono::milliseconds kHeartbeat{1000};
inline constexpr std::chrono::milliseconds kSilenceLimit{5000};

/// Sends and receives messages on a connected socket. Callbacks come from the
/// loop; after `closed` nothing comes any more. A callback may destroy the
/// connection only through `EventLoop::after`.
class ACCELERATE_API Connection {
 public:
  struct Callbacks {
    std::function<void(Message)> received = {};
    /// `why` completes "the connection ...".
    std::function<void(const std::string& why)> closed = {};
  };

  Connection(EventLoop& loop, UniqueFile socket, Callbacks callbacks);
  ~Connection();
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  void send(const Message& message);
  void set_limit(size_t bytes) { reader_.set_limit(bytes); }
  /// Ends it from this side after what was sent has left, without a callback.
  void close();
  bool is_open() const { return static_cast<bool>(socket_); }

 private:
  void on_events(short events);
  void read_some();
  void write_some();
  void watch();
  void beat();
  void fail(const std::string& why);

  EventLoop& loop_;
  UniqueFile socket_;
  Callbacks callbacks_;
  FrameReader reader_;
  std::string unsent_;
  EventLoop::Clock::time_point last_heard_ = EventLoop::Clock::now();
  EventLoop::TimerId timer_ = 0;
};

} // namespace accelerate

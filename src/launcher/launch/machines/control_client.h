// SPDX-License-Identifier: Apache-2.0
// The side of the control connection on machines other than machine 0.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>

#include "accelerate/process.h"
#include "launcher/launch/machines/connection.h"
#include "launcher/launch/machines/handshake.h"
#include "launcher/launch/machines/protocol.h"
#include "launcher/launch/machines/pulse.h"
#include "launcher/launch/supervise/event_loop.h"

namespace accelerate {

/// Connects to machine 0, with retries until it is reachable or `join_limit` is
/// over. After mutual authentication, introduces this machine. Once accepted, a
/// lost connection is not restored until `join_again`.
class ControlClient {
 public:
  struct Callbacks {
    std::function<void(Message)> received = {};
    /// `why` is a complete sentence. `was_accepted` is true if machine 0 had
    /// accepted this machine.
    std::function<void(const std::string& why, bool was_accepted)> lost = {};
    std::function<void(const std::string& line)> say = {};
  };

  ControlClient(
      EventLoop& loop,
      Rendezvous machine_0,
      std::string token,
      HelloMessage hello,
      std::chrono::seconds join_limit,
      Patience patience,
      Callbacks callbacks);
  ~ControlClient();

  /// No effect unless machine 0 has accepted this machine.
  void send(const Message& message);
  /// Starts again with the full time limit. With `is_over_where_refused`,
  /// machine 0 counts as lost for good if it is up but does not listen.
  void join_again(bool is_over_where_refused);
  /// Call it if machine 0 does not accept this machine yet. Retries within the
  /// time limit.
  void ask_again(const std::string& why);
  /// Closes the connection without a callback.
  void close();

 private:
  void try_to_connect();
  void connected(UniqueFile socket);
  void received(Message message);
  void take_proof(const Message& message);
  void failed(const std::string& why);
  std::string endpoint() const;

  EventLoop& loop_;
  Rendezvous machine_0_;
  std::string token_;
  HelloMessage hello_;
  EventLoop::Clock::time_point join_end_;
  std::chrono::seconds join_limit_;
  Patience patience_;
  Callbacks callbacks_;
  Pulse pulse_;
  UniqueFile connecting_;
  std::optional<Handshake> handshake_;
  std::unique_ptr<Connection> connection_;
  EventLoop::TimerId timer_ = 0;
  bool is_accepted_ = false;
  bool is_over_where_refused_ = false;
  bool is_closed_ = false;
};

} // namespace accelerate

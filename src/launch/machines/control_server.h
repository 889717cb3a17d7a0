// SPDX-License-Identifier: Apache-2.0
// Machine 0's side of the control connections.
#pragma once

#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/export.h"
#include "launch/machines/connection.h"
#include "launch/machines/protocol.h"
#include "launch/supervise/event_loop.h"

namespace accelerate {

/// Takes the roll: one connection per machine, each rank once, only with the
/// same token, version and configuration; everybody else is told why not.
/// Strangers cost little: a peer has a few seconds and one small frame to
/// introduce itself, and only so many may try at a time.
class ACCELERATE_API ControlServer {
 public:
  struct Callbacks {
    /// Every machine is here; once.
    std::function<void()> complete = {};
    std::function<void(size_t machine, Message)> received = {};
    std::function<void(size_t machine, const std::string& why)> lost = {};
    /// A machine that was lost has come again, with as many processes.
    std::function<void(size_t machine)> returned = {};
    std::function<void(const std::string& line)> say = {};
  };

  /// `own` is what machine 0 would say itself; the others must agree with it.
  ControlServer(
      EventLoop& loop,
      UniqueFile listener,
      HelloMessage own,
      int num_machines,
      Callbacks callbacks);
  ~ControlServer();

  /// By machine; those that have not come are unset.
  const std::vector<std::optional<HelloMessage>>& roll() const { return roll_; }
  /// Nothing happens where the machine is lost.
  void send(size_t machine, const Message& message);
  /// Calls `done` when all machines have hung up, after two seconds at most:
  /// what was sent last must not be cut off.
  void finish(std::function<void()> done);

 private:
  struct Peer {
    std::unique_ptr<Connection> connection = {};
    std::string address = {};
    std::optional<size_t> machine = {};
    EventLoop::TimerId deadline = 0;
    bool is_refused = false;
  };
  using PeerPlace = std::list<Peer>::iterator;

  void accept_some();
  void add_peer(UniqueFile socket);
  void received(PeerPlace peer, Message message);
  void take_hello(PeerPlace peer, const HelloMessage& hello);
  void refuse(PeerPlace peer, const std::string& reason);
  void closed(PeerPlace peer, const std::string& why);
  void remove_soon(PeerPlace peer);
  void erase_soon(PeerPlace peer);
  void make_room();
  bool is_everybody_gone() const;

  EventLoop& loop_;
  UniqueFile listener_;
  HelloMessage own_;
  Callbacks callbacks_;
  std::vector<std::optional<HelloMessage>> roll_;
  std::vector<Connection*> machines_;
  std::list<Peer> peers_;
  size_t num_strangers_ = 0;
  int num_refusals_ = 0;
  bool is_complete_ = false;
  std::function<void()> done_;
};

/// Why `hello` cannot join a job of `num_machines` whose machine 0 would say
/// `own`; empty where it can.
ACCELERATE_API std::string reason_to_refuse(
    const HelloMessage& own,
    const HelloMessage& hello,
    int num_machines);

/// One line per machine: host, ranks, devices.
ACCELERATE_API std::string format_roll(const std::vector<HelloMessage>& roll);

} // namespace accelerate

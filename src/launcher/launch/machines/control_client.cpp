// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/control_client.h"

#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "launcher/launch/machines/sockets.h"

namespace accelerate {
namespace {

constexpr std::chrono::milliseconds kRetry{250};
// The limit of one attempt to connect, because a host that is down does not
// answer at all.
constexpr std::chrono::milliseconds kConnectLimit{3000};

} // namespace

ControlClient::ControlClient(
    EventLoop& loop,
    Rendezvous machine_0,
    std::string token,
    HelloMessage hello,
    std::chrono::seconds join_limit,
    Patience patience,
    Callbacks callbacks)
    : loop_(loop),
      machine_0_(std::move(machine_0)),
      token_(std::move(token)),
      hello_(std::move(hello)),
      join_end_(EventLoop::Clock::now() + join_limit),
      join_limit_(join_limit),
      patience_(patience),
      callbacks_(std::move(callbacks)) {
  timer_ =
      loop_.after(std::chrono::milliseconds(0), [this] { try_to_connect(); });
}

ControlClient::~ControlClient() {
  close();
}

void ControlClient::try_to_connect() {
  connection_.reset();
  try {
    connecting_ = begin_connect(machine_0_.address, machine_0_.port);
  } catch (const CommError& error) {
    failed(error.what());
    return;
  }
  const int file = connecting_.get();
  timer_ = loop_.after(kConnectLimit, [this, file] {
    loop_.unwatch(file);
    connecting_.reset();
    failed("nothing answers there");
  });
  loop_.watch(file, POLLOUT, [this, file](short) {
    loop_.unwatch(file);
    loop_.cancel(std::exchange(timer_, 0));
    if (const int cause = connect_error(file); cause != 0) {
      connecting_.reset();
      if (cause == ECONNREFUSED && is_over_where_refused_) {
        join_end_ = EventLoop::Clock::now();
      }
      failed(std::strerror(cause));
    } else {
      connected(std::move(connecting_));
    }
  });
}

void ControlClient::connected(UniqueFile socket) {
  const std::string name = str_cat("machine 0 (", endpoint(), ")");
  handshake_.emplace(Side::kMember, token_);
  connection_ = std::make_unique<Connection>(
      loop_,
      pulse_,
      std::move(socket),
      patience_,
      Connection::Callbacks{
          [this](Message message) { received(std::move(message)); },
          [this](const std::string& why) { failed("the connection " + why); },
          [this, name](const std::string& how) {
            callbacks_.say(silence_message(name, patience_, how));
          },
          [this, name](std::chrono::seconds silence) {
            callbacks_.say(return_message(name, silence));
          }});
  connection_->send(handshake_->first_message());
}

void ControlClient::received(Message message) {
  if (handshake_) {
    take_proof(message);
  } else if (std::holds_alternative<AcceptedMessage>(message)) {
    is_accepted_ = true;
  } else {
    callbacks_.received(std::move(message));
  }
}

void ControlClient::take_proof(const Message& message) {
  const Handshake::Step step = handshake_->take(message);
  if (!step.refusal.empty()) {
    if (std::holds_alternative<ProofMessage>(message)) {
      close();
      callbacks_.lost(
          str_cat(
              "[launch] the program at ",
              endpoint(),
              " does not have the job token; check that --main_process_ip and "
              "--main_process_port belong to this job"),
          false);
    } else {
      callbacks_.received(RefusedMessage{step.refusal});
    }
    return;
  }
  if (step.answer) {
    connection_->send(*step.answer);
  }
  if (step.is_done) {
    connection_->seal(
        handshake_->seal_of(Side::kMember), handshake_->seal_of(Side::kLeader));
    handshake_.reset();
    connection_->send(hello_);
  }
}

std::string ControlClient::endpoint() const {
  return str_cat(machine_0_.address, " port ", machine_0_.port);
}

void ControlClient::failed(const std::string& why) {
  if (is_closed_) {
    return;
  }
  if (is_accepted_) {
    callbacks_.lost(
        str_cat("[launch] machine 0 (", endpoint(), ") is lost: ", why), true);
    return;
  }
  if (EventLoop::Clock::now() + kRetry < join_end_) {
    timer_ = loop_.after(kRetry, [this] { try_to_connect(); });
    return;
  }
  if (is_over_where_refused_) {
    callbacks_.lost(
        str_cat(
            "[launch] machine 0 (",
            endpoint(),
            ") did not return (",
            why,
            "), so the job is over; launch it again"),
        false);
    return;
  }
  callbacks_.lost(
      str_cat(
          "[launch] machine 0 could not be reached at ",
          endpoint(),
          " within ",
          join_limit_.count(),
          " s (",
          why,
          "); check that its launcher is running, that --main_process_ip "
          "and --main_process_port are correct, and that the firewall allows "
          "that port"),
      false);
}

void ControlClient::send(const Message& message) {
  if (connection_ && is_accepted_) {
    connection_->send(message);
  }
}

void ControlClient::join_again(bool is_over_where_refused) {
  is_accepted_ = false;
  is_over_where_refused_ = is_over_where_refused;
  join_end_ = EventLoop::Clock::now() + join_limit_;
  loop_.cancel(timer_);
  timer_ = loop_.after(kRetry, [this] { try_to_connect(); });
}

void ControlClient::ask_again(const std::string& why) {
  connection_->close();
  failed(why);
}

void ControlClient::close() {
  is_closed_ = true;
  loop_.cancel(std::exchange(timer_, 0));
  if (connecting_) {
    loop_.unwatch(connecting_.get());
    connecting_.reset();
  }
  if (connection_) {
    connection_->close();
  }
}

} // namespace accelerate

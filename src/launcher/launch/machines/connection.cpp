// SPDX-License-Identifier: Apache-2.0
#include "launcher/launch/machines/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "launcher/launch/machines/message_code.h"

namespace accelerate {
namespace {

constexpr std::chrono::milliseconds kLook{1000};

void set_option(int socket, int name, int value) {
  setsockopt(socket, IPPROTO_TCP, name, &value, sizeof(value));
}

// The system of the peer acknowledges our alive messages even if the launcher
// there does not read them. If the last acknowledgement is old, the connection
// is cut.
bool does_system_answer(int socket, const Patience& patience) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  const auto recent =
      std::min(patience.limit / 2, std::chrono::milliseconds(3000));
  return getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) == 0 &&
         std::chrono::milliseconds(info.tcpi_last_ack_recv) < recent;
}

std::string describe_silence(int socket, const Patience& patience) {
  return does_system_answer(socket, patience)
             ? "its operating system answers, but its launcher does not, so "
               "the launcher is suspended or overloaded"
             : "nothing answers, so the machine or the network is down";
}

} // namespace

std::string silence_message(
    const std::string& name,
    const Patience& patience,
    const std::string& how) {
  return str_cat(
      "[launch] ",
      name,
      " has been silent for ",
      patience.notice.count() / 1000,
      " s: ",
      how,
      "; giving up after ",
      patience.limit.count() / 1000,
      " s of silence (--heartbeat_seconds)");
}

std::string return_message(
    const std::string& name,
    std::chrono::seconds silence) {
  return str_cat(
      "[launch] ", name, " is back after ", silence.count(), " s of silence");
}

Connection::Connection(
    EventLoop& loop,
    Pulse& pulse,
    UniqueFile socket,
    Patience patience,
    Callbacks callbacks)
    : loop_(loop),
      pulse_(pulse),
      socket_(std::move(socket)),
      outbox_(socket_.get()),
      patience_(patience),
      callbacks_(std::move(callbacks)) {
  set_option(socket_.get(), TCP_NODELAY, 1);
  // TCP_RTO_MAX_MS of Linux 6.15. Without it, after a cut, TCP may wait as long
  // again before its next retry. Older kernels reject it.
  constexpr int kTryAgainMs = 44;
  set_option(socket_.get(), kTryAgainMs, 2000);
  reader_.set_limit(kMaxUnauthenticatedBytes);
  watch();
  timer_ = loop_.after(kLook, [this] { look(); });
}

Connection::~Connection() {
  close();
}

void Connection::send(const Message& message) {
  if (socket_) {
    outbox_.send(message);
    watch();
  }
}

void Connection::seal(FrameSeal outgoing, FrameSeal incoming) {
  incoming_ = std::move(incoming);
  reader_.set_limit(kMaxFrameBytes + kCodeBytes);
  outbox_.seal(std::move(outgoing));
  pulse_.add(this, [this] { outbox_.beat(); });
}

void Connection::close() {
  loop_.cancel(std::exchange(timer_, 0));
  pulse_.remove(this);
  if (socket_) {
    outbox_.close();
    loop_.unwatch(socket_.get());
    shutdown(socket_.get(), SHUT_WR);
    socket_.reset();
  }
}

void Connection::watch() {
  const auto events =
      static_cast<short>(outbox_.flush() ? POLLIN | POLLOUT : POLLIN);
  loop_.watch(socket_.get(), events, [this](short ready) { on_events(ready); });
}

void Connection::on_events(short events) {
  if ((events & POLLOUT) != 0) {
    watch();
  }
  if ((events & (POLLIN | POLLHUP | POLLERR)) != 0) {
    read_some();
  }
}

void Connection::read_some() {
  char buffer[16384];
  const auto size = recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (size == 0) {
    fail("was closed by the other machine");
    return;
  }
  if (size < 0) {
    if (errno != EAGAIN && errno != EINTR) {
      fail(str_cat("broke (", std::strerror(errno), ")"));
    }
    return;
  }
  heard();
  try {
    reader_.add({buffer, static_cast<size_t>(size)});
    while (socket_) {
      const auto payload = reader_.next();
      if (!payload) {
        break;
      }
      Message message = open_frame(*payload);
      if (!std::holds_alternative<AliveMessage>(message)) {
        callbacks_.received(std::move(message));
      }
    }
  } catch (const CommError& error) {
    fail(str_cat("received invalid data: ", error.what()));
  }
}

Message Connection::open_frame(const std::string& payload) {
  if (!incoming_) {
    return decode_payload(payload);
  }
  const auto opened = incoming_->open(payload);
  if (!opened) {
    throw CommError(
        "[launch] a message was changed, repeated or dropped in transit; is "
        "someone tampering with the network?");
  }
  return decode_payload(*opened);
}

void Connection::heard() {
  const auto silence = EventLoop::Clock::now() - last_heard_;
  last_heard_ = EventLoop::Clock::now();
  if (std::exchange(is_named_, false) && callbacks_.heard_again) {
    callbacks_.heard_again(
        std::chrono::duration_cast<std::chrono::seconds>(silence));
  }
}

void Connection::look() {
  outbox_.turn();
  const auto silence = EventLoop::Clock::now() - last_heard_;
  const auto limit = incoming_ ? patience_.limit : patience_.notice;
  if (silence > limit) {
    fail(str_cat(
        "has been silent for ",
        std::chrono::duration_cast<std::chrono::seconds>(silence).count(),
        " s: ",
        describe_silence(socket_.get(), patience_)));
    return;
  }
  timer_ = loop_.after(kLook, [this] { look(); });
  if (silence > patience_.notice && !std::exchange(is_named_, true) &&
      callbacks_.silent) {
    callbacks_.silent(describe_silence(socket_.get(), patience_));
  }
}

void Connection::fail(const std::string& why) {
  close();
  // Copy the callback, because it may destroy the object that owns it.
  const auto closed = callbacks_.closed;
  closed(why);
}

} // namespace accelerate

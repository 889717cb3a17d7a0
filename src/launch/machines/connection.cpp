// SPDX-License-Identifier: Apache-2.0
#include "launch/machines/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {
namespace {

// A peer that takes nothing for this long is gone in all but name.
constexpr size_t kMaxUnsent = 1 << 20;

} // namespace

Connection::Connection(EventLoop& loop, UniqueFile socket, Callbacks callbacks)
    : loop_(loop),
      socket_(std::move(socket)),
      callbacks_(std::move(callbacks)) {
  const int yes = 1;
  setsockopt(socket_.get(), IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  watch();
  timer_ = loop_.after(kHeartbeat, [this] { beat(); });
}

Connection::~Connection() {
  close();
}

void Connection::send(const Message& message) {
  if (!socket_) {
    return;
  }
  unsent_ += encode_frame(message);
  write_some();
}

void Connection::close() {
  loop_.cancel(std::exchange(timer_, 0));
  if (socket_) {
    loop_.unwatch(socket_.get());
    shutdown(socket_.get(), SHUT_WR);
    socket_.reset();
  }
}

void Connection::watch() {
  const auto events =
      static_cast<short>(unsent_.empty() ? POLLIN : POLLIN | POLLOUT);
  loop_.watch(socket_.get(), events, [this](short ready) { on_events(ready); });
}

void Connection::on_events(short events) {
  if ((events & POLLOUT) != 0) {
    write_some();
  }
  if (socket_ && (events & (POLLIN | POLLHUP | POLLERR)) != 0) {
    read_some();
  }
}

void Connection::read_some() {
  char buffer[16384];
  const auto size = recv(socket_.get(), buffer, sizeof(buffer), MSG_DONTWAIT);
  if (size == 0) {
    fail("was closed by the other side");
    return;
  }
  if (size < 0) {
    if (errno != EAGAIN && errno != EINTR) {
      fail(str_cat("broke (", std::strerror(errno), ")"));
    }
    return;
  }
  last_heard_ = EventLoop::Clock::now();
  try {
    reader_.add({buffer, static_cast<size_t>(size)});
    while (socket_) {
      const auto payload = reader_.next();
      if (!payload) {
        break;
      }
      Message message = decode_payload(*payload);
      if (!std::holds_alternative<AliveMessage>(message)) {
        callbacks_.received(std::move(message));
      }
    }
  } catch (const CommError& error) {
    fail(str_cat("brought something that is no message: ", error.what()));
  }
}

void Connection::write_some() {
  const auto size = ::send(
      socket_.get(),
      unsent_.data(),
      unsent_.size(),
      MSG_DONTWAIT | MSG_NOSIGNAL);
  if (size > 0) {
    unsent_.erase(0, static_cast<size_t>(size));
  }
  // A broken connection is noticed by the reading side.
  if (unsent_.size() > kMaxUnsent) {
    unsent_.clear();
  }
  watch();
}

void Connection::beat() {
  const auto silence = EventLoop::Clock::now() - last_heard_;
  if (silence > kSilenceLimit) {
    fail(str_cat(
        "has been silent for ",
        std::chrono::duration_cast<std::chrono::seconds>(silence).count(),
        " s"));
    return;
  }
  timer_ = loop_.after(kHeartbeat, [this] { beat(); });
  if (unsent_.empty()) {
    send(AliveMessage{});
  }
}

void Connection::fail(const std::string& why) {
  close();
  // The callback may be the last user of this object's members.
  const auto closed = callbacks_.closed;
  closed(why);
}

} // namespace accelerate

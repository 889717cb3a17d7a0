// SPDX-License-Identifier: Apache-2.0
// The page server on libmicrohttpd, which is loaded when a page is opened.
#include <arpa/inet.h>
#include <fcntl.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>

#include "accelerate/error.h"
#include "core/base/optional_library.h"
#include "core/base/str.h"
#include "core/base/unique_file.h"
#include "launcher/watch/page_server.h"

#if MHD_VERSION < 0x00097002
using MHD_Result = int; // The type in older versions, for example on Red Hat 8.
#endif

namespace accelerate {
namespace {

struct MicrohttpdFunctions {
  decltype(&MHD_start_daemon) start_daemon;
  decltype(&MHD_stop_daemon) stop_daemon;
  decltype(&MHD_create_response_from_buffer) create_response_from_buffer;
  decltype(&MHD_add_response_header) add_response_header;
  decltype(&MHD_queue_response) queue_response;
  decltype(&MHD_destroy_response) destroy_response;
  decltype(&MHD_lookup_connection_value) lookup_connection_value;
  decltype(&MHD_get_connection_info) get_connection_info;
};

const MicrohttpdFunctions& microhttpd() {
  static const MicrohttpdFunctions functions = [] {
    const OptionalLibrary library(
        "libmicrohttpd.so.12", "[watch] A page", "libmicrohttpd12");
    MicrohttpdFunctions found{};
    library.find("MHD_start_daemon", found.start_daemon);
    library.find("MHD_stop_daemon", found.stop_daemon);
    library.find(
        "MHD_create_response_from_buffer", found.create_response_from_buffer);
    library.find("MHD_add_response_header", found.add_response_header);
    library.find("MHD_queue_response", found.queue_response);
    library.find("MHD_destroy_response", found.destroy_response);
    library.find("MHD_lookup_connection_value", found.lookup_connection_value);
    library.find("MHD_get_connection_info", found.get_connection_info);
    return found;
  }();
  return functions;
}

/// Returns a listening socket, which libmicrohttpd closes.
int listen_on_loopback(int& port) {
  UniqueFile socket_file(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  socklen_t size = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  const int on = 1;
  setsockopt(socket_file.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!socket_file || bind(socket_file.get(), plain, size) != 0 ||
      listen(socket_file.get(), SOMAXCONN) != 0 ||
      getsockname(socket_file.get(), plain, &size) != 0) {
    throw SystemError(str_cat(
        "[watch] Cannot listen on port ",
        port,
        " of 127.0.0.1: ",
        std::strerror(errno),
        ". Pass another --port, or 0 for a free one"));
  }
  port = ntohs(address.sin_port);
  return fcntl(socket_file.get(), F_DUPFD_CLOEXEC, 0);
}

} // namespace

struct PageServer::Impl {
  using Clock = std::chrono::steady_clock;

  int port = 0;
  Answer answer;
  MHD_Daemon* daemon = nullptr;
  /// Open connections by socket, with the time when each began. A limit is
  /// needed because libmicrohttpd's own one only applies to silent clients.
  std::mutex mutex;
  std::map<int, Clock::time_point> connections;

  static int socket_of(MHD_Connection* connection) {
    return microhttpd()
        .get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)
        ->connect_fd;
  }

  static void note_connection(
      void* self,
      MHD_Connection* connection,
      void** /*context*/,
      MHD_ConnectionNotificationCode code) {
    auto& impl = *static_cast<Impl*>(self);
    const std::lock_guard<std::mutex> lock(impl.mutex);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
      if (impl.connections.size() + 1 >= kMaxConnections) {
        impl.close_oldest();
      }
      impl.connections[socket_of(connection)] = Clock::now();
    } else {
      impl.connections.erase(socket_of(connection));
    }
  }

  /// Makes room for the next connection. Otherwise silent clients would block
  /// all others until their time limit.
  void close_oldest() {
    const auto oldest = std::min_element(
        connections.begin(),
        connections.end(),
        [](const auto& a, const auto& b) { return a.second < b.second; });
    shutdown(oldest->first, SHUT_RDWR);
    oldest->second = Clock::time_point::max();
  }

  static std::optional<std::string>
  look_up(MHD_Connection* connection, MHD_ValueKind kind, const char* name) {
    const char* value =
        microhttpd().lookup_connection_value(connection, kind, name);
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  }

  PageAnswer answer_to(
      MHD_Connection* connection,
      const char* path,
      const char* method) const {
    try {
      return answer(
          {.method = method,
           .path = path,
           .argument =
               [connection](const char* name) {
                 return look_up(connection, MHD_GET_ARGUMENT_KIND, name);
               },
           .header =
               [connection](const char* name) {
                 return look_up(connection, MHD_HEADER_KIND, name);
               }});
    } catch (const std::exception& error) {
      return {.status = 500, .body = str_cat(error.what(), '\n')};
    }
  }

  static MHD_Result handle(
      void* self,
      MHD_Connection* connection,
      const char* path,
      const char* method,
      const char* /*version*/,
      const char* /*upload*/,
      size_t* /*upload_size*/,
      void** /*context*/) {
    const auto answer =
        static_cast<Impl*>(self)->answer_to(connection, path, method);
    const auto& library = microhttpd();
    MHD_Response* response = library.create_response_from_buffer(
        answer.body.size(),
        const_cast<char*>(answer.body.data()),
        MHD_RESPMEM_MUST_COPY);
    if (response == nullptr) {
      return MHD_NO;
    }
    library.add_response_header(response, "Content-Type", answer.type);
    // Allow one request per connection, so that the time limit applies to it.
    library.add_response_header(response, "Connection", "close");
    for (const auto& [name, value] : answer.headers) {
      library.add_response_header(response, name.c_str(), value.c_str());
    }
    const auto result =
        library.queue_response(connection, answer.status, response);
    library.destroy_response(response);
    return result;
  }
};

PageServer::PageServer(int port, Answer answer)
    : impl_(std::make_unique<Impl>()) {
  const auto& library = microhttpd();
  impl_->answer = std::move(answer);
  impl_->port = port;
  const int listener = listen_on_loopback(impl_->port);
  impl_->daemon = library.start_daemon(
      MHD_USE_AUTO | MHD_USE_INTERNAL_POLLING_THREAD,
      0,
      nullptr,
      nullptr,
      &Impl::handle,
      impl_.get(),
      MHD_OPTION_LISTEN_SOCKET,
      listener,
      MHD_OPTION_CONNECTION_LIMIT,
      static_cast<unsigned>(kMaxConnections),
      MHD_OPTION_CONNECTION_MEMORY_LIMIT,
      kMaxHeaderBytes,
      MHD_OPTION_CONNECTION_TIMEOUT,
      static_cast<unsigned>(kRequestSeconds),
      MHD_OPTION_NOTIFY_CONNECTION,
      &Impl::note_connection,
      impl_.get(),
      MHD_OPTION_END);
  if (impl_->daemon == nullptr) {
    throw SystemError("[watch] libmicrohttpd failed to start");
  }
}

PageServer::~PageServer() {
  microhttpd().stop_daemon(impl_->daemon);
}

int PageServer::port() const {
  return impl_->port;
}

void PageServer::close_slow_connections() {
  const auto oldest =
      Impl::Clock::now() - std::chrono::seconds(kRequestSeconds);
  const std::lock_guard<std::mutex> lock(impl_->mutex);
  for (const auto& [connection, began] : impl_->connections) {
    if (began < oldest) {
      shutdown(connection, SHUT_RDWR);
    }
  }
}

} // namespace accelerate

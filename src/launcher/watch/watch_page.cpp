// SPDX-License-Identifier: Apache-2.0
#include "launcher/watch/watch_page.h"

#include <sys/random.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string_view>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "launcher/watch/page.h"

namespace accelerate {
namespace {

constexpr std::string_view kCookie = "accelerate_watch";

constexpr std::array<std::pair<const char*, const char*>, 6> kPageHeaders = {{
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; connect-src "
     "'self'; img-src data:; base-uri 'none'; form-action 'none'; "
     "frame-ancestors 'none'"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Resource-Policy", "same-origin"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
    {"Cache-Control", "no-store"},
}};

PageAnswer refusal(unsigned status, std::string why) {
  return {.status = status, .body = std::move(why) + '\n'};
}

/// Compares in a time that does not depend on where the strings differ.
bool is_same_secret(std::string_view given, std::string_view secret) {
  if (given.size() != secret.size()) {
    return false;
  }
  unsigned difference = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    difference |= static_cast<unsigned char>(given[i]) ^
                  static_cast<unsigned char>(secret[i]);
  }
  return difference == 0;
}

/// Accepts any port, because it may be forwarded.
bool is_loopback_host(std::string_view host) {
  const auto colon = host.rfind(':');
  if (colon != std::string_view::npos && !host.ends_with(']')) {
    host = host.substr(0, colon);
  }
  return host == "127.0.0.1" || host == "localhost" || host == "[::1]";
}

template <class Number>
std::optional<Number> number_argument(
    const PageRequest& request,
    const char* name) {
  const auto text = request.argument(name);
  Number number = 0;
  if (!text) {
    return std::nullopt;
  }
  const auto* end = text->data() + text->size();
  const auto [stop, error] = std::from_chars(text->data(), end, number);
  return error == std::errc() && stop == end ? std::optional(number)
                                             : std::nullopt;
}

std::optional<AxisRange> range_argument(const PageRequest& request) {
  const auto axis = request.argument("axis");
  const auto from = number_argument<double>(request, "from");
  const auto to = number_argument<double>(request, "to");
  if (!from || !to || (axis != "step" && axis != "time")) {
    return std::nullopt;
  }
  return AxisRange{
      axis == "step" ? RunAxis::kStep : RunAxis::kTime, *from, *to};
}

PageAnswer json_answer(const nlohmann::json& value) {
  // Names in files may be cut in the middle of a UTF-8 character.
  return {
      .type = "application/json",
      .body =
          value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)};
}

double seconds_since_1970() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

} // namespace

WatchPage::WatchPage(RunList& runs, std::string token)
    : runs_(runs), token_(std::move(token)) {}

PageAnswer WatchPage::answer(const PageRequest& request) {
  PageAnswer answer;
  if (!is_loopback_host(request.header("Host").value_or(""))) {
    answer = refusal(403, "This page is only for this machine");
  } else if (request.method != "GET") {
    answer = refusal(405, "Only GET is supported");
    answer.headers.emplace_back("Allow", "GET");
  } else if (
      request.header("Content-Length").value_or("0") != "0" ||
      request.header("Transfer-Encoding")) {
    answer = refusal(413, "Requests with a body are not supported");
  } else if (!knows_token(request)) {
    answer = refusal(403, "Open the address that `accelerate watch` printed");
  } else {
    answer = answer_authenticated(request);
  }
  for (const auto& [name, value] : kPageHeaders) {
    answer.headers.emplace_back(name, value);
  }
  return answer;
}

bool WatchPage::knows_token(const PageRequest& request) const {
  if (const auto given = request.argument("token")) {
    return is_same_secret(*given, token_);
  }
  const auto cookies = request.header("Cookie").value_or("");
  std::string_view rest = cookies;
  while (!rest.empty()) {
    auto cookie = rest.substr(0, rest.find(';'));
    rest.remove_prefix(std::min(rest.size(), cookie.size() + 1));
    const auto name_end = cookie.find('=');
    // The name of the cookie does not matter. Pages of other runs have cookies
    // here, too.
    if (name_end != std::string_view::npos &&
        is_same_secret(cookie.substr(name_end + 1), token_)) {
      return true;
    }
  }
  return false;
}

PageAnswer WatchPage::answer_authenticated(const PageRequest& request) {
  if (request.path == "/" && request.argument("token")) {
    // Redirect, to remove the token from the address bar, bookmarks and
    // screenshots.
    return {
        .status = 303,
        .headers = {
            {"Location", "/"},
            {"Set-Cookie",
             // Cookies are shared between ports, so each page has its own name.
             str_cat(
                 kCookie,
                 '_',
                 token_.substr(0, 8),
                 '=',
                 token_,
                 "; HttpOnly; SameSite=Strict; Path=/")}}};
  }
  for (const auto& file : kPageFiles) {
    if (request.path == file.path) {
      return {.type = file.type, .body = file.content};
    }
  }
  const double now = seconds_since_1970();
  if (request.path == "/runs") {
    const auto since = number_argument<int64_t>(request, "since");
    return json_answer(runs_.list(since.value_or(-1), now));
  }
  const auto run = number_argument<size_t>(request, "run");
  if (!run) {
    return refusal(404, "Not found");
  }
  if (request.path == "/run") {
    const auto since = number_argument<int64_t>(request, "since");
    if (const auto shown = runs_.show(*run, since, now)) {
      return json_answer(*shown);
    }
  }
  if (const auto range = range_argument(request);
      request.path == "/range" && range) {
    if (const auto shown = runs_.show_range(*run, *range)) {
      return json_answer(*shown);
    }
  }
  if (request.path == "/csv") {
    std::optional<off_t> offset = std::max<off_t>(
        number_argument<off_t>(request, "offset").value_or(0), 0);
    if (auto text = runs_.csv(*run, offset)) {
      PageAnswer answer = {
          .type = "text/csv; charset=utf-8", .body = std::move(*text)};
      if (offset) {
        answer.headers.emplace_back("Next-Offset", std::to_string(*offset));
      }
      return answer;
    }
  }
  const auto log = number_argument<size_t>(request, "log");
  if (request.path == "/log" && log) {
    if (auto tail = runs_.log_tail(*run, *log)) {
      return {.body = std::move(*tail)};
    }
  }
  return refusal(404, "Not found");
}

std::string make_token() {
  std::array<unsigned char, 16> bytes{};
  if (getrandom(bytes.data(), bytes.size(), 0) !=
      static_cast<ssize_t>(bytes.size())) {
    throw SystemError(str_cat(
        "[watch] Cannot create a random token: ", std::strerror(errno)));
  }
  constexpr const char* kDigits = "0123456789abcdef";
  std::string token;
  for (const auto byte : bytes) {
    token += kDigits[byte >> 4];
    token += kDigits[byte & 15];
  }
  return token;
}

} // namespace accelerate

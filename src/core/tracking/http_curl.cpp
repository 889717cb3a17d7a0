// SPDX-License-Identifier: Apache-2.0
// Uses libcurl, which is loaded when a run first needs it.
#include <curl/curl.h>

#include "accelerate/error.h"
#include "core/base/optional_library.h"
#include "core/base/str.h"
#include "core/tracking/http.h"

namespace accelerate {
namespace {

constexpr long kConnectSeconds = 5;
constexpr long kRequestSeconds = 10;
/// Metrics servers never send longer answers.
constexpr size_t kMaxAnswer = 1 << 24;

struct CurlFunctions {
  decltype(&curl_global_init) global_init;
  decltype(&curl_easy_init) easy_init;
  decltype(&curl_easy_setopt) easy_setopt;
  decltype(&curl_easy_perform) easy_perform;
  decltype(&curl_easy_getinfo) easy_getinfo;
  decltype(&curl_easy_strerror) easy_strerror;
  decltype(&curl_easy_cleanup) easy_cleanup;
  decltype(&curl_slist_append) slist_append;
  decltype(&curl_slist_free_all) slist_free_all;
};

const CurlFunctions& curl() {
  static const CurlFunctions functions = [] {
    const OptionalLibrary library(
        "libcurl.so.4", "[init_trackers] The tracker 'mlflow'", "libcurl4");
    CurlFunctions found{};
    library.find("curl_global_init", found.global_init);
    library.find("curl_easy_init", found.easy_init);
    library.find("curl_easy_setopt", found.easy_setopt);
    library.find("curl_easy_perform", found.easy_perform);
    library.find("curl_easy_getinfo", found.easy_getinfo);
    library.find("curl_easy_strerror", found.easy_strerror);
    library.find("curl_easy_cleanup", found.easy_cleanup);
    library.find("curl_slist_append", found.slist_append);
    library.find("curl_slist_free_all", found.slist_free_all);
    found.global_init(CURL_GLOBAL_DEFAULT);
    return found;
  }();
  return functions;
}

size_t take_answer(char* bytes, size_t, size_t size, void* body) {
  auto& text = *static_cast<std::string*>(body);
  if (text.size() + size > kMaxAnswer) {
    return 0;
  }
  text.append(bytes, size);
  return size;
}

} // namespace

struct HttpClient::Impl {
  std::string root;
  CURL* handle = nullptr;
  curl_slist* headers = nullptr;

  ~Impl() {
    curl().slist_free_all(headers);
    curl().easy_cleanup(handle);
  }
  template <class Value>
  void set(CURLoption option, Value value) {
    curl().easy_setopt(handle, option, value);
  }
  void add_header(const std::string& line) {
    headers = curl().slist_append(headers, line.c_str());
  }
};

HttpClient::HttpClient(std::string root, const HttpLogin& login) {
  const auto& library = curl();
  impl_ = std::make_unique<Impl>();
  impl_->root = std::move(root);
  while (impl_->root.ends_with('/')) {
    impl_->root.pop_back();
  }
  impl_->handle = library.easy_init();
  impl_->add_header("Content-Type: application/json");
  if (!login.token.empty()) {
    impl_->add_header("Authorization: Bearer " + login.token);
  } else if (!login.user.empty()) {
    impl_->set(CURLOPT_HTTPAUTH, CURLAUTH_BASIC);
    impl_->set(CURLOPT_USERNAME, login.user.c_str());
    impl_->set(CURLOPT_PASSWORD, login.password.c_str());
  }
  impl_->set(CURLOPT_HTTPHEADER, impl_->headers);
  impl_->set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  impl_->set(CURLOPT_TIMEOUT, kRequestSeconds);
  // Signals belong to the program, so libcurl must not use them.
  impl_->set(CURLOPT_NOSIGNAL, 1L);
  impl_->set(CURLOPT_WRITEFUNCTION, &take_answer);
}

HttpClient::~HttpClient() = default;

HttpAnswer HttpClient::post(const std::string& path, const std::string& json) {
  HttpAnswer answer;
  const auto address = impl_->root + path;
  impl_->set(CURLOPT_URL, address.c_str());
  impl_->set(CURLOPT_POSTFIELDS, json.c_str());
  impl_->set(CURLOPT_POSTFIELDSIZE, static_cast<long>(json.size()));
  impl_->set(CURLOPT_WRITEDATA, &answer.body);
  const CURLcode code = curl().easy_perform(impl_->handle);
  if (code != CURLE_OK) {
    throw SystemError(
        str_cat("No answer from ", address, ": ", curl().easy_strerror(code)));
  }
  curl().easy_getinfo(impl_->handle, CURLINFO_RESPONSE_CODE, &answer.status);
  return answer;
}

} // namespace accelerate

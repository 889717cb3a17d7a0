// SPDX-License-Identifier: Apache-2.0
// System libraries that are loaded on first use, so that other programs do not
// load them and `accelerate` starts in milliseconds.
#pragma once

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {

/// Opens the library with this name in our own library's folder, as in a wheel,
/// or else the system's. Returns null if there is neither. dlerror() then says
/// why.
inline void* open_bundled_or_installed(const std::string& name) {
  Dl_info own{};
  dladdr(reinterpret_cast<void*>(&open_bundled_or_installed), &own);
  const auto bundled =
      std::filesystem::path(own.dli_fname).parent_path() / name;
  std::error_code ignored;
  const bool is_bundled = std::filesystem::exists(bundled, ignored);
  return dlopen(
      is_bundled ? bundled.c_str() : name.c_str(), RTLD_NOW | RTLD_LOCAL);
}

/// Stays open until the process ends.
class OptionalLibrary {
 public:
  /// If the library is missing, throws `UsageError` whose message starts with
  /// `user` ("[watch] A page") and ends with `package`.
  OptionalLibrary(std::string name, std::string user, std::string package)
      : name_(std::move(name)),
        user_(std::move(user)),
        package_(std::move(package)),
        library_(open_bundled_or_installed(name_)) {
    if (library_ == nullptr) {
      refuse();
    }
  }

  /// Throws `UsageError` if this version lacks the function.
  template <class Function>
  void find(const char* name, Function& function) const {
    function = reinterpret_cast<Function>(dlsym(library_, name));
    if (function == nullptr) {
      refuse();
    }
  }

 private:
  [[noreturn]] void refuse() const {
    throw UsageError(str_cat(
        user_,
        " needs ",
        name_,
        ", which cannot be loaded (",
        dlerror(),
        "). Install ",
        package_));
  }

  std::string name_;
  std::string user_;
  std::string package_;
  void* library_;
};

} // namespace accelerate

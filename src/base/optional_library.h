// SPDX-License-Identifier: Apache-2.0
// A library of the system that is opened when somebody asks for what it does,
// so that no other program loads it and what stands behind it: the program
// `accelerate` starts in milliseconds.
#pragma once

#include <dlfcn.h>

#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

#include "accelerate/error.h"
#include "base/str.h"

namespace accelerate {

/// The library of that name in the folder of this one, as in a wheel, or else
/// the system's. Null if there is neither; dlerror() then says why.
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
  /// `user` begins the message where it is missing ("[watch] A page"),
  /// `package` ends it. Throws `UsageError`.
  OptionalLibrary(std::string name, std::string user, std::string package)
      : name_(std::move(name)),
        user_(std::move(user)),
        package_(std::move(package)),
        library_(open_bundled_or_installed(name_)) {
    if (library_ == nullptr) {
      refuse();
    }
  }

  /// Throws `UsageError` where this version does not have it.
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

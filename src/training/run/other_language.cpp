// SPDX-License-Identifier: Apache-2.0
#include "training/run/other_language.h"

#include <algorithm>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

constexpr const char* kOfPython = "python_";
constexpr const char* kPythonFiles = "python_parts";

bool is_of_python(const std::string& name) {
  return name.starts_with(kOfPython);
}

/// The objects that are stored in Python's files, and their files. The key
/// `weights.model.file` contains the file of the object `model`.
std::map<std::string, std::string> files_of_python(const StateDict& list) {
  std::map<std::string, std::string> files;
  for (const auto& [key, value] : list) {
    const auto begin = key.find('.') + 1;
    const auto end = key.rfind(".file");
    const auto* file = std::get_if<std::string>(&value);
    if (begin != 0 && end != std::string::npos && begin <= end &&
        file != nullptr) {
      files[key.substr(begin, end - begin)] = *file;
    }
  }
  return files;
}

std::string quoted(const std::set<std::string>& names) {
  std::string text;
  for (const auto& name : names) {
    text += str_cat(text.empty() ? "'" : ", '", name, "'");
  }
  return text;
}

} // namespace

bool is_python(const StateRegistry& run) {
  const auto objects = run.objects();
  return std::any_of(objects.begin(), objects.end(), [](const auto& entry) {
    return entry.first == kPythonFiles;
  });
}

std::optional<std::string> skip_other_language(
    const std::filesystem::path& folder,
    const StateRegistry& run,
    StatesByName& states,
    std::set<std::string>& kept) {
  std::set<std::string> objects;
  for (const auto& [name, object] : run.objects()) {
    objects.insert(name);
  }
  const bool was_python = states.contains(kPythonFiles);
  if (was_python == objects.contains(kPythonFiles)) {
    return std::nullopt;
  }
  std::set<std::string> left;
  if (was_python) {
    for (const auto& [name, file] : files_of_python(states.at(kPythonFiles))) {
      if (objects.contains(name) && !kept.contains(name)) {
        throw UsageError(str_cat(
            "[load_state] '",
            folder.string(),
            "' stores '",
            name,
            "' in '",
            file,
            "', which only Python can read. Save the checkpoint from Python "
            "with safe_serialization=True, and keep only tensors and numbers "
            "in the state"));
      }
      left.insert(name);
    }
    for (const auto& [name, state] : states) {
      if (is_of_python(name) && name != kPythonFiles) {
        left.insert(name);
      }
    }
    std::erase_if(
        states, [](const auto& entry) { return is_of_python(entry.first); });
  } else {
    std::copy_if(
        objects.begin(),
        objects.end(),
        std::inserter(left, left.end()),
        is_of_python);
    kept.insert(left.begin(), left.end());
    left.erase(kPythonFiles);
  }
  return str_cat(
      "[load_state] '",
      folder.string(),
      was_python ? "' was saved by Python: " : "' was saved by C++: ",
      quoted(left),
      was_python ? " are not restored because only Python can read them"
                 : " keep their current state because only Python saves them");
}

} // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
// The modules and tensors of a model without torch, and their sizes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/internal.h"

namespace accelerate {

/// A parameter or buffer of a module.
struct TreeTensor {
  std::string name = {};
  /// Equal for the same tensor under several names.
  std::int64_t identity = 0;
  double num_elements = 0;
  double bytes_per_element = 0;
  /// Whether loading in another dtype converts it.
  bool is_cast = true;
};

struct TreeModule {
  std::string class_name = {};
  /// In the order of registration.
  std::vector<TreeTensor> parameters = {};
  std::vector<TreeTensor> buffers = {};
  /// Names and indices of the submodules. A submodule with several names has
  /// one index.
  std::vector<std::pair<std::string, std::size_t>> children = {};
};

/// The first module is the model. Each index of a child is greater than that of
/// its first parent.
using ModuleTree = std::vector<TreeModule>;

/// Throws `UsageError` if an index of a child is outside of the tree.
ACCELERATE_INTERNAL void check_tree(const ModuleTree& tree);

/// The class of each module by name. A module with several names is listed
/// under the first.
std::vector<std::pair<std::string, std::string>> class_names(
    const ModuleTree& tree);

/// The dtypes in which tensors are counted.
struct CountedDtypes {
  /// Bytes per element of tensors that are cast, unless their own are fewer.
  std::optional<double> bytes_per_element = {};
  /// Bytes per element by name. Takes precedence.
  std::map<std::string, double, std::less<>> special = {};
};

/// Bytes by name, in the order of the model: each module and tensor, and the
/// total under "". A tensor with several names counts under the first.
class ACCELERATE_INTERNAL ModuleSizes {
 public:
  ModuleSizes() = default;
  explicit ModuleSizes(std::vector<std::pair<std::string, double>> entries);

  void add(const std::string& name, double bytes);
  /// 0 if there is no such name.
  double of(std::string_view name) const;
  const std::vector<std::pair<std::string, double>>& entries() const {
    return entries_;
  }

 private:
  std::vector<std::pair<std::string, double>> entries_;
  std::unordered_map<std::string, std::size_t> indices_;
};

enum class CountedTensors { kAll, kBuffers };

/// The sizes of the module with this index and everything in it. Names are
/// relative to that module.
ACCELERATE_INTERNAL ModuleSizes module_sizes(
    const ModuleTree& tree,
    std::size_t module,
    const CountedDtypes& dtypes,
    CountedTensors counted = CountedTensors::kAll);

/// The names that are not prefixes of other names. The total is not a leaf.
ACCELERATE_INTERNAL std::vector<std::string> leaves_of(
    const std::vector<std::string>& names);

/// "a.b", or "b" in the model itself.
std::string join_names(std::string_view module, std::string_view name);

/// Whether the tensor or module `name` is inside `module`, or is `module`
/// itself. Everything is inside "".
bool is_within(std::string_view name, std::string_view module);

} // namespace accelerate

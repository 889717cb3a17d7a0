// SPDX-License-Identifier: Apache-2.0
#include "core/placement/module_tree.h"

#include <algorithm>
#include <functional>
#include <unordered_set>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

/// Calls `visit(name, module)` for the module and all below it, parents first,
/// each module once.
void visit_modules(
    const ModuleTree& tree,
    std::size_t root,
    const std::function<void(const std::string&, const TreeModule&)>& visit) {
  std::unordered_set<std::size_t> visited;
  // A stack, because models may be nested deeply.
  std::vector<std::pair<std::string, std::size_t>> left = {{"", root}};
  while (!left.empty()) {
    const auto [name, index] = std::move(left.back());
    left.pop_back();
    if (!visited.insert(index).second) {
      continue;
    }
    visit(name, tree[index]);
    const auto& children = tree[index].children;
    for (auto child = children.rbegin(); child != children.rend(); ++child) {
      left.emplace_back(join_names(name, child->first), child->second);
    }
  }
}

double bytes_of(
    const std::string& name,
    const TreeTensor& tensor,
    const CountedDtypes& dtypes) {
  double each = tensor.bytes_per_element;
  if (const auto special = dtypes.special.find(name);
      special != dtypes.special.end()) {
    each = special->second;
  } else if (dtypes.bytes_per_element && tensor.is_cast) {
    each = std::min(each, *dtypes.bytes_per_element);
  }
  return each * tensor.num_elements;
}

} // namespace

std::string join_names(std::string_view module, std::string_view name) {
  return module.empty() ? std::string(name) : str_cat(module, '.', name);
}

bool is_within(std::string_view name, std::string_view module) {
  return module.empty() ||
         (name.starts_with(module) &&
          (name.size() == module.size() || name[module.size()] == '.'));
}

void check_tree(const ModuleTree& tree) {
  if (tree.empty()) {
    throw UsageError("[device_map] The tree has no module. Pass a model");
  }
  for (std::size_t i = 0; i < tree.size(); ++i) {
    for (const auto& [name, child] : tree[i].children) {
      if (child == 0 || child >= tree.size()) {
        throw UsageError(str_cat(
            "[device_map] Submodule '",
            name,
            "' of module ",
            i,
            " has the index ",
            child,
            ", but the tree has ",
            tree.size(),
            " modules. Correct the index"));
      }
    }
  }
}

std::vector<std::pair<std::string, std::string>> class_names(
    const ModuleTree& tree) {
  std::vector<std::pair<std::string, std::string>> names;
  visit_modules(tree, 0, [&](const auto& name, const auto& module) {
    names.emplace_back(name, module.class_name);
  });
  return names;
}

ModuleSizes::ModuleSizes(std::vector<std::pair<std::string, double>> entries)
    : entries_(std::move(entries)) {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    indices_.emplace(entries_[i].first, i);
  }
}

void ModuleSizes::add(const std::string& name, double bytes) {
  const auto [found, is_new] = indices_.emplace(name, entries_.size());
  if (is_new) {
    entries_.emplace_back(name, 0);
  }
  entries_[found->second].second += bytes;
}

double ModuleSizes::of(std::string_view name) const {
  const auto found = indices_.find(std::string(name));
  return found == indices_.end() ? 0 : entries_[found->second].second;
}

ModuleSizes module_sizes(
    const ModuleTree& tree,
    std::size_t module,
    const CountedDtypes& dtypes,
    CountedTensors counted) {
  ModuleSizes sizes;
  std::unordered_set<std::int64_t> counted_tensors;
  const auto count = [&](const std::string& name,
                         const std::vector<TreeTensor>& tensors) {
    for (const auto& tensor : tensors) {
      if (!counted_tensors.insert(tensor.identity).second) {
        continue;
      }
      const auto full_name = join_names(name, tensor.name);
      const double bytes = bytes_of(full_name, tensor, dtypes);
      sizes.add("", bytes);
      for (auto dot = full_name.find('.'); dot != full_name.npos;
           dot = full_name.find('.', dot + 1)) {
        sizes.add(full_name.substr(0, dot), bytes);
      }
      sizes.add(full_name, bytes);
    }
  };
  // All parameters come before all buffers.
  if (counted == CountedTensors::kAll) {
    visit_modules(tree, module, [&](const auto& name, const auto& node) {
      count(name, node.parameters);
    });
  }
  counted_tensors.clear();
  visit_modules(tree, module, [&](const auto& name, const auto& node) {
    count(name, node.buffers);
  });
  return sizes;
}

std::vector<std::string> leaves_of(const std::vector<std::string>& names) {
  std::unordered_set<std::string_view> parents;
  for (const std::string_view name : names) {
    if (const auto dot = name.rfind('.'); dot != name.npos) {
      parents.insert(name.substr(0, dot));
    }
  }
  std::vector<std::string> leaves;
  for (const auto& name : names) {
    if (!name.empty() && !parents.contains(name)) {
      leaves.push_back(name);
    }
  }
  return leaves;
}

} // namespace accelerate

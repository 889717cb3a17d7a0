// SPDX-License-Identifier: Apache-2.0
#include "core/placement/device_map.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <unordered_map>

#include "core/base/str.h"

namespace accelerate {
namespace {

using Parts = std::vector<PlacedPart>;
using Devices = std::vector<std::pair<std::string, std::size_t>>;

/// The submodules of a part. A submodule with several names in the same module
/// is listed under the first.
Parts children_of(const ModuleTree& tree, const PlacedPart& part) {
  Parts children;
  if (!part.is_module()) {
    return children;
  }
  std::set<std::size_t> listed;
  for (const auto& [name, module] : tree[part.module].children) {
    if (listed.insert(module).second) {
      children.push_back({join_names(part.name, name), module});
    }
  }
  return children;
}

void add_tensors(
    Parts& parts,
    const std::string& module,
    const std::vector<TreeTensor>& tensors) {
  std::set<std::int64_t> listed;
  for (const auto& tensor : tensors) {
    if (listed.insert(tensor.identity).second) {
      parts.push_back({join_names(module, tensor.name)});
    }
  }
}

/// The parameters and submodules of a module. Buffers stay with their module.
Parts contents_of(const ModuleTree& tree, const PlacedPart& part) {
  Parts contents;
  if (part.is_module()) {
    add_tensors(contents, part.name, tree[part.module].parameters);
    const auto children = children_of(tree, part);
    contents.insert(contents.end(), children.begin(), children.end());
  }
  return contents;
}

bool can_split(
    const ModuleTree& tree,
    const PlacedPart& part,
    const ClassNames& unsplit_classes) {
  return part.is_module() && !tree[part.module].children.empty() &&
         !unsplit_classes.contains(tree[part.module].class_name);
}

void replace(Parts& parts, std::size_t index, const Parts& by) {
  const auto at = parts.begin() + static_cast<std::ptrdiff_t>(index);
  parts.insert(parts.erase(at), by.begin(), by.end());
}

Parts modules_in(const Parts& parts) {
  Parts modules;
  std::copy_if(
      parts.begin(), parts.end(), std::back_inserter(modules), [](auto& part) {
        return part.is_module();
      });
  return modules;
}

/// Whether the tensor counts as part of `name`. The original looks for the name
/// anywhere in the path, which the map must agree with.
bool counts_as_part(const std::string& tensor, const std::string& name) {
  return str_cat(tensor, '.').find(str_cat(name, '.')) != std::string::npos;
}

/// The tied parameters outside of this part whose other names are in it.
std::vector<std::string> tied_outside(
    const TiedNames& tied,
    const std::string& name) {
  std::vector<std::string> outside;
  for (const auto& group : tied) {
    std::vector<std::string> others;
    std::copy_if(
        group.begin(),
        group.end(),
        std::back_inserter(others),
        [&](const auto& tensor) { return !counts_as_part(tensor, name); });
    if (others.size() < group.size()) {
      outside.insert(outside.end(), others.begin(), others.end());
    }
  }
  return outside;
}

std::string shown(double bytes) {
  std::ostringstream text;
  text.precision(17);
  text << bytes;
  return text.str();
}

class Planner {
 public:
  Planner(
      const ModuleTree& tree,
      const TiedNames& tied,
      const std::vector<DeviceMemory>& devices,
      const DeviceMapOptions& options)
      : tree_(tree),
        tied_(tied),
        devices_(devices),
        options_(options),
        sizes_(module_sizes(tree, 0, options.dtypes)),
        parts_(parts_of_model(tree)),
        used_(devices.size() + 1),
        buffers_(devices.size() + 1),
        largest_(
            find_largest_layer(tree, parts_, sizes_, options.unsplit_classes)) {
  }

  DeviceMap plan() && {
    while (!parts_.empty()) {
      const auto part = std::move(parts_.front());
      parts_.erase(parts_.begin());
      forget_layers_of(part);
      place_or_split(part);
    }
    if (options_.simplify) {
      map_.devices = simplify_device_map(std::move(map_.devices));
    }
    check_buffers();
    return std::move(map_);
  }

 private:
  bool is_disk() const { return device_ == devices_.size(); }
  std::string device_name() const {
    return is_disk() ? "disk" : devices_[device_].name;
  }

  void explain(const auto&... words) {
    map_.decisions.push_back(str_cat(words...));
  }

  void find_largest() {
    largest_ = find_largest_layer(
        tree_, modules_in(parts_), sizes_, options_.unsplit_classes);
  }

  void forget_layers_of(const PlacedPart& part) {
    std::erase_if(largest_.names, [&](const auto& layer) {
      return is_within(layer, part.name);
    });
    if (largest_.names.empty()) {
      find_largest();
    }
  }

  void place_or_split(const PlacedPart& part) {
    const double bytes = sizes_.of(part.name);
    const double reserved =
        !is_disk() && devices_[device_].runs_offloaded ? largest_.num_bytes : 0;
    const double limit = is_disk() ? std::numeric_limits<double>::infinity()
                                   : devices_[device_].num_bytes - reserved;
    const auto tied = tied_outside(tied_, part.name);
    const auto with_ties = size_with_ties(tied, bytes, sizes_, parts_);
    if (used_[device_] + with_ties.num_bytes <= limit) {
      place(part, with_ties);
      return;
    }
    explain(
        part.name,
        ": ",
        shown(with_ties.num_bytes),
        " bytes do not fit on ",
        device_name(),
        ", which has ",
        shown(limit - used_[device_]),
        " left");
    if (!tied.empty() && used_[device_] + bytes <= limit &&
        split_tied_part(part, with_ties)) {
      return;
    }
    if (used_[device_] + bytes >= limit &&
        can_split(tree_, part, options_.unsplit_classes)) {
      explain(part.name, ": split");
      const auto contents = contents_of(tree_, part);
      parts_.insert(parts_.begin(), contents.begin(), contents.end());
      find_largest();
      return;
    }
    if (used_[device_] == 0 && options_.use_fallback && !is_disk() &&
        put_fallback_first(part, with_ties.num_bytes)) {
      return;
    }
    if (used_[device_] == 0) {
      explain(
          device_name(),
          ": stays empty. It needs ",
          shown(with_ties.num_bytes + reserved),
          " bytes for ",
          part.name);
    }
    used_[device_] += reserved;
    ++device_;
    tried_.clear();
    parts_.insert(parts_.begin(), part);
  }

  void place(const PlacedPart& part, const SizeWithTies& with_ties) {
    explain(
        part.name,
        ": ",
        shown(with_ties.num_bytes),
        " bytes on ",
        device_name());
    used_[device_] += with_ties.num_bytes;
    set_device(part.name);
    // From the back, so that the indices stay valid.
    const std::set<std::size_t, std::greater<>> tied(
        with_ties.parts.begin(), with_ties.parts.end());
    for (const std::size_t index : tied) {
      explain(parts_[index].name, ": on ", device_name(), ", tied");
      set_device(parts_[index].name);
      parts_.erase(parts_.begin() + static_cast<std::ptrdiff_t>(index));
    }
    if (!options_.offload_buffers && part.is_module()) {
      buffers_[device_] +=
          module_sizes(
              tree_, part.module, options_.dtypes, CountedTensors::kBuffers)
              .of("");
    }
  }

  void set_device(const std::string& name) {
    const auto [found, is_new] = entries_.emplace(name, map_.devices.size());
    if (is_new) {
      map_.devices.emplace_back(name, device_);
    } else {
      map_.devices[found->second].second = device_;
    }
  }

  /// Splits the first tied part that can be split, so that the part is placed
  /// with less.
  bool split_tied_part(const PlacedPart& part, const SizeWithTies& with_ties) {
    for (const std::size_t index : with_ties.parts) {
      const auto tied = parts_[index];
      if (can_split(tree_, tied, options_.unsplit_classes)) {
        explain(tied.name, ": split");
        replace(parts_, index, contents_of(tree_, tied));
        parts_.insert(parts_.begin(), part);
        find_largest();
        return true;
      }
    }
    return false;
  }

  bool put_fallback_first(const PlacedPart& part, double bytes) {
    auto found = find_fitting_part(
        tree_,
        parts_,
        sizes_,
        devices_[device_].num_bytes - std::max(largest_.num_bytes, bytes),
        options_.unsplit_classes,
        tied_);
    // A part that did not fit after all is not tried twice, to make progress.
    if (!found.is_found || !tried_.insert(found.part.name).second) {
      return false;
    }
    parts_ = std::move(found.rest);
    parts_.insert(parts_.begin(), {found.part, part});
    return true;
  }

  void check_buffers() {
    double outside = buffers_.back();
    bool fits = false;
    bool has_accelerator = false;
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      outside += devices_[i].is_accelerator ? 0 : buffers_[i];
    }
    for (std::size_t i = 0; i < devices_.size(); ++i) {
      has_accelerator |= devices_[i].is_accelerator;
      fits |= devices_[i].is_accelerator &&
              devices_[i].num_bytes >= outside + used_[i];
    }
    if (has_accelerator && !fits) {
      map_.unplaced_buffer_bytes = outside;
    }
  }

  const ModuleTree& tree_;
  const TiedNames& tied_;
  const std::vector<DeviceMemory>& devices_;
  const DeviceMapOptions& options_;
  ModuleSizes sizes_;
  Parts parts_;
  std::vector<double> used_;
  std::vector<double> buffers_;
  LargestLayer largest_;
  std::size_t device_ = 0;
  /// Parts that were tried as fallbacks on this device.
  std::set<std::string> tried_;
  std::unordered_map<std::string, std::size_t> entries_;
  DeviceMap map_;
};

/// The names of the submodules of `module` in the map, and their entries.
void simplify(
    const Devices& devices,
    std::size_t begin,
    std::size_t end,
    const std::string& module,
    Devices& simple) {
  const bool is_one = std::all_of(
      devices.begin() + static_cast<std::ptrdiff_t>(begin),
      devices.begin() + static_cast<std::ptrdiff_t>(end),
      [&](const auto& entry) { return entry.second == devices[begin].second; });
  if (end - begin == 1) {
    simple.push_back(devices[begin]);
    return;
  }
  if (is_one) {
    simple.emplace_back(module, devices[begin].second);
    return;
  }
  while (begin < end) {
    const std::string& name = devices[begin].first;
    if (name == module) {
      simple.push_back(devices[begin++]);
      continue;
    }
    const auto start = module.empty() ? 0 : module.size() + 1;
    const std::string child = name.substr(0, name.find('.', start));
    auto last = begin;
    while (last < end && is_within(devices[last].first, child)) {
      ++last;
    }
    simplify(devices, begin, last, child, simple);
    begin = last;
  }
}

} // namespace

std::vector<PlacedPart> parts_of_model(const ModuleTree& tree) {
  auto parts = contents_of(tree, {"", 0});
  add_tensors(parts, "", tree[0].buffers);
  return parts;
}

LargestLayer find_largest_layer(
    const ModuleTree& tree,
    const std::vector<PlacedPart>& parts,
    const ModuleSizes& sizes,
    const ClassNames& unsplit_classes) {
  LargestLayer largest;
  Parts left(parts.rbegin(), parts.rend());
  while (!left.empty()) {
    const auto part = std::move(left.back());
    left.pop_back();
    if (can_split(tree, part, unsplit_classes)) {
      const auto children = children_of(tree, part);
      left.insert(left.end(), children.rbegin(), children.rend());
      continue;
    }
    const double bytes = sizes.of(part.name);
    if (bytes > largest.num_bytes) {
      largest = {bytes, {}};
    }
    if (bytes == largest.num_bytes) {
      largest.names.push_back(part.name);
    }
  }
  return largest;
}

SizeWithTies size_with_ties(
    const std::vector<std::string>& tied,
    double module_bytes,
    const ModuleSizes& sizes,
    const std::vector<PlacedPart>& parts) {
  SizeWithTies result = {module_bytes};
  for (const auto& tensor : tied) {
    const auto part = std::find_if(
        parts.begin(), parts.end(), [&](const PlacedPart& candidate) {
          return is_within(tensor, candidate.name);
        });
    if (part != parts.end()) {
      result.parts.push_back(static_cast<std::size_t>(part - parts.begin()));
      result.num_bytes += sizes.of(part->name) - sizes.of(tensor);
    }
  }
  return result;
}

FoundPart find_fitting_part(
    const ModuleTree& tree,
    const std::vector<PlacedPart>& parts,
    const ModuleSizes& sizes,
    double limit,
    const ClassNames& unsplit_classes,
    const TiedNames& tied) {
  FoundPart found = {.rest = parts};
  Parts left = parts;
  while (limit >= 0 && !left.empty() && !found.is_found) {
    const auto part = std::move(left.front());
    left.erase(left.begin());
    const double bytes =
        size_with_ties(
            tied_outside(tied, part.name), sizes.of(part.name), sizes, left)
            .num_bytes;
    if (bytes <= limit) {
      found.is_found = true;
      found.part = part;
    } else if (can_split(tree, part, unsplit_classes)) {
      const auto contents = contents_of(tree, part);
      left.insert(left.begin(), contents.begin(), contents.end());
    }
  }
  // Splits the modules around it until it is in the list.
  for (std::size_t i = 0; found.is_found && i < found.rest.size();) {
    if (found.rest[i].name == found.part.name) {
      found.rest.erase(found.rest.begin() + static_cast<std::ptrdiff_t>(i));
      break;
    }
    if (is_within(found.part.name, found.rest[i].name)) {
      replace(found.rest, i, contents_of(tree, found.rest[i]));
    } else {
      ++i;
    }
  }
  return found;
}

DeviceMap plan_device_map(
    const ModuleTree& tree,
    const TiedNames& tied,
    const std::vector<DeviceMemory>& devices,
    const DeviceMapOptions& options) {
  check_tree(tree);
  return Planner(tree, tied, devices, options).plan();
}

Devices simplify_device_map(Devices devices, const std::string& module) {
  Devices inside;
  Devices simple;
  for (auto& entry : devices) {
    const bool is_inside = is_within(entry.first, module);
    (is_inside ? inside : simple).push_back(std::move(entry));
  }
  if (inside.empty()) {
    return simple;
  }
  // Only adjacent entries are merged, so modules of the same parent must be
  // adjacent. Parents keep the position of their first child.
  std::unordered_map<std::string, std::size_t> positions;
  std::vector<std::pair<std::vector<std::size_t>, std::size_t>> order;
  for (std::size_t i = 0; i < inside.size(); ++i) {
    const std::string& name = inside[i].first;
    std::vector<std::size_t> key;
    for (auto end = name.find('.');; end = name.find('.', end + 1)) {
      key.push_back(positions.emplace(name.substr(0, end), i).first->second);
      if (end == name.npos) {
        break;
      }
    }
    order.emplace_back(std::move(key), i);
  }
  std::sort(order.begin(), order.end());
  Devices sorted;
  for (const auto& [key, index] : order) {
    sorted.push_back(std::move(inside[index]));
  }
  simplify(sorted, 0, sorted.size(), module, simple);
  return simple;
}

std::vector<double> balance_memory(
    const ModuleTree& tree,
    const std::vector<double>& accelerators,
    const ClassNames& unsplit_classes,
    const CountedDtypes& dtypes,
    bool low_first) {
  check_tree(tree);
  auto memory = accelerators;
  if (memory.empty()) {
    return memory;
  }
  const std::size_t last = memory.size() - 1;
  low_first = low_first && last > 0;
  const auto sizes = module_sizes(tree, 0, dtypes);
  const double total = sizes.of("");

  std::map<std::string, double> unsplit;
  std::unordered_map<std::string, std::string> classes;
  for (const auto& [name, class_name] : class_names(tree)) {
    classes.emplace(name, class_name);
  }
  std::vector<std::string> names;
  for (const auto& [name, bytes] : sizes.entries()) {
    names.push_back(name);
    const auto found = classes.find(name);
    if (!name.empty() && found != classes.end() &&
        unsplit_classes.contains(found->second)) {
      unsplit.emplace(found->second, bytes);
    }
  }
  double largest = 0;
  for (const auto& [class_name, bytes] : unsplit) {
    largest = std::max(largest, bytes);
  }

  // Without the tensors, the leaves are the innermost modules.
  const auto tensors = leaves_of(names);
  const std::unordered_set<std::string> is_tensor(
      tensors.begin(), tensors.end());
  std::erase_if(
      names, [&](const auto& name) { return is_tensor.contains(name); });
  const auto leaves = leaves_of(names);
  double leaf_bytes = 0;
  for (const auto& name : leaves) {
    leaf_bytes += sizes.of(name);
  }
  const double mean = std::trunc(
      leaf_bytes /
      static_cast<double>(std::max<std::size_t>(leaves.size(), 1)));

  // Devices get whole modules, so each needs space for one more.
  const double share =
      std::floor(total / static_cast<double>(low_first ? last : last + 1)) +
      std::trunc(1.25 * std::max(largest, mean));
  for (std::size_t i = low_first ? 1 : 0; i < last; ++i) {
    memory[i] = std::min(memory[i], share);
  }
  if (low_first) {
    double rest = total;
    for (std::size_t i = 1; i <= last; ++i) {
      rest -= memory[i];
    }
    memory[0] = std::min(memory[0], std::max(0.0, rest));
  }
  return memory;
}

} // namespace accelerate

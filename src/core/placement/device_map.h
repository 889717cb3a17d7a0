// SPDX-License-Identifier: Apache-2.0
// Distributes the modules of a model over devices, the host and the disk.
#pragma once

#include <limits>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "core/base/internal.h"
#include "core/placement/module_tree.h"

namespace accelerate {

using ClassNames = std::unordered_set<std::string>;

/// A module or tensor that has no device yet.
struct PlacedPart {
  static constexpr std::size_t kTensor =
      std::numeric_limits<std::size_t>::max();
  bool is_module() const { return module != kTensor; }

  std::string name = {};
  /// The index in the tree, or `kTensor`.
  std::size_t module = kTensor;
};

/// The parts of the model in the order in which they are placed: its own
/// parameters, its submodules, its own buffers.
ACCELERATE_INTERNAL std::vector<PlacedPart> parts_of_model(
    const ModuleTree& tree);

struct LargestLayer {
  double num_bytes = 0;
  /// All layers of this size.
  std::vector<std::string> names = {};
};

/// The largest layer in these parts. A layer is a tensor, a module without
/// submodules, or a module of a class that must not be split.
ACCELERATE_INTERNAL LargestLayer find_largest_layer(
    const ModuleTree& tree,
    const std::vector<PlacedPart>& parts,
    const ModuleSizes& sizes,
    const ClassNames& unsplit_classes);

/// The names of each parameter with several names.
using TiedNames = std::vector<std::vector<std::string>>;

struct SizeWithTies {
  double num_bytes = 0;
  /// For each tied parameter outside of the module, the index of the part that
  /// contains it. Omits parameters that are in none of the parts.
  std::vector<std::size_t> parts = {};
};

/// The bytes of a module together with the parts that share parameters with it.
/// Shared parameters count once. `tied` are the names of these parameters
/// outside of the module.
ACCELERATE_INTERNAL SizeWithTies size_with_ties(
    const std::vector<std::string>& tied,
    double module_bytes,
    const ModuleSizes& sizes,
    const std::vector<PlacedPart>& parts);

struct FoundPart {
  /// False if no part fits. `rest` then contains the unchanged parts.
  bool is_found = false;
  PlacedPart part = {};
  /// The parts without the one found. Modules that contain it are replaced with
  /// their contents.
  std::vector<PlacedPart> rest = {};
};

/// The first part that fits into `limit`, splitting modules that do not fit.
ACCELERATE_INTERNAL FoundPart find_fitting_part(
    const ModuleTree& tree,
    const std::vector<PlacedPart>& parts,
    const ModuleSizes& sizes,
    double limit,
    const ClassNames& unsplit_classes,
    const TiedNames& tied);

/// A device and its memory, in the order in which devices are filled.
struct DeviceMemory {
  std::string name = {};
  double num_bytes = 0;
  /// Modules on other devices are loaded to it when they run, so it needs space
  /// for the largest of them.
  bool runs_offloaded = false;
  bool is_accelerator = false;
};

struct DeviceMapOptions {
  ClassNames unsplit_classes = {};
  CountedDtypes dtypes = {};
  /// One entry for modules that are entirely on one device.
  bool simplify = true;
  /// Buffers of modules on the host and disk stay there.
  bool offload_buffers = false;
  /// Searches for a smaller part if the next part fits on no device that is
  /// still empty.
  bool use_fallback = false;
};

struct DeviceMap {
  /// Names of modules and the indices of their devices. The disk is one more
  /// than the last device.
  std::vector<std::pair<std::string, std::size_t>> devices = {};
  /// Bytes of buffers that are outside of accelerators and fit on none of them.
  /// 0 if they fit.
  double unplaced_buffer_bytes = 0;
  /// What was decided for each part, to be printed.
  std::vector<std::string> decisions = {};
};

/// Fills the devices in order. A module that does not fit is split, unless
/// modules of its class must not be split. Whatever fits on no device goes to
/// the disk. Modules that share parameters get the same device. The results are
/// those of `infer_auto_device_map` in Hugging Face Accelerate.
///
///     DeviceMap map = plan_device_map(tree, {}, {{.name = "cpu", .num_bytes =
///     1e9, .runs_offloaded = true}}, {});
ACCELERATE_INTERNAL DeviceMap plan_device_map(
    const ModuleTree& tree,
    const TiedNames& tied,
    const std::vector<DeviceMemory>& devices,
    const DeviceMapOptions& options);

/// Merges modules below `module` that have the same device into their parent.
ACCELERATE_INTERNAL std::vector<std::pair<std::string, std::size_t>>
simplify_device_map(
    std::vector<std::pair<std::string, std::size_t>> devices,
    const std::string& module = "");

/// The memory to use of each accelerator so that the model is distributed
/// evenly. The last keeps its full memory, in case a module does not fit
/// elsewhere. With `low_first`, the first accelerator gets only what does not
/// fit on the others.
ACCELERATE_INTERNAL std::vector<double> balance_memory(
    const ModuleTree& tree,
    const std::vector<double>& accelerators,
    const ClassNames& unsplit_classes,
    const CountedDtypes& dtypes,
    bool low_first);

} // namespace accelerate

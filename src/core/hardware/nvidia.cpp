// SPDX-License-Identifier: Apache-2.0
// NVIDIA GPUs, through NVML, which is loaded at run time.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <fstream>
#include <memory>
#include <sstream>

#include "core/base/str.h"
#include "core/base/variables.h"
#include "core/hardware/gpu_kinds.h"

namespace accelerate {
namespace {

// The part of NVML's ABI that is used, from its public documentation; stable
// since driver 410.
using NvmlDevice = void*;
struct NvmlMemory {
  unsigned long long total, free, used;
};
struct NvmlUtilization {
  unsigned gpu, memory;
};
struct NvmlPciInfo {
  char bus_id_legacy[16];
  unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
  char bus_id[32];
};

/// The loaded and initialised library.
class Nvml {
 public:
  Nvml() : library_(dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (library_ == nullptr) {
      problem_ = "no NVIDIA driver found (libnvidia-ml.so.1 does not load)";
    } else if (const int error = call("nvmlInit_v2"); error != 0) {
      problem_ =
          str_cat("the NVIDIA driver does not answer (NVML ", error, ")");
    } else {
      is_ready_ = true;
    }
  }
  ~Nvml() {
    if (is_ready_) {
      call("nvmlShutdown");
    }
    if (library_ != nullptr) {
      dlclose(library_);
    }
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool is_ready() const { return is_ready_; }
  const std::string& problem() const { return problem_; }

  /// Calls a function of NVML. Returns its result; 0 is success.
  template <class... Args>
  int call(const char* name, Args... args) const {
    const auto function =
        reinterpret_cast<int (*)(Args...)>(dlsym(library_, name));
    return function != nullptr ? function(args...) : -1;
  }

 private:
  void* library_;
  bool is_ready_ = false;
  std::string problem_;
};

std::optional<int> numa_node_of(const std::string& pci_address) {
  int node = -1;
  std::ifstream("/sys/bus/pci/devices/" + pci_address + "/numa_node") >> node;
  return node >= 0 ? std::optional<int>(node) : std::nullopt;
}

Gpu read_gpu(const Nvml& nvml, unsigned index, NvmlDevice device) {
  Gpu gpu;
  gpu.index = static_cast<int>(index);
  char text[96] = "";
  if (nvml.call("nvmlDeviceGetName", device, text, 96U) == 0) {
    gpu.name = text;
  }
  if (nvml.call("nvmlDeviceGetUUID", device, text, 96U) == 0) {
    gpu.uuid = text;
  }
  NvmlMemory memory{};
  if (nvml.call("nvmlDeviceGetMemoryInfo", device, &memory) == 0) {
    gpu.memory_bytes = static_cast<int64_t>(memory.total);
    gpu.free_bytes = static_cast<int64_t>(memory.free);
  }
  NvmlPciInfo pci{};
  if (nvml.call("nvmlDeviceGetPciInfo_v3", device, &pci) == 0) {
    // NVML writes an eight-digit domain in upper case, the kernel four digits.
    std::string address = pci.bus_id;
    std::transform(address.begin(), address.end(), address.begin(), ::tolower);
    if (address.size() == 16) {
      address.erase(0, 4);
    }
    gpu.pci_address = address;
    gpu.numa_node = numa_node_of(address);
  }
  return gpu;
}

bool can_read(const Nvml& nvml, NvmlDevice reader, NvmlDevice owner) {
  constexpr int kRead = 0; // NVML_P2P_CAPS_INDEX_READ
  int status = -1;
  const int error =
      nvml.call("nvmlDeviceGetP2PStatus", reader, owner, kRead, &status);
  return error == 0 && status == 0;
}

// Joins numbers as `0,2`; `-` if there are none.
std::string to_list(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) {
    text += str_cat(text.empty() ? "" : ",", number);
  }
  return text.empty() ? "-" : text;
}

std::vector<int> from_list(const std::string& text) {
  std::vector<int> numbers;
  std::istringstream in(text);
  for (int number = 0; in >> number; in.ignore()) {
    numbers.push_back(number);
  }
  return numbers;
}

std::vector<Gpu> list_devices(
    const Nvml& nvml,
    std::vector<NvmlDevice>* devices = nullptr) {
  unsigned count = 0;
  nvml.call("nvmlDeviceGetCount_v2", &count);
  std::vector<Gpu> gpus;
  for (unsigned index = 0; index < count; ++index) {
    NvmlDevice device = nullptr;
    if (nvml.call("nvmlDeviceGetHandleByIndex_v2", index, &device) == 0) {
      gpus.push_back(read_gpu(nvml, index, device));
      if (devices != nullptr) {
        devices->push_back(device);
      }
    }
  }
  return gpus;
}

GpuInventory ask_nvml() {
  GpuInventory found;
  const Nvml nvml;
  if (!nvml.is_ready()) {
    found.problem = nvml.problem();
    return found;
  }
  char driver[96] = "";
  if (nvml.call("nvmlSystemGetDriverVersion", driver, 96U) == 0) {
    found.driver = driver;
  }
  std::vector<NvmlDevice> devices;
  found.gpus = list_devices(nvml, &devices);
  for (size_t i = 0; i < devices.size(); ++i) {
    for (size_t j = 0; j < devices.size(); ++j) {
      if (i != j && can_read(nvml, devices[i], devices[j])) {
        found.gpus[i].peers.push_back(found.gpus[j].index);
      }
    }
  }
  if (found.gpus.empty()) {
    found.problem = "the NVIDIA driver reports no GPU";
  }
  return found;
}

// Converts the inventory to text: one line for the driver and one per GPU, with
// fields separated by tabs.
std::string to_text(const GpuInventory& found) {
  std::string text = str_cat(found.driver, '\t', found.problem, '\n');
  for (const auto& gpu : found.gpus) {
    text += str_cat(
        gpu.index,
        '\t',
        gpu.memory_bytes,
        '\t',
        gpu.free_bytes,
        '\t',
        gpu.numa_node.value_or(-1),
        '\t',
        gpu.uuid,
        '\t',
        gpu.pci_address,
        '\t',
        to_list(gpu.peers),
        '\t',
        gpu.name,
        '\n');
  }
  return text;
}

GpuInventory from_text(const std::string& text) {
  GpuInventory found;
  std::istringstream lines(text);
  std::getline(lines, found.driver, '\t');
  std::getline(lines, found.problem);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream in(line);
    Gpu gpu;
    int node = -1;
    std::string peers;
    in >> gpu.index >> gpu.memory_bytes >> gpu.free_bytes >> node >> gpu.uuid >>
        gpu.pci_address >> peers >> std::ws;
    std::getline(in, gpu.name);
    gpu.peers = from_list(peers);
    if (node >= 0) {
      gpu.numa_node = node;
    }
    found.gpus.push_back(std::move(gpu));
  }
  return found;
}

std::string read_to_end(int file) {
  std::string text;
  char buffer[4096];
  ssize_t size = 0;
  while ((size = read(file, buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(size));
  }
  return text;
}

GpuInventory list() {
  // A separate process queries the driver, because the driver leaves threads
  // behind, which could receive the signals of a launcher.
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return {.problem = "cannot create a pipe to query the NVIDIA driver"};
  }
  const pid_t child = fork();
  if (child == 0) {
    const std::string text = to_text(ask_nvml());
    [[maybe_unused]] const auto written =
        write(ends[1], text.data(), text.size());
    _exit(0);
  }
  close(ends[1]);
  const std::string text = read_to_end(ends[0]);
  close(ends[0]);
  if (child > 0) {
    waitpid(child, nullptr, 0);
  }
  if (text.empty()) {
    return {.problem = "the NVIDIA driver crashed"};
  }
  return from_text(text);
}

// Parses a list as CUDA does: indices or (shortened) UUIDs, up to the first
// unknown one.
std::vector<Gpu> choose(const std::vector<Gpu>& gpus, const std::string& ids) {
  std::vector<Gpu> chosen;
  for (size_t begin = 0; begin < ids.size();) {
    const size_t end = std::min(ids.find(',', begin), ids.size());
    const std::string id = ids.substr(begin, end - begin);
    const auto found =
        std::find_if(gpus.begin(), gpus.end(), [&](const Gpu& gpu) {
          return std::to_string(gpu.index) == id ||
                 (id.starts_with("GPU-") && gpu.uuid.starts_with(id));
        });
    if (id.starts_with("MIG-")) {
      chosen.push_back({.name = "MIG slice", .uuid = id});
    } else if (found != gpus.end()) {
      chosen.push_back(*found);
    } else {
      break;
    }
    begin = end + 1;
  }
  return chosen;
}

std::function<std::optional<double>()> open_nvml_use(
    const EnvLookup& env,
    int index) {
  const auto nvml = std::make_shared<const Nvml>();
  if (!nvml->is_ready()) {
    return {};
  }
  auto gpus = list_devices(*nvml);
  if (const auto ids = env(variables::kVisibleDevices)) {
    gpus = choose(gpus, *ids);
  }
  NvmlDevice device = nullptr;
  if (index < 0 || static_cast<size_t>(index) >= gpus.size() ||
      nvml->call(
          "nvmlDeviceGetHandleByUUID",
          gpus[static_cast<size_t>(index)].uuid.c_str(),
          &device) != 0) {
    return {};
  }
  return [nvml, device]() -> std::optional<double> {
    NvmlUtilization use{};
    return nvml->call("nvmlDeviceGetUtilizationRates", device, &use) == 0
               ? std::optional(use.gpu / 100.0)
               : std::nullopt;
  };
}

} // namespace

GpuKind nvidia_gpus() {
  return {
      .driver_name = "NVIDIA driver",
      .visibility_variable = variables::kVisibleDevices,
      .list = list,
      .choose = choose,
      .peer_access_help =
          "see `nvidia-smi topo -p2p r`; if peer access hangs, set "
          "NCCL_P2P_DISABLE=1",
      .open_use = open_nvml_use};
}

} // namespace accelerate

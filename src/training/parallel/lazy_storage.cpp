// SPDX-License-Identifier: Apache-2.0
#include "training/parallel/lazy_storage.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>
#include <torch/version.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "core/observe/hint.h"
#include "training/parallel/carried_errors.h"
#include "training/state/deferred_tensors.h"

namespace accelerate {
namespace {

/// A key that is unused in core, is below autograd, and is inherited by views.
constexpr c10::DispatchKey kLazyKey = c10::DispatchKey::Fake;

/// The context of a lazy storage's pointer, so that every view finds the owner,
/// even without memory.
struct LazyContext {
  std::weak_ptr<MemoryOwner> owner;
  std::string name;
  c10::DataPtr memory;
};

void drop_lazy_context(void* context) {
  delete static_cast<LazyContext*>(context);
}

/// The context of the tensor's storage; null if it is not a lazy storage.
const LazyContext* lazy_context(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kLazyKey) ||
      !tensor.has_storage()) {
    return nullptr;
  }
  const auto& pointer =
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &drop_lazy_context
             ? static_cast<const LazyContext*>(pointer.get_context())
             : nullptr;
}

// Torch can make a storage throw when its pointer is read, but cannot undo
// this. So access the private flag: an explicit instantiation may name a
// private member.
template <auto Member>
struct ThrowFlag {
  friend bool& throw_flag(c10::StorageImpl& storage) { return storage.*Member; }
};
bool& throw_flag(c10::StorageImpl& storage);
template struct ThrowFlag<&c10::StorageImpl::throw_on_immutable_data_ptr_>;

// Sets the device that torch stores next to the key, because views read it.
template <class Impl>
void note_device(Impl& tensor, c10::Device device) {
  if constexpr (requires { tensor.set_fake_device(device); }) {
    tensor.set_fake_device(device);
  }
}

/// The memory that one operator uses, until it ends.
class LazyUses {
 public:
  LazyUses() = default;
  ~LazyUses() {
    for (const auto& owner : owners_) {
      owner->end_use();
    }
  }
  LazyUses(const LazyUses&) = delete;
  LazyUses& operator=(const LazyUses&) = delete;

  void add(const LazyContext& context) {
    auto owner = context.owner.lock();
    if (!owner) {
      throw UsageError(str_cat(
          "[shard] The weights of ",
          context.name,
          " cannot be read, because their Accelerator no longer exists. Save "
          "the full weights with save_model() before the Accelerator is "
          "destroyed"));
    }
    if (std::find(owners_.begin(), owners_.end(), owner) == owners_.end()) {
      owner->begin_use();
      owners_.push_back(std::move(owner));
    }
  }

 private:
  std::vector<std::shared_ptr<MemoryOwner>> owners_;
};

template <class Work>
void for_each_tensor(const c10::IValue& value, Work&& work) {
  if (value.isTensor()) {
    work(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      work(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) {
      for_each_tensor(element, work);
    }
  }
}

bool makes_view(const c10::FunctionSchema& schema) {
  const auto& returns = schema.returns();
  return std::any_of(returns.begin(), returns.end(), [](const auto& value) {
    return value.alias_info() != nullptr && !value.alias_info()->isWrite();
  });
}

/// Requests the memory of the arguments that an operator reads.
void bring(
    const c10::FunctionSchema& schema,
    at::ArrayRef<c10::IValue> given,
    LazyUses& uses) {
  const auto& expected = schema.arguments();
  const bool is_view = makes_view(schema);
  for (size_t i = 0; i < expected.size(); ++i) {
    const auto* alias = expected[i].alias_info();
    const bool writes = alias != nullptr && alias->isWrite();
    for_each_tensor(given[i], [&](const at::Tensor& tensor) {
      const auto* context = lazy_context(tensor);
      if (context == nullptr) {
        return;
      }
      if (writes) {
        throw UsageError(str_cat(
            "[shard] ",
            schema.name(),
            " would write to ",
            context->name,
            ", but this rank only has a shard of it. Change weights before "
            "prepare(), or with a prepared optimizer"));
      }
      // If a view turns out to need a copy, another operator makes it.
      if (!is_view) {
        uses.add(*context);
      }
    });
  }
}

void bring_and_call(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet keys,
    torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  LazyUses uses;
  try {
    bring(schema, torch::jit::last(*stack, schema.arguments().size()), uses);
  } catch (const Error&) {
    throw_carried();
  }
  op.redispatchBoxed(
      keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kLazyKey),
      stack);
}

/// Provides memory for four elements and counts the uses.
struct LazyProbe final : MemoryOwner {
  void begin_use() override {
    ++num_uses;
    storage->fill(at::arange(4, at::kFloat));
  }
  void end_use() noexcept override { storage->empty(); }
  LazyStorage* storage = nullptr;
  int num_uses = 0;
};

template <class Work>
bool is_refused(Work&& work) {
  try {
    work();
  } catch (const std::exception&) {
    return true;
  }
  return false;
}

/// Describes what does not work; empty if everything works.
std::string try_lazy_storage() {
  const at::AutoGradMode records(true);
  const auto probe = std::make_shared<LazyProbe>();
  LazyStorage storage(
      4 * sizeof(float), c10::Device(c10::kCPU), probe, "a test");
  probe->storage = &storage;
  // Independent of the user's default dtype.
  const auto weight = at::zeros({4}, at::kFloat).requires_grad_(true);
  storage.move_in(weight, 0, at::kFloat);
  const auto view = weight.view({2, 2}).t();
  if (probe->num_uses != 0) {
    return "a view was treated as a read";
  }
  const auto input = at::ones({1, 2}, at::kFloat).requires_grad_(true);
  const auto output = at::mm(input, view);
  if (probe->num_uses == 0 || output.sum().item<float>() != 6) {
    return "an operator did not request memory";
  }
  const int num_forward = probe->num_uses;
  torch::autograd::backward({output.sum()}, {});
  if (probe->num_uses == num_forward || !weight.grad().defined() ||
      input.grad().sum().item<float>() != 6) {
    return "backward did not request memory";
  }
  const at::NoGradGuard no_grad;
  if (!is_refused([&] { weight.add_(1); }) ||
      !is_refused([&] { weight.const_data_ptr(); })) {
    return "a write or a pointer read was not rejected";
  }
  return {};
}

} // namespace

LazyStorage::LazyStorage(
    int64_t num_bytes,
    c10::Device device,
    std::weak_ptr<MemoryOwner> owner,
    const std::string& name)
    : storage_(
          c10::Storage::use_byte_size_t(),
          static_cast<size_t>(num_bytes),
          c10::DataPtr(nullptr, device),
          /*allocator=*/nullptr,
          /*resizable=*/false),
      owner_(std::move(owner)),
      name_(name) {
  storage_.unsafeGetStorageImpl()
      ->release_data_and_set_meta_custom_data_ptr_error_msg_(str_cat(
          "[shard] The memory of ",
          name_,
          " cannot be read, because this rank only has a shard of it. Use the "
          "weights in operators inside a training step, and save them with "
          "save_model() or save_state()"));
  empty();
}

void LazyStorage::fill(const at::Tensor& memory) {
  auto* storage = storage_.unsafeGetStorageImpl();
  const auto device = memory.device();
  // Take the memory out of the tensor, because the code that filled it may hold
  // the tensor after `empty` was called, e.g. a backend's thread.
  auto taken = memory.storage().set_data_ptr({nullptr, device});
  void* const data = taken.get();
  throw_flag(*storage) = false;
  storage->set_data_ptr_noswap(c10::DataPtr(
      data,
      new LazyContext{owner_, name_, std::move(taken)},
      &drop_lazy_context,
      device));
}

void LazyStorage::empty() {
  auto* storage = storage_.unsafeGetStorageImpl();
  throw_flag(*storage) = true;
  storage->set_data_ptr_noswap(c10::DataPtr(
      nullptr,
      new LazyContext{owner_, name_, {}},
      &drop_lazy_context,
      storage->device()));
}

at::Tensor LazyStorage::tensor(
    int64_t offset,
    at::IntArrayRef sizes,
    at::ScalarType dtype) const {
  const auto device = storage_.device();
  const auto keys =
      c10::DispatchKeySet(c10::computeDispatchKey(dtype, {}, device))
          .add(kLazyKey);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(storage_), keys, c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_storage_offset(offset);
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  note_device(*tensor.unsafeGetTensorImpl(), device);
  return tensor;
}

void LazyStorage::move_in(
    const at::Tensor& tensor,
    int64_t offset,
    at::ScalarType dtype) const {
  replace_memory(tensor, this->tensor(offset, tensor.sizes(), dtype));
}

bool is_lazy(const at::Tensor& tensor) {
  return lazy_context(tensor) != nullptr;
}

std::optional<MemorySharers> memory_sharers(const at::Tensor& tensor) {
  const auto* context = lazy_context(tensor);
  const auto owner = context ? context->owner.lock() : nullptr;
  return owner ? owner->sharers() : std::nullopt;
}

void check_lazy_storage() {
  static const std::string problem = [] {
    try {
      static torch::Library library(
          torch::Library::IMPL, "_", kLazyKey, __FILE__, __LINE__);
      library.fallback(
          torch::CppFunction::makeFromBoxedFunction<&bring_and_call>());
      return try_lazy_storage();
    } catch (const std::exception& error) {
      return std::string(c10::str(error.what())).substr(0, 200);
    }
  }();
  if (!problem.empty()) {
    throw ConfigError(str_cat(
        "[prepare] This version of torch (",
        TORCH_VERSION,
        ") cannot gather sharded parameters on demand (",
        problem,
        "). ",
        hint(
            "Use ShardStage::kGradients", "Use ZeRO stage 2 (SHARD_GRAD_OP)")));
  }
}

} // namespace accelerate

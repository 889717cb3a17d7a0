// SPDX-License-Identifier: Apache-2.0
#include "training/state/deferred_tensors.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/variable.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>

#include "accelerate/error.h"
#include "core/base/str.h"

namespace accelerate {
namespace {

/// A key that is unused in core and above all others, so that operators arrive
/// in the form in which they are called.
constexpr c10::DispatchKey kDeferredKey = c10::DispatchKey::DeferredInit;

/// A tensor as an operator received it: a view of a storage on a tape, or a
/// tensor in memory.
struct TapedTensor {
  std::optional<int64_t> storage;
  std::vector<int64_t> sizes = {};
  std::vector<int64_t> strides = {};
  int64_t offset = 0;
  at::ScalarType dtype = at::kFloat;
  at::Tensor in_memory = {};
  /// The version of `in_memory`, which must not change before it is used.
  int64_t version = 0;
};

struct TapedArgument {
  enum class Kind { kValue, kTensor, kTensors, kOptionalTensors };
  Kind kind = Kind::kValue;
  c10::IValue value = {};
  std::vector<TapedTensor> tensors = {};
};

struct TapedCall {
  c10::OperatorHandle op;
  std::vector<TapedArgument> arguments;
  std::vector<TapedTensor> results = {};
  /// The storages that the call creates or writes to.
  std::set<int64_t> writes = {};
  /// The seed of an operator that draws random numbers.
  std::optional<uint64_t> seed = {};
};

/// All calls that deferred tensors depend on, in order. Exists as long as one
/// of these tensors does.
struct DeferredTape {
  std::vector<TapedCall> calls;
  std::unordered_map<int64_t, size_t> last_write;
  int64_t num_storages = 0;
};

/// The context of a deferred storage's pointer. Every view finds it.
struct DeferredContext {
  std::shared_ptr<DeferredTape> tape;
  int64_t storage = 0;
};

void drop_deferred_context(void* context) {
  delete static_cast<DeferredContext*>(context);
}

const DeferredContext* deferred_context(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.is_meta() || !tensor.has_storage()) {
    return nullptr;
  }
  const auto& pointer =
      tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks();
  return pointer.get_deleter() == &drop_deferred_context
             ? static_cast<const DeferredContext*>(pointer.get_context())
             : nullptr;
}

/// The thread's tape. It exists as long as a tensor or a scope uses it.
std::shared_ptr<DeferredTape> current_tape() {
  thread_local std::weak_ptr<DeferredTape> latest;
  auto tape = latest.lock();
  if (!tape) {
    tape = std::make_shared<DeferredTape>();
    latest = tape;
  }
  return tape;
}

/// Makes a new meta tensor a deferred one.
void defer(
    const at::Tensor& tensor,
    const std::shared_ptr<DeferredTape>& tape) {
  auto* storage = tensor.storage().unsafeGetStorageImpl();
  // Writing to its memory throws. Reading its pointer is allowed, because torch
  // compares the pointers of operands.
  storage->set_throw_on_mutable_data_ptr();
  storage->set_data_ptr_noswap(c10::DataPtr(
      nullptr,
      new DeferredContext{tape, tape->num_storages++},
      &drop_deferred_context,
      tensor.device()));
}

/// Adds the key, which makes the dispatcher call this file even outside of a
/// scope.
void mark(const at::Tensor& tensor) {
  if (tensor.key_set().has(kDeferredKey)) {
    return;
  }
  const auto keys =
      c10::DispatchKeySet(c10::DispatchKey::Meta).add(kDeferredKey);
  auto marked = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(tensor.storage()), keys, tensor.dtype());
  marked.unsafeGetTensorImpl()->set_storage_offset(tensor.storage_offset());
  marked.unsafeGetTensorImpl()->set_sizes_and_strides(
      tensor.sizes(), tensor.strides());
  tensor.unsafeGetTensorImpl()->shallow_copy_from(marked.getIntrusivePtr());
}

TapedTensor taped(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    return {};
  }
  const auto* context = deferred_context(tensor);
  if (context == nullptr) {
    return {
        .storage = {},
        .in_memory = tensor,
        .version = tensor.is_inference() ? 0 : tensor._version()};
  }
  return {
      .storage = context->storage,
      .sizes = tensor.sizes().vec(),
      .strides = tensor.strides().vec(),
      .offset = tensor.storage_offset(),
      .dtype = tensor.scalar_type()};
}

TapedArgument taped(const c10::IValue& value) {
  using Kind = TapedArgument::Kind;
  TapedArgument argument;
  if (value.isTensor()) {
    argument.kind = Kind::kTensor;
    argument.tensors.push_back(taped(value.toTensor()));
  } else if (value.isTensorList()) {
    argument.kind = Kind::kTensors;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      argument.tensors.push_back(taped(tensor));
    }
  } else if (value.isOptionalTensorList()) {
    argument.kind = Kind::kOptionalTensors;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      argument.tensors.push_back(taped(tensor.value_or(at::Tensor())));
    }
  } else {
    argument.value = value;
  }
  return argument;
}

/// The value, with its tensors replaced by `change`.
template <class Change>
c10::IValue changed(const c10::IValue& value, Change&& change) {
  if (value.isTensor()) {
    const auto& tensor = value.toTensor();
    return tensor.defined() ? c10::IValue(change(tensor)) : value;
  }
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) {
      list.push_back(tensor.defined() ? change(tensor) : tensor);
    }
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& tensor : value.toOptionalTensorVector()) {
      list.push_back(
          tensor && tensor->defined() ? std::optional(change(*tensor))
                                      : tensor);
    }
    return list;
  }
  return value;
}

template <class Work>
void for_each_tensor_of(const c10::IValue& value, Work&& work) {
  changed(value, [&](const at::Tensor& tensor) {
    work(tensor);
    return tensor;
  });
}

bool is_tensor_type(const c10::TypePtr& type) {
  return type->isSubtypeOf(*c10::TensorType::get()) ||
         type->isSubtypeOf(*c10::OptionalType::ofTensor()) ||
         type->isSubtypeOf(*c10::ListType::ofTensors()) ||
         type->isSubtypeOf(*c10::ListType::ofOptionalTensors());
}

bool is_device_type(const c10::TypePtr& type) {
  return type->isSubtypeOf(
      *c10::OptionalType::create(c10::DeviceObjType::get()));
}

bool is_generator_type(const c10::TypePtr& type) {
  return type->isSubtypeOf(
      *c10::OptionalType::create(c10::GeneratorType::get()));
}

at::Generator host_generator() {
  return at::globalContext().defaultGenerator(at::kCPU);
}

/// A seed from the generator from which the call would have drawn.
std::optional<uint64_t> drawn_seed(
    const c10::OperatorHandle& op,
    const std::vector<c10::IValue>& given) {
  if (!op.hasTag(at::Tag::nondeterministic_seeded)) {
    return std::nullopt;
  }
  auto generator = host_generator();
  const auto& expected = op.schema().arguments();
  for (size_t i = 0; i < expected.size(); ++i) {
    if (is_generator_type(expected[i].type()) && !given[i].isNone()) {
      generator = given[i].toGenerator();
    }
  }
  auto* own = generator.get<at::CPUGeneratorImpl>();
  const std::lock_guard lock(own->mutex_);
  return own->random64();
}

/// A meta tensor with the same metadata.
at::Tensor without_memory(const at::Tensor& tensor) {
  if (tensor.is_meta()) {
    return tensor;
  }
  auto twin = tensor.to(at::kMeta);
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {
    twin.unsafeGetTensorImpl()->set_wrapped_number(true);
  }
  return twin;
}

/// Materialises the tensors of recorded calls.
class Replay {
 public:
  explicit Replay(const DeferredTape& tape) : tape_(tape) {}

  /// Runs the calls for these storages, and for the storages that they depend
  /// on.
  void run(const std::set<int64_t>& wanted) {
    const at::NoGradGuard no_grad;
    // Otherwise a scope of this thread would record the calls again.
    const c10::impl::ExcludeDispatchKeyGuard outside(kDeferredKey);
    for (const size_t index : calls_of(wanted)) {
      run(tape_.calls[index]);
    }
  }

  at::Tensor tensor(const TapedTensor& taped) const {
    if (!taped.storage) {
      check_unchanged(taped.in_memory, taped.version);
      return taped.in_memory;
    }
    const at::NoGradGuard no_grad;
    return at::empty({0}, at::TensorOptions(taped.dtype))
        .set_(
            storages_.at(*taped.storage),
            taped.offset,
            taped.sizes,
            taped.strides);
  }

  static void check_unchanged(const at::Tensor& tensor, int64_t version) {
    if (tensor.defined() && !tensor.is_inference() &&
        tensor._version() != version) {
      throw UsageError(str_cat(
          "[EmptyWeights] A tensor of shape ",
          tensor.sizes(),
          " changed after a weight was created from it. Clone the tensor "
          "first, or change it after prepare()"));
    }
  }

 private:
  std::vector<size_t> calls_of(std::set<int64_t> needed) const {
    std::vector<size_t> indices;
    for (size_t i = tape_.calls.size(); i-- > 0;) {
      const auto& call = tape_.calls[i];
      if (std::none_of(
              call.writes.begin(), call.writes.end(), [&](int64_t written) {
                return needed.contains(written);
              })) {
        continue;
      }
      indices.push_back(i);
      for (const auto& argument : call.arguments) {
        for (const auto& tensor : argument.tensors) {
          if (tensor.storage) {
            needed.insert(*tensor.storage);
          }
        }
      }
    }
    std::reverse(indices.begin(), indices.end());
    return indices;
  }

  void run(const TapedCall& call) {
    std::optional<at::Generator> generator;
    if (call.seed) {
      generator = at::detail::createCPUGenerator(*call.seed);
    }
    torch::jit::Stack stack;
    const auto& expected = call.op.schema().arguments();
    bool takes_generator = false;
    for (size_t i = 0; i < expected.size(); ++i) {
      const bool is_generator = is_generator_type(expected[i].type());
      takes_generator |= is_generator;
      stack.push_back(
          is_generator && generator ? c10::IValue(*generator)
                                    : value(call.arguments[i]));
    }
    if (generator && !takes_generator) {
      call_with(*generator, call.op, stack);
    } else {
      call.op.callBoxed(&stack);
    }
    size_t index = 0;
    for (const auto& value : stack) {
      for_each_tensor_of(value, [&](const at::Tensor& tensor) {
        bind(call.results.at(index++), tensor);
      });
    }
  }

  /// Calls an operator that supports only the default generator, with the state
  /// of another one in it.
  static void call_with(
      const at::Generator& generator,
      const c10::OperatorHandle& op,
      torch::jit::Stack& stack) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    auto common = host_generator();
    const auto before = common.get_state();
    common.set_state(generator.get_state());
    try {
      op.callBoxed(&stack);
    } catch (...) {
      common.set_state(before);
      throw;
    }
    common.set_state(before);
  }

  c10::IValue value(const TapedArgument& argument) const {
    switch (argument.kind) {
      case TapedArgument::Kind::kValue:
        return argument.value;
      case TapedArgument::Kind::kTensor:
        return tensor(argument.tensors.front());
      case TapedArgument::Kind::kTensors: {
        c10::List<at::Tensor> list;
        for (const auto& taped : argument.tensors) {
          list.push_back(tensor(taped));
        }
        return list;
      }
      case TapedArgument::Kind::kOptionalTensors:
        break;
    }
    c10::List<std::optional<at::Tensor>> list;
    for (const auto& taped : argument.tensors) {
      auto found = tensor(taped);
      list.push_back(
          found.defined() ? std::optional(std::move(found)) : std::nullopt);
    }
    return list;
  }

  void bind(const TapedTensor& taped, const at::Tensor& result) {
    if (!taped.storage || storages_.contains(*taped.storage)) {
      return;
    }
    // If the layout on the host differs, use the strides of the tape.
    const bool is_alike = result.strides() == at::IntArrayRef(taped.strides) &&
                          result.storage_offset() == taped.offset &&
                          result.is_cpu();
    storages_[*taped.storage] =
        is_alike
            ? result.storage()
            : at::empty_strided(
                  taped.sizes, taped.strides, at::TensorOptions(taped.dtype))
                  .copy_(result)
                  .storage();
  }

  const DeferredTape& tape_;
  std::unordered_map<int64_t, c10::Storage> storages_;
};

/// One call that was dispatched by the key.
class DeferredCall {
 public:
  DeferredCall(const c10::OperatorHandle& op, torch::jit::Stack& stack)
      : op_(op), schema_(op.schema()), stack_(stack) {
    const auto& expected = schema_.arguments();
    const auto given = torch::jit::last(stack_, expected.size());
    given_.assign(given.begin(), given.end());
    for (size_t i = 0; i < expected.size(); ++i) {
      const auto* alias = expected[i].alias_info();
      const bool writes = alias != nullptr && alias->isWrite();
      takes_tensors_ |= is_tensor_type(expected[i].type());
      if (is_device_type(expected[i].type())) {
        takes_device_ = true;
        // The device in a deferred tensor's options is not an explicit device.
        names_device_ |= !given_[i].isNone() && !given_[i].toDevice().is_meta();
      }
      for_each_tensor_of(
          given_[i], [&](const at::Tensor& tensor) { note(tensor, writes); });
    }
  }

  void run(bool is_recording) {
    const bool makes =
        is_recording && !takes_tensors_ && takes_device_ && !names_device_;
    if (!tape_ && !makes) {
      op_.callBoxed(&stack_);
      return;
    }
    if (writes_memory_ && is_recording) {
      run_in_memory();
    } else if (!gives_tensors()) {
      answer(is_recording);
    } else if (is_recording || writes_deferred_ || makes_view()) {
      run_deferred();
    } else {
      refuse_read();
    }
  }

 private:
  void note(const at::Tensor& tensor, bool writes) {
    const auto* context = deferred_context(tensor);
    writes_memory_ |= writes && context == nullptr;
    if (context == nullptr) {
      return;
    }
    writes_deferred_ |= writes;
    if (tape_ && tape_ != context->tape) {
      throw UsageError(str_cat(
          "[EmptyWeights] ",
          schema_.name(),
          " uses weights that two threads created. Create a module in one "
          "thread"));
    }
    tape_ = context->tape;
    if (writes) {
      written_.insert(context->storage);
    }
  }

  bool gives_tensors() const {
    const auto& returns = schema_.returns();
    return returns.empty() ||
           std::any_of(returns.begin(), returns.end(), [](const auto& value) {
             return is_tensor_type(value.type());
           });
  }
  bool makes_view() const {
    const auto& returns = schema_.returns();
    return std::any_of(returns.begin(), returns.end(), [](const auto& value) {
      return value.alias_info() != nullptr && !value.alias_info()->isWrite();
    });
  }

  [[noreturn]] void refuse_read() const {
    throw UsageError(str_cat(
        "[EmptyWeights] ",
        schema_.name(),
        " reads a weight that has no values yet. Read it after prepare()"));
  }

  /// Returns a number or a boolean: from metadata if that is sufficient, else
  /// from values (`item()`).
  void answer(bool is_recording) {
    torch::jit::Stack trial;
    for (const auto& value : given_) {
      trial.push_back(changed(value, without_memory));
    }
    try {
      op_.callBoxed(&trial);
    } catch (const c10::Error&) {
      if (!is_recording) {
        refuse_read();
      }
      run_in_memory();
      return;
    }
    drop();
    stack_.insert(stack_.end(), trial.begin(), trial.end());
  }

  void run_in_memory() {
    if (writes_deferred_) {
      throw UsageError(str_cat(
          "[EmptyWeights] ",
          schema_.name(),
          " writes to weights without values and to other tensors at the same "
          "time. Use two calls"));
    }
    for (auto& value : drop()) {
      stack_.push_back(changed(value, [](const at::Tensor& tensor) {
        return is_deferred(tensor) ? deferred_values(tensor) : tensor;
      }));
    }
    op_.callBoxed(&stack_);
  }

  void run_deferred() {
    if (!tape_) {
      tape_ = current_tape();
    }
    TapedCall call{op_, {}};
    for (const auto& value : given_) {
      const bool is_meta = value.isDevice() && value.toDevice().is_meta();
      call.arguments.push_back(
          taped(is_meta ? c10::IValue(c10::Device(c10::kCPU)) : value));
    }
    call.seed = drawn_seed(op_, given_);
    const auto& expected = schema_.arguments();
    drop();
    for (size_t i = 0; i < expected.size(); ++i) {
      const bool is_device = is_device_type(expected[i].type());
      stack_.push_back(
          is_device && (!given_[i].isNone() || !takes_tensors_)
              ? c10::IValue(c10::Device(c10::kMeta))
              : changed(given_[i], without_memory));
    }
    op_.callBoxed(&stack_);
    call.writes = written_;
    for (const auto& value :
         torch::jit::last(stack_, schema_.returns().size())) {
      for_each_tensor_of(value, [&](const at::Tensor& tensor) {
        if (tensor.is_meta()) {
          if (deferred_context(tensor) == nullptr) {
            defer(tensor, tape_);
            call.writes.insert(deferred_context(tensor)->storage);
          }
          mark(tensor);
        }
        call.results.push_back(taped(tensor));
      });
    }
    // Views are found by their position in the storage.
    if (!call.writes.empty()) {
      for (const int64_t storage : call.writes) {
        tape_->last_write[storage] = tape_->calls.size();
      }
      tape_->calls.push_back(std::move(call));
    }
  }

  /// The arguments, which are removed from the stack.
  const std::vector<c10::IValue>& drop() {
    torch::jit::drop(stack_, given_.size());
    return given_;
  }

  const c10::OperatorHandle& op_;
  const c10::FunctionSchema& schema_;
  torch::jit::Stack& stack_;
  std::vector<c10::IValue> given_;
  std::shared_ptr<DeferredTape> tape_;
  std::set<int64_t> written_;
  bool takes_tensors_ = false;
  bool takes_device_ = false;
  bool names_device_ = false;
  bool writes_memory_ = false;
  bool writes_deferred_ = false;
};

void record_and_call(
    const c10::OperatorHandle& op,
    c10::DispatchKeySet /*keys*/,
    torch::jit::Stack* stack) {
  DeferredCall call(op, *stack);
  const bool is_recording = DeferredScope::is_open();
  // The operators that this one calls must not be recorded.
  const c10::impl::ExcludeDispatchKeyGuard inside(kDeferredKey);
  call.run(is_recording);
}

void register_key() {
  static torch::Library library(
      torch::Library::IMPL, "_", kDeferredKey, __FILE__, __LINE__);
  static const bool is_registered = [] {
    library.fallback(
        torch::CppFunction::makeFromBoxedFunction<&record_and_call>());
    return true;
  }();
  static_cast<void>(is_registered);
}

const DeferredContext& context_of(const at::Tensor& tensor) {
  const auto* context = deferred_context(tensor);
  if (context == nullptr) {
    throw UsageError(
        "[EmptyWeights] The tensor was not created while an EmptyWeights "
        "existed");
  }
  return *context;
}

/// The tensor that the last call has copied unchanged into all of this one;
/// null if there is none.
const TapedTensor* copied_from(const at::Tensor& tensor) {
  const auto* context = deferred_context(tensor);
  if (context == nullptr || !tensor.is_contiguous()) {
    return nullptr;
  }
  const auto& tape = *context->tape;
  const auto last = tape.last_write.find(context->storage);
  if (last == tape.last_write.end()) {
    return nullptr;
  }
  const auto& call = tape.calls[last->second];
  if (call.op.schema().name() != "aten::copy_") {
    return nullptr;
  }
  const auto& to = call.arguments[0].tensors.front();
  const auto& from = call.arguments[1].tensors.front();
  const bool is_all = to.storage == context->storage &&
                      at::IntArrayRef(to.sizes) == tensor.sizes() &&
                      at::IntArrayRef(to.strides) == tensor.strides() &&
                      to.offset == tensor.storage_offset();
  return is_all && from.in_memory.defined() &&
                 from.in_memory.sizes() == tensor.sizes() &&
                 from.in_memory.is_contiguous() &&
                 !from.in_memory.storage().resizable()
             ? &from
             : nullptr;
}

} // namespace

struct DeferredScope::Impl {
  /// Shared, because a model may be created in several scopes.
  std::shared_ptr<const void> tape = current_tape();
  c10::impl::IncludeDispatchKeyGuard included{kDeferredKey};
};

DeferredScope::DeferredScope() {
  register_key();
  impl_ = std::make_unique<Impl>();
}
DeferredScope::~DeferredScope() = default;
bool DeferredScope::is_open() {
  return c10::impl::tls_is_dispatch_key_included(kDeferredKey);
}

bool is_deferred(const at::Tensor& tensor) {
  return deferred_context(tensor) != nullptr;
}

at::Tensor deferred_values(const at::Tensor& tensor) {
  const auto& context = context_of(tensor);
  Replay replay(*context.tape);
  replay.run({context.storage});
  return replay.tensor(taped(tensor));
}

bool is_read_in_slices(const at::Tensor& tensor) {
  return copied_from(tensor) != nullptr;
}

void read_deferred_slice(
    const at::Tensor& tensor,
    int64_t begin,
    const at::Tensor& slice) {
  const auto* source = copied_from(tensor);
  if (source == nullptr) {
    throw UsageError(
        "[EmptyWeights] The values of this tensor are computed and cannot be "
        "read in parts");
  }
  Replay::check_unchanged(source->in_memory, source->version);
  const at::NoGradGuard no_grad;
  slice.copy_(source->in_memory.view({-1}).narrow(0, begin, slice.numel()));
}

void replace_memory(const at::Tensor& tensor, const at::Tensor& other) {
  auto* meta = torch::autograd::impl::get_autograd_meta(tensor);
  if (meta != nullptr &&
      (tensor.dtype() != other.dtype() || tensor.device() != other.device())) {
    // A gradient accumulator created before would use another dtype or device.
    meta->grad_accumulator_.reset();
  }
  tensor.unsafeGetTensorImpl()->shallow_copy_from(other.getIntrusivePtr());
}

void fill_deferred(const std::vector<at::Tensor>& tensors, c10::Device device) {
  const at::NoGradGuard no_grad;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> there;
  std::vector<c10::Storage> old; // prevents their addresses from being reused
  for (const auto& tensor : tensors) {
    if (!is_deferred(tensor)) {
      continue;
    }
    const auto* storage = tensor.storage().unsafeGetStorageImpl();
    auto& memory = there[storage];
    const auto options = at::TensorOptions(tensor.dtype()).device(device);
    if (!memory) {
      old.push_back(tensor.storage());
      const auto values = deferred_values(tensor);
      const auto num_elements = static_cast<int64_t>(
          values.storage().nbytes() / values.dtype().itemsize());
      memory = at::empty({0}, values.options())
                   .set_(values.storage(), 0, {num_elements})
                   .to(device)
                   .storage();
    }
    const auto filled = at::empty({0}, options)
                            .set_(
                                memory,
                                tensor.storage_offset(),
                                tensor.sizes(),
                                tensor.strides());
    replace_memory(tensor, filled);
  }
}

} // namespace accelerate

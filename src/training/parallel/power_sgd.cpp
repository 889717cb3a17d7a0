// SPDX-License-Identifier: Apache-2.0
// PowerSGD approximates a gradient matrix M by P Q^T. P is M Q, orthogonalised,
// and Q is M^T P. Only P and Q are summed over ranks.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <random>

#include "accelerate/error.h"
#include "core/base/str.h"
#include "training/parallel/compression.h"

namespace accelerate {
namespace {

/// The matrices of one bucket, with views of their factors.
struct Factors {
  std::vector<std::string> names;
  std::vector<at::Tensor> matrices, ps, qs;
  std::vector<at::Tensor> uncompressed;
};

/// The state of one bucket between steps: all P and all Q, each contiguous, and
/// the error of the last approximation. Q and the error also have views by
/// name, because the layout of buckets differs between runs.
struct BucketMemory {
  at::Tensor p, q, error;
  std::map<std::string, at::Tensor> qs, errors;
};

// Produces the same seeds as NumPy's RandomState(seed).randint(10**9), so that
// runs start from the same factors as in PyTorch.
class SeedStream {
 public:
  explicit SeedStream(uint32_t seed) : engine_(seed) {}
  uint64_t next() {
    ++num_drawn_;
    constexpr uint32_t kBelow = 1'000'000'000;
    constexpr uint32_t kMask = (1u << 30) - 1;
    uint32_t value = kBelow;
    while (value >= kBelow) {
      value = static_cast<uint32_t>(engine_()) & kMask;
    }
    return value;
  }
  int64_t num_drawn() const { return num_drawn_; }

 private:
  std::mt19937 engine_;
  int64_t num_drawn_ = 0;
};

/// All state that PowerSGD keeps between steps.
class PowerSgdMemory final : public Stateful {
 public:
  explicit PowerSgdMemory(uint32_t random_seed)
      : seeds(random_seed), random_seed_(random_seed) {}

  // Omits P, which follows from Q and the next gradient.
  StateDict state_dict() const override {
    StateDict state;
    state.set("iteration", iteration);
    state.set("num_seeds", seeds.num_drawn());
    const auto put = [&](const char* kind, const auto& tensors) {
      for (const auto& [name, tensor] : tensors) {
        state.set(str_cat(kind, '.', name), tensor);
      }
    };
    put("q", loaded_qs_);
    put("error", loaded_errors_);
    for (const auto& [index, bucket] : buckets) {
      put("q", bucket.qs);
      put("error", bucket.errors);
    }
    return state;
  }

  void load_state_dict(const StateDict& state) override {
    const auto count_of = [&](const char* name) {
      return state.contains(name) ? state.get<int64_t>(name) : 0;
    };
    const auto new_iteration = count_of("iteration");
    const auto num_seeds = count_of("num_seeds");
    const auto tensors_of = [&](const char* kind) {
      std::map<std::string, at::Tensor> tensors;
      for (const auto& [name, value] : state.section(kind)) {
        const auto key = str_cat(kind, '.', name);
        tensors[name] = state.get<at::Tensor>(key).clone();
      }
      return tensors;
    };
    loaded_qs_ = tensors_of("q");
    loaded_errors_ = tensors_of("error");
    buckets.clear();
    iteration = new_iteration;
    seeds = SeedStream(random_seed_);
    while (seeds.num_drawn() < num_seeds) {
      seeds.next();
    }
  }

  /// Copies a loaded Q that was not used yet into `target`, which has the same
  /// size.
  bool take_q(const std::string& name, at::Tensor target) {
    return take(loaded_qs_, name, std::move(target));
  }
  bool take_error(const std::string& name, at::Tensor target) {
    return take(loaded_errors_, name, std::move(target));
  }
  bool has_loaded_errors() const { return !loaded_errors_.empty(); }

  int64_t iteration = 0;
  SeedStream seeds;
  /// The state of each bucket, by its index.
  std::map<size_t, BucketMemory> buckets;

 private:
  static bool take(
      std::map<std::string, at::Tensor>& loaded,
      const std::string& name,
      at::Tensor target) {
    const auto found = loaded.find(name);
    if (found == loaded.end()) {
      return false;
    }
    target.copy_(found->second.view_as(target));
    loaded.erase(found);
    return true;
  }

  uint32_t random_seed_;
  std::map<std::string, at::Tensor> loaded_qs_, loaded_errors_;
};

void gram_schmidt(at::Tensor matrix, double epsilon) {
  const int64_t num_cols = matrix.size(1);
  for (int64_t i = 0; i < num_cols; ++i) {
    auto col = matrix.narrow(1, i, 1);
    auto norm = col.norm(2, at::IntArrayRef{0}, /*keepdim=*/true);
    col.div_(epsilon == 0 ? norm : norm + epsilon);
    if (i + 1 < num_cols) {
      auto rest = matrix.narrow(1, i + 1, num_cols - i - 1);
      rest.sub_((col * rest).sum(0, /*keepdim=*/true) * col);
    }
  }
}

void orthogonalize(at::Tensor matrix, double epsilon) {
  const auto dtype = matrix.scalar_type();
  // QR is faster for more columns, but does not support 16-bit types.
  if (matrix.size(1) <= 2 || dtype == at::kHalf || dtype == at::kBFloat16) {
    gram_schmidt(matrix, epsilon);
  } else {
    matrix.copy_(std::get<0>(at::linalg_qr(matrix)));
  }
}

class PowerSgdHook final : public c10d::CommHookInterface {
 public:
  PowerSgdHook(
      const PowerSgdOptions& options,
      std::shared_ptr<CompressionState> state,
      std::shared_ptr<PowerSgdMemory> memory)
      : options_(options),
        state_(std::move(state)),
        memory_(std::move(memory)) {}

  // Synchronous. If callbacks started the second and third sum, ranks with
  // several buckets could start them in different orders.
  c10::intrusive_ptr<c10::ivalue::Future> runHook(
      c10d::GradBucket& bucket) override {
    auto& buffer = bucket.getBufferRef();
    if (memory_->iteration < options_.start_powerSGD_iter) {
      sum_of(buffer.div_(state_->divisor));
    } else {
      compress(bucket);
    }
    if (bucket.isLast()) {
      ++memory_->iteration;
    }
    auto done = c10::make_intrusive<c10::ivalue::Future>(
        c10::TensorType::get(),
        buffer.is_cpu() ? std::vector<c10::Device>{}
                        : std::vector<c10::Device>{buffer.device()});
    done->markCompleted(buffer);
    return done;
  }

  at::Tensor parseHookResult(const c10::IValue& result) override {
    return c10d::detail::parseCppCommHookResult(result);
  }

 private:
  void sum_of(const at::Tensor& tensor) {
    if (tensor.numel() > 0) {
      start_sum(*state_, tensor)->wait();
    }
  }

  void compress(c10d::GradBucket& bucket) {
    auto& buffer = bucket.getBufferRef();
    auto& memory = memory_->buckets[bucket.getIndex()];
    const auto gradients = bucket.getGradients();
    std::vector<std::string> names;
    for (const auto& parameter : bucket.getParameters()) {
      names.push_back(state_->name_of(parameter));
    }
    at::Tensor wanted;
    if (options_.use_error_feedback) {
      if (!memory.error.defined() && memory_->has_loaded_errors()) {
        memory.error = at::zeros_like(buffer);
        for (const auto& [name, own] :
             by_name(names, gradients, buffer, memory.error)) {
          memory_->take_error(name, own);
        }
      }
      if (memory.error.defined()) {
        buffer.add_(memory.error);
      }
      wanted = buffer.clone();
    }
    auto factors = split(names, gradients, memory);
    sum_uncompressed(factors.uncompressed);
    for (size_t i = 0; i < factors.matrices.size(); ++i) {
      at::mm_out(factors.ps[i], factors.matrices[i], factors.qs[i]);
    }
    sum_of(memory.p);
    for (size_t i = 0; i < factors.matrices.size(); ++i) {
      orthogonalize(factors.ps[i], options_.orthogonalization_epsilon);
      at::mm_out(factors.qs[i], factors.matrices[i].t(), factors.ps[i]);
    }
    sum_of(memory.q);
    memory.q.div_(state_->divisor);
    for (size_t i = 0; i < factors.matrices.size(); ++i) {
      at::mm_out(factors.matrices[i], factors.ps[i], factors.qs[i].t());
    }
    if (options_.use_error_feedback) {
      memory.error = wanted.sub_(buffer);
      memory.errors = by_name(names, gradients, buffer, memory.error);
    }
    memory.qs.clear();
    if (!options_.warm_start) {
      memory.p = memory.q = at::Tensor();
      return;
    }
    for (size_t i = 0; i < factors.names.size(); ++i) {
      memory.qs[factors.names[i]] = factors.qs[i];
    }
  }

  /// Views of `flat` at the positions of the gradients. `flat` has the layout
  /// of `buffer`.
  static std::map<std::string, at::Tensor> by_name(
      const std::vector<std::string>& names,
      const std::vector<at::Tensor>& gradients,
      const at::Tensor& buffer,
      const at::Tensor& flat) {
    std::map<std::string, at::Tensor> views;
    for (size_t i = 0; i < names.size(); ++i) {
      const int64_t begin =
          gradients[i].storage_offset() - buffer.storage_offset();
      views[names[i]] = flat.narrow(0, begin, gradients[i].numel());
    }
    return views;
  }

  int64_t rank_for(int64_t n, int64_t m) const {
    return std::min({n, m, options_.matrix_approximation_rank});
  }

  // Determines which gradients are compressed, and the positions of their
  // factors.
  Factors split(
      const std::vector<std::string>& names,
      const std::vector<at::Tensor>& gradients,
      BucketMemory& memory) {
    Factors factors;
    int64_t p_size = 0;
    int64_t q_size = 0;
    for (size_t i = 0; i < gradients.size(); ++i) {
      const auto& gradient = gradients[i];
      const int64_t n = gradient.dim() == 0 ? 1 : gradient.size(0);
      const auto matrix = gradient.view({n, -1});
      const int64_t m = matrix.size(1);
      const int64_t rank = rank_for(n, m);
      const auto small = static_cast<double>((n + m) * rank);
      if (small * options_.min_compression_rate < static_cast<double>(n * m)) {
        factors.names.push_back(names[i]);
        factors.matrices.push_back(matrix);
        p_size += n * rank;
        q_size += m * rank;
      } else {
        factors.uncompressed.push_back(gradient);
      }
    }
    const bool is_new = !memory.p.defined();
    if (is_new) {
      memory.p = at::empty({p_size}, gradients[0].options());
      memory.q = at::empty({q_size}, gradients[0].options());
    }
    place(factors, memory);
    begin_qs(factors, is_new);
    return factors;
  }

  void place(Factors& factors, const BucketMemory& memory) const {
    // Uses PyTorch's order, in which matrices of one shape are consecutive.
    const auto& all = factors.matrices;
    const auto first_alike = [](const auto& list, const at::Tensor& matrix) {
      return std::find_if(list.begin(), list.end(), [&](const auto& other) {
        return other.sizes() == matrix.sizes();
      });
    };
    std::vector<size_t> order(all.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
      return first_alike(all, all[a]) < first_alike(all, all[b]);
    });
    Factors sorted;
    for (const size_t i : order) {
      sorted.names.push_back(factors.names[i]);
      sorted.matrices.push_back(factors.matrices[i]);
    }
    factors.names = std::move(sorted.names);
    factors.matrices = std::move(sorted.matrices);
    int64_t p_begin = 0;
    int64_t q_begin = 0;
    for (const auto& matrix : factors.matrices) {
      const int64_t n = matrix.size(0);
      const int64_t m = matrix.size(1);
      const int64_t rank = rank_for(n, m);
      factors.ps.push_back(
          memory.p.narrow(0, p_begin, n * rank).view({n, rank}));
      factors.qs.push_back(
          memory.q.narrow(0, q_begin, m * rank).view({m, rank}));
      p_begin += n * rank;
      q_begin += m * rank;
    }
  }

  void begin_qs(const Factors& factors, bool is_new) {
    if (is_new && !take_loaded_qs(factors)) {
      auto generator = at::detail::createCPUGenerator(memory_->seeds.next());
      for (const auto& q : factors.qs) {
        q.copy_(at::randn(
            q.sizes(), generator, at::TensorOptions(q.scalar_type())));
      }
    }
    for (const auto& q : factors.qs) {
      orthogonalize(q, options_.orthogonalization_epsilon);
    }
  }

  bool take_loaded_qs(const Factors& factors) {
    bool all = true;
    for (size_t i = 0; i < factors.names.size(); ++i) {
      all = memory_->take_q(factors.names[i], factors.qs[i]) && all;
    }
    return all;
  }

  void sum_uncompressed(const std::vector<at::Tensor>& gradients) {
    if (gradients.empty()) {
      return;
    }
    std::vector<at::Tensor> flat;
    std::vector<int64_t> sizes;
    for (const auto& gradient : gradients) {
      flat.push_back(gradient.flatten());
      sizes.push_back(gradient.numel());
    }
    auto joined = at::cat(flat);
    sum_of(joined);
    joined.div_(state_->divisor);
    const auto averaged = joined.split_with_sizes(sizes);
    for (size_t i = 0; i < gradients.size(); ++i) {
      gradients[i].copy_(averaged[i].view_as(gradients[i]));
    }
  }

  PowerSgdOptions options_;
  std::shared_ptr<CompressionState> state_;
  std::shared_ptr<PowerSgdMemory> memory_;
};

} // namespace

CompressionHook make_power_sgd(
    const PowerSgdOptions& options,
    std::shared_ptr<CompressionState> state) {
  if (options.matrix_approximation_rank < 1) {
    throw UsageError(str_cat(
        "[prepare] matrix_approximation_rank is ",
        options.matrix_approximation_rank,
        ". It must be at least 1"));
  }
  if ((options.use_error_feedback || options.warm_start) &&
      options.start_powerSGD_iter <= 1) {
    throw UsageError(str_cat(
        "[prepare] start_powerSGD_iter is ",
        options.start_powerSGD_iter,
        ". With use_error_feedback or warm_start, start_powerSGD_iter must be "
        "at least 2, because buckets are rebuilt after the first step"));
  }
  auto memory = std::make_shared<PowerSgdMemory>(options.random_seed);
  return {
      std::make_unique<PowerSgdHook>(options, std::move(state), memory),
      memory};
}

} // namespace accelerate

// SPDX-License-Identifier: Apache-2.0
#include "core/verify/comparison.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <utility>

#include "core/base/str.h"
#include "core/verify/rank_agreement.h"
#include "core/verify/step_difference.h"
#include "core/verify/tensor_lists.h"

namespace accelerate::verify {
namespace {

/// A list of tensors in a record.
using List = Tensors UpdateRecord::*;

Tensors
joined(const std::vector<ProcessRecord>& run, size_t update, List list) {
  Tensors whole;
  for (const auto& process : run) {
    add_rank(process.updates[update].*list, whole);
  }
  return whole;
}

std::int64_t num_inputs(const UpdateRecord& update) {
  std::int64_t count = 0;
  for (const auto& batch : update.batches) {
    for (const auto& leaf : batch.leaves) {
      count += leaf.num_elements;
    }
  }
  return count;
}

class Comparison {
 public:
  Comparison(
      const std::vector<ProcessRecord>& run,
      const ProcessRecord& reference)
      : run_(run), reference_(reference) {
    for (const auto& process : run) {
      add_rank(process.initial, initial_);
    }
  }

  /// Compares update `i`. The lines say what is wrong, and the likely mistake.
  Verdict compare_update(size_t i) {
    std::vector<const UpdateRecord*> updates;
    for (const auto& process : run_) {
      updates.push_back(&process.updates[i]);
    }
    const auto& expected = reference_.updates[i];
    const auto gradients = joined(run_, i, &UpdateRecord::gradients);
    const auto parameters = joined(run_, i, &UpdateRecord::parameters);
    // After the first update, weights differ by rounding, and optimizers like
    // Adam turn the sign of a tiny gradient into a full step.
    std::int64_t count = num_inputs(expected);
    const double exact =
        8 * kEpsilon32 *
        std::sqrt(static_cast<double>(std::max<std::int64_t>(count, 1024)));
    const double drift = i == 0 ? 0 : 2 * std::sqrt(exact);

    Worst loss;
    const double ours = mean_loss(updates);
    const double theirs = mean_loss({&expected});
    loss.add(
        {.difference =
             std::abs(ours - theirs) / std::max(std::abs(theirs), 1e-3),
         .tolerance = exact + drift,
         .is_set = true});
    Worst gradient;
    const Scale scale = scale_of(expected.gradients);
    for (const auto& tensor : gradients) {
      const auto* other = find(expected.gradients, tensor.name);
      const double size = std::max(
          {std::sqrt(tensor.sketch.squares),
           other == nullptr ? 0 : std::sqrt(other->sketch.squares),
           scale.floor_of(tensor)});
      const double difference =
          distance(tensor.sketch, other == nullptr ? Sketch() : other->sketch);
      // NaN is neither larger nor smaller than anything.
      if (!(size <= 0 && difference <= 0)) {
        gradient.add(
            {.difference = difference / size,
             .tolerance = exact + drift + 8 * reduced(tensor.epsilon),
             .is_set = true,
             .where = tensor.name});
        auto& amplified = amplified_[tensor.name];
        const double norm = std::sqrt(tensor.sketch.squares);
        amplified =
            std::max(amplified, norm > 0 ? scale.floor_of(tensor) / norm : 0.0);
      }
    }
    Worst parameter;
    for (const auto& tensor : parameters) {
      compare_parameter(tensor, expected, exact, i, parameter);
    }

    if (gradient.is_too_large() || parameter.is_too_large() ||
        loss.is_too_large()) {
      auto verdict = explain(
          {.step = i,
           .num_merged = run_[0].num_data_ranks,
           .updates = std::move(updates),
           .expected = expected,
           .gradients = gradients,
           .loss = loss,
           .gradient = gradient,
           .parameter = parameter,
           .exact = exact});
      if (verdict.outcome != Outcome::kAgrees) {
        return verdict;
      }
    }
    loss_.add(loss);
    gradient_.add(gradient);
    parameter_.add(parameter);
    return {};
  }

  std::vector<std::string> summary() const {
    std::vector<std::string> lines;
    const std::pair<const char*, const Worst&> kinds[] = {
        {"loss       ", loss_},
        {"gradients  ", gradient_},
        {"parameters ", parameter_}};
    for (const auto& [name, worst] : kinds) {
      if (worst.is_set) {
        lines.push_back(str_cat(
            "  ",
            name,
            worst.difference == 0
                ? std::string(" no difference beyond rounding")
                : str_cat(
                      " largest relative difference ",
                      short_number(worst.difference),
                      worst.where.empty() ? ""
                                          : str_cat(" in '", worst.where, "'"),
                      // A loss may contain values without gradients.
                      worst.is_too_large()
                          ? std::string(". It does not count, because the "
                                        "gradients agree")
                          : str_cat(
                                ", ",
                                short_number(worst.part()),
                                " of the tolerance"))));
      }
    }
    return lines;
  }

 private:
  static double reduced(double epsilon) {
    return epsilon > kEpsilon32 ? epsilon : 0;
  }

  // Compares how far the parameter has moved since the first step.
  void compare_parameter(
      const TensorRecord& tensor,
      const UpdateRecord& expected,
      double exact,
      size_t i,
      Worst& worst) {
    const auto* other = find(expected.parameters, tensor.name);
    const auto* start = find(initial_, tensor.name);
    const auto* other_start = find(reference_.initial, tensor.name);
    if (other == nullptr || start == nullptr || other_start == nullptr) {
      return;
    }
    const Sketch moved = difference(tensor.sketch, start->sketch);
    const Sketch other_moved = difference(other->sketch, other_start->sketch);
    // Sums of fp32 values are exact to this part of the norm.
    const double rounding = 4 * std::max(tensor.epsilon, kEpsilon32) *
                            std::sqrt(tensor.sketch.squares) *
                            static_cast<double>(i + 1);
    const double size = std::max(norm_of(moved), norm_of(other_moved));
    const double off = distance(moved, other_moved);
    const auto amplified = amplified_.find(tensor.name);
    const double amplification =
        amplified == amplified_.end() ? 1 : std::max(1.0, amplified->second);
    const double tolerance =
        2 * std::sqrt(exact * amplification * static_cast<double>(i + 1)) +
        8 * reduced(tensor.epsilon);
    // The update of a tensor whose gradient is mostly rounding is arbitrary. So
    // is that of some elements of a bias, such as those for the keys in a bias
    // of queries, keys and values.
    constexpr double kArbitrary = 0.5;
    if (tolerance >= kArbitrary || size == 0 || tensor.num_dimensions < 2) {
      return;
    }
    worst.add(
        {.difference = std::max(0.0, off - rounding) / size,
         .tolerance = tolerance,
         .is_set = true,
         .where = tensor.name});
  }

  static Sketch difference(const Sketch& a, const Sketch& b) {
    Sketch result;
    for (size_t i = 0; i < Sketch::kNumSums; ++i) {
      result.sums[i] = a.sums[i] - b.sums[i];
    }
    return result;
  }
  static double norm_of(const Sketch& sketch) {
    return distance(sketch, Sketch());
  }

  const std::vector<ProcessRecord>& run_;
  const ProcessRecord& reference_;
  /// The parameters at the start.
  Tensors initial_;
  Worst loss_;
  Worst gradient_;
  Worst parameter_;
  /// How much smaller a gradient was than others of its size, at most. Rounding
  /// is that much larger in its update.
  std::map<std::string, double> amplified_;
};

std::string memory_line(
    const std::vector<ProcessRecord>& run,
    const ProcessRecord& reference) {
  const auto peak = [](const ProcessRecord& process) {
    std::int64_t most = 0;
    for (const auto& update : process.updates) {
      most = std::max(most, update.peak_memory);
    }
    return str_cat((most + 500'000) / 1'000'000, " MB");
  };
  std::string line = "  peak memory ";
  for (const auto& process : run) {
    line += str_cat(
        process.rank == 0 ? "" : ", ",
        peak(process),
        " on rank ",
        process.rank);
  }
  return line + str_cat("; ", peak(reference), " in one process");
}

std::vector<std::string> obstacles(
    const std::vector<ProcessRecord>& processes,
    bool only_excuses) {
  return unique_texts(processes, [&](const ProcessRecord& process) {
    std::vector<std::string> texts;
    for (const auto& obstacle : process.obstacles) {
      if (obstacle.only_excuses == only_excuses) {
        texts.push_back(obstacle.text);
      }
    }
    return texts;
  });
}

/// Why ranks may see other samples than one process in update `i`; empty if the
/// samples are the same.
std::string sample_difference(
    const std::vector<ProcessRecord>& run,
    const ProcessRecord& reference,
    size_t i) {
  const auto& expected = reference.updates[i].batches;
  for (size_t b = 0; b < expected.size(); ++b) {
    if (expected[b].leaves.empty()) {
      return "The samples of the step do not come from a prepared loader, so "
             "a single process trains on different samples. Pass the loader to "
             "prepare()";
    }
    std::int64_t num_samples = 0;
    for (const auto& process : run) {
      num_samples += process.updates[i].batches[b].num_samples;
    }
    if (num_samples != expected[b].num_samples) {
      return str_cat(
          "The processes read ",
          num_samples,
          " samples in the step, but a single process reads ",
          expected[b].num_samples,
          ". The batch size or the sampler depends on the number of processes");
    }
    for (size_t leaf = 0; leaf < expected[b].leaves.size(); ++leaf) {
      std::int64_t num_elements = 0;
      double sum = 0;
      for (const auto& process : run) {
        const auto& leaves = process.updates[i].batches[b].leaves;
        if (leaf < leaves.size()) {
          num_elements += leaves[leaf].num_elements;
          sum += leaves[leaf].sum;
        }
      }
      // Padding to another length changes the number of elements.
      const double other = expected[b].leaves[leaf].sum;
      if (num_elements == expected[b].leaves[leaf].num_elements &&
          std::abs(sum - other) >
              1e-5 * std::max({std::abs(sum), std::abs(other), 1.0})) {
        return "The loaders return different values in the second run. Either "
               "the dataset differs between ranks (split without a seed, or "
               "already sharded), or reading a sample draws random numbers. "
               "Give all ranks the same data, and turn augmentation off or "
               "seed it with the index of the sample";
      }
    }
  }
  return {};
}

/// Whether BatchNorm has a buffer of this name.
bool is_of_batch_norm(const std::string& name) {
  return name.ends_with("running_mean") || name.ends_with("running_var") ||
         name.ends_with("num_batches_tracked");
}

Verdict not_comparable(std::vector<std::string> reasons) {
  return {.outcome = Outcome::kNotComparable, .lines = std::move(reasons)};
}

} // namespace

Verdict compare(
    const std::vector<ProcessRecord>& run,
    const ProcessRecord& reference,
    int num_steps) {
  auto both = run;
  both.push_back(reference);
  if (auto reasons = obstacles(both, /*only_excuses=*/false);
      !reasons.empty()) {
    return not_comparable(std::move(reasons));
  }
  if (run[0].updates.empty() || reference.updates.empty()) {
    return not_comparable(
        {"The program made no step with a prepared optimizer. Pass the model, "
         "the optimizer and the loader to prepare(), and let the program train "
         "for at least one step"});
  }
  for (const auto& process : run) {
    if (process.updates.size() != reference.updates.size()) {
      return not_comparable({str_cat(
          "Rank ",
          process.rank,
          " made ",
          process.updates.size(),
          process.updates.size() == 1 ? " step" : " steps",
          ", but a single process made ",
          reference.updates.size(),
          ". The length of the loop depends on time, or on the number of "
          "processes")});
    }
  }
  Comparison comparison(run, reference);
  const size_t num_updates = reference.updates.size();
  for (size_t i = 0; i < num_updates; ++i) {
    const auto& ours = run[0].updates[i];
    const auto& theirs = reference.updates[i];
    if (ours.optimizer != theirs.optimizer ||
        ours.batches.size() != theirs.batches.size()) {
      return not_comparable({str_cat(
          "Step ",
          i + 1,
          " has ",
          ours.batches.size(),
          " backward passes on ",
          run.size(),
          " processes, but ",
          theirs.batches.size(),
          " in one process. The loop depends on time, or on the number of "
          "processes")});
    }
    if (!std::isfinite(mean_loss({&theirs}))) {
      return not_comparable({str_cat(
          "The loss of step ",
          i + 1,
          " is also NaN or infinite in a single process. Fix the program in a "
          "single process first")});
    }
    auto step = comparison.compare_update(i);
    if (step.outcome != Outcome::kAgrees) {
      auto& lines = step.lines;
      auto excuses = obstacles(both, /*only_excuses=*/true);
      if (auto samples = sample_difference(run, reference, i);
          !samples.empty()) {
        excuses.push_back(std::move(samples));
      }
      const auto& changed = reference.updates[i].changed_buffers;
      const auto norm =
          std::find_if(changed.begin(), changed.end(), is_of_batch_norm);
      if (norm != changed.end()) {
        excuses.push_back(str_cat(
            "'",
            norm->substr(0, norm->rfind('.')),
            "' is a BatchNorm that normalises over the batch of one rank, so "
            "ranks compute different values than a single process. Convert it "
            "with SyncBatchNorm to compare"));
      } else if (!changed.empty() && excuses.empty()) {
        lines.push_back(str_cat(
            "Note: the forward pass changes the buffer '",
            changed[0],
            "'. If it depends on the batch, reduce it over all ranks"));
      }
      if (!excuses.empty()) {
        excuses.insert(excuses.begin(), lines[0]);
        return not_comparable(std::move(excuses));
      }
      return step;
    }
  }
  Verdict verdict;
  verdict.lines.push_back(str_cat(
      num_updates,
      num_updates == 1 ? " step" : " steps",
      " on ",
      run.size(),
      " processes agree with one process",
      num_updates < static_cast<size_t>(num_steps)
          ? str_cat(" (the program made no further steps)")
          : std::string()));
  for (auto& line : comparison.summary()) {
    verdict.lines.push_back(std::move(line));
  }
  for (size_t i = 0; i < num_updates; ++i) {
    if (run[0].updates[i].learning_rates !=
        reference.updates[i].learning_rates) {
      verdict.lines.push_back(
          "  The learning rates depend on the number of processes. Both runs "
          "used those of the run with several processes");
      break;
    }
  }
  verdict.lines.push_back(memory_line(run, reference));
  return verdict;
}

} // namespace accelerate::verify

// SPDX-License-Identifier: Apache-2.0
// The ranks that divide the layers of a model (tensor parallelism), and the
// operators of divided layers.
//
// A parameter is divided in place, so its module remains the same object. The
// module's `forward` learns from the parameter that it is divided. Shapes: B
// batch, T tokens, C channels, V vocabulary, N rows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/distributed/process_group.h"
#include "core/base/internal.h"
#include "core/layout/tensor_splits.h"

namespace accelerate {

/// The ranks of one model that see the same data and have different parts of
/// its layers.
class ACCELERATE_INTERNAL TensorRanks {
 public:
  explicit TensorRanks(ProcessGroup group) : group_(std::move(group)) {}

  const ProcessGroup& group() const { return group_; }

  /// Returns `x` for a layer with divided outputs. The backward pass sums the
  /// gradient over ranks. Several layers with the same input share one sum.
  at::Tensor enter(const at::Tensor& x);
  /// Forgets the last input. Otherwise its graph would stay alive.
  void forget_input();
  /// The sum of the partial results of all ranks.
  at::Tensor sum(const at::Tensor& partial);
  /// All ranks' parts of the last dimension, which has `length` elements in
  /// all.
  at::Tensor gather(const at::Tensor& part, int64_t length);

  /// Compares the next input of a layer across ranks.
  void check_next_input() { checks_input_ = true; }
  /// Throws `MismatchError` if ranks have different values and
  /// `check_next_input` was called before.
  void check_input(const at::Tensor& input);

  /// Records that the outputs of a layer stay divided; empty if those of the
  /// last divided layer are whole.
  void open(const std::string& layer) { open_layer_ = layer; }
  /// Call this at the end of a forward. Throws `UsageError` if the outputs of
  /// the last divided layer stayed divided.
  void check_is_closed();
  /// Throws `UsageError` if a layer received only this rank's part of its
  /// inputs.
  void check_features(const at::Tensor& x, int64_t num_features) const;

 private:
  ProcessGroup group_;
  at::Tensor last_input_;
  at::Tensor last_entered_;
  int64_t last_version_ = 0;
  bool checks_input_ = false;
  std::string open_layer_;
};

/// Refers to a tensor object without keeping its values.
using WeakTensor =
    c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

/// A parameter of which this rank has a part.
struct DividedParameter {
  std::shared_ptr<TensorRanks> ranks;
  std::string name;
  ParameterSplit split;
  std::vector<int64_t> whole;
  /// This rank's part of the whole.
  TensorPieces pieces;
  /// Whether this rank writes files.
  bool is_main = false;
};

/// Null if the rank has the whole tensor. Found by the identity of the tensor
/// object, which is the same for as long as its module exists.
ACCELERATE_INTERNAL std::shared_ptr<const DividedParameter> divided(
    const at::Tensor& parameter);
void set_divided(const at::Tensor& parameter, DividedParameter info);

/// The input of a divided linear layer: see `TensorRanks::enter`. `x` itself if
/// the layer divides its inputs.
at::Tensor enter_divided(const DividedParameter& info, const at::Tensor& x);
/// The result of such a layer, without the bias, from this rank's product. It
/// is the sum over ranks if inputs are divided, and contains all outputs if the
/// plan gathers them.
at::Tensor leave_divided(
    const DividedParameter& info,
    const at::Tensor& product);
/// The same for a layer with this weight, which may be whole.
ACCELERATE_INTERNAL at::Tensor enter_divided(
    const at::Tensor& x,
    const at::Tensor& weight);
ACCELERATE_INTERNAL at::Tensor leave_divided(
    const at::Tensor& product,
    const at::Tensor& weight);
/// x W^T + b with a divided weight of O x I. `bias` may be undefined.
ACCELERATE_INTERNAL at::Tensor divided_linear(
    const DividedParameter& info,
    const at::Tensor& x,
    const at::Tensor& weight,
    const at::Tensor& bias);
/// Rows of a divided table. `padding` is a row of the whole table that gets no
/// gradient. Throws `UsageError` if an id is out of range; on an accelerator,
/// the device stops instead, as in torch.
ACCELERATE_INTERNAL at::Tensor divided_embedding(
    const DividedParameter& info,
    const at::Tensor& weight,
    const at::Tensor& ids,
    std::optional<int64_t> padding);
/// The mean cross-entropy of the labels (N) that are not `ignored`, from this
/// rank's columns of the logits (N x V). A device stops if a label is out of
/// range.
ACCELERATE_INTERNAL at::Tensor divided_cross_entropy(
    const DividedParameter& info,
    const at::Tensor& logits,
    const at::Tensor& labels,
    int64_t ignored);

/// The whole value of a divided parameter, in host memory. `own` is this rank's
/// part. Collective over the tensor-parallel ranks.
ACCELERATE_INTERNAL at::Tensor whole_of_divided(
    const DividedParameter& info,
    const at::Tensor& own);

/// From now on, `torch::nn::Linear` and `torch::nn::Embedding` with divided
/// parameters are computed as above when called from this thread.
void divide_torch_modules();
/// During its lifetime, operators in this thread compute with this rank's part
/// of a parameter. For code that calls the functions above itself.
class ACCELERATE_INTERNAL PlainOperators {
 public:
  PlainOperators();
  ~PlainOperators();
  PlainOperators(const PlainOperators&) = delete;
  PlainOperators& operator=(const PlainOperators&) = delete;

 private:
  bool was_excluded_;
};
/// A forward of a divided model in this thread, for the checks of
/// `TensorRanks::check_features`.
class TensorForward {
 public:
  explicit TensorForward(const TensorRanks& ranks);
  ~TensorForward();
  TensorForward(const TensorForward&) = delete;
  TensorForward& operator=(const TensorForward&) = delete;

 private:
  const TensorRanks* before_;
};
/// During its lifetime, looks at the arguments of every operator in this
/// thread, so use it only for a few forwards.
class WatchOperators {
 public:
  WatchOperators();
  ~WatchOperators();
  WatchOperators(const WatchOperators&) = delete;
  WatchOperators& operator=(const WatchOperators&) = delete;

  /// Throws `UsageError` if an operator has computed with a divided weight that
  /// would get a wrong gradient.
  void check() const;

 private:
  uint64_t handle_;
};
/// During its lifetime, dropout in this thread throws `UsageError`.
class RefuseDropout {
 public:
  RefuseDropout();
  ~RefuseDropout();
  RefuseDropout(const RefuseDropout&) = delete;
  RefuseDropout& operator=(const RefuseDropout&) = delete;
};

} // namespace accelerate

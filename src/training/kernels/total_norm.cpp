// SPDX-License-Identifier: Apache-2.0
#include "training/kernels/total_norm.h"

#include <ATen/ATen.h>
#include <torch/library.h>

#include "training/kernels/operator.h"

namespace accelerate::kernels {

at::Tensor plain_total_norm(at::TensorList tensors, double norm_type) {
  // Torch would round the norm of each tensor to the tensor's dtype. [0]:
  // tensors of dtypes with sufficient precision. [1]: tensors of 16-bit dtypes.
  std::vector<at::Tensor> lists[2];
  for (const auto& tensor : tensors) {
    lists[at::isReducedFloatingType(tensor.scalar_type())].push_back(tensor);
  }
  std::vector<at::Tensor> norms;
  if (!lists[0].empty()) {
    norms = at::_foreach_norm(lists[0], norm_type);
  }
  if (!lists[1].empty()) {
    const auto more = at::_foreach_norm(lists[1], norm_type, at::kFloat);
    norms.insert(norms.end(), more.begin(), more.end());
  }
  return at::linalg_vector_norm(at::stack(norms), norm_type);
}

at::Tensor total_norm(at::TensorList tensors, double norm_type) {
  static const auto handle =
      typed_operator<decltype(plain_total_norm)>("accelerate::_total_norm");
  return handle.call(tensors, norm_type);
}

TORCH_LIBRARY_FRAGMENT(accelerate, library) {
  library.def("_total_norm(Tensor[] tensors, float norm_type) -> Tensor");
}

TORCH_LIBRARY_IMPL(accelerate, CompositeExplicitAutograd, library) {
  library.impl("_total_norm", plain_total_norm);
}

} // namespace accelerate::kernels
